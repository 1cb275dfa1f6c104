"""The curator's settings groups: every field with its default, range, unit and meaning.

`dpswd.private_curator.settings.tree` makes one tree of them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from dpswd.shared.configuration import SettingsGroup, setting
from dpswd.shared.core.wire import limits

_MEBIBYTE = 1024 * 1024


class ListenSettings(SettingsGroup):
    """Where the curator listens."""

    host: str = setting("127.0.0.1", "Interface to listen on; 0.0.0.0 for all. A host name or address.")
    port: int = setting(50051, "TCP port; 0 takes a free one, written to HOME/address.", ge=0, le=65535)
    shutdown_seconds: float = setting(20.0, "What running steps get after SIGTERM.", unit="seconds", ge=0, le=600)


class RecordsSettings(SettingsGroup):
    """The private records, and how they become float32."""

    name: str = setting("records", "The data set's public name.", min_length=1, max_length=200)
    file: Path = Field(
        description="An npy, npz, Parquet, Arrow or CSV file, or a folder of images (docs/operator/records.md)."
    )
    array: str | None = setting(None, "The records' array in an npz file that holds several.")
    columns: tuple[str, ...] | None = setting(
        None, "Columns of a table that make a record, in order; by default all but the labels'."
    )
    delimiter: str | None = setting(
        None,
        "Between the cells of a CSV file; by default the semicolon, tab or comma that its first two lines show.",
        min_length=1,
        max_length=1,
    )
    header: Literal["auto", "yes", "no"] = setting(
        "auto", "Whether a CSV file's first line names the columns; auto: yes, and refuses numbers."
    )
    labels_array: str | None = setting(None, "The labels' array in an npz file or column of a table; never released.")
    labels_file: Path | None = setting(None, "npy file with the labels; never released.")
    classes: Annotated[int, Field(ge=2, le=limits.MAX_CLASSES)] | tuple[str, ...] | None = setting(
        None,
        "Public: the number of classes, labels being 0, 1, ..., or their names in order.",
        allowed=f"2 to {limits.MAX_CLASSES}, or as many different names",
    )
    unlabelled: str | None = setting(
        None,
        "Public: the label, as text, of records that have none, such as -1; by default every record must have one.",
        min_length=1,
        max_length=200,
    )
    labelled: int | None = setting(
        None,
        "Public: how many of the records have a label; by default private. Where it is said, which have one must not "
        "be secret either (docs/privacy/evaluation.md).",
        unit="records",
        ge=1,
    )
    memory_bytes: int = setting(
        1024 * _MEBIBYTE,
        "Memory for records in formats that are read as a whole (tables, images, compressed npz).",
        unit="bytes",
        ge=_MEBIBYTE,
    )
    record_shape: tuple[Annotated[int, Field(ge=1)], ...] | None = setting(
        None, "Shape that one record gets, for example [1, 28, 28]; by default the file's own."
    )
    scale_from: tuple[float, float] | None = setting(
        None, "Public range of the stored values; by default [0, 255] for uint8 and no scaling for float32."
    )
    scale_to: tuple[float, float] = setting((0.0, 1.0), "Range that scale_from is mapped to.")
    value_range: tuple[float, float] | None = setting(
        None, "Public: smallest and largest value of a served record, before channel_mean and channel_std."
    )
    channel_mean: tuple[float, ...] | None = setting(
        None, "Public: served is (value - mean) / std; one mean for each channel, or one for all."
    )
    channel_std: tuple[float, ...] | None = setting(None, "Public: see channel_mean.")
    column_names: tuple[str, ...] | None = setting(
        None, "Public: a name for each number of a table's row, in order; the file's own where it names its columns."
    )
    units: tuple[str, ...] | None = setting(None, "Public: the unit of each column, in their order, such as mg/dl.")
    class_names: tuple[str, ...] | None = setting(
        None, "Public: where records.classes is a number, the names of the classes 0, 1, ..., in order."
    )

    @field_validator("classes")
    @classmethod
    def _distinct(cls, value: int | tuple[str, ...] | None) -> int | tuple[str, ...] | None:
        if isinstance(value, tuple) and not (2 <= len(set(value)) == len(value) <= limits.MAX_CLASSES and all(value)):
            raise ValueError(f"must be 2 to {limits.MAX_CLASSES} different names, or their number")
        return value

    @field_validator("scale_from", "scale_to", "value_range")
    @classmethod
    def _increasing(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not (all(map(math.isfinite, value)) and value[0] < value[1]):
            raise ValueError("must be two finite numbers, the smaller first")
        return value


class ComputeSettings(SettingsGroup):
    """What the steps run on."""

    device: Literal["cpu", "cuda", "auto"] = setting(
        "auto", "cpu, cuda (refused where there is none), or auto: cuda where there is one."
    )
    request_threads: int = setting(16, "Requests that are handled at the same time.", unit="threads", ge=2, le=256)
    parallel_steps: int = setting(
        1, "Steps that are computed at the same time; others wait.", unit="steps", ge=1, le=64
    )
    torch_threads: int = setting(
        0, "CPU threads of one step's arithmetic; 0 leaves torch's choice.", unit="threads", ge=0, le=256
    )
    isolation: Literal["process", "in-process"] = setting(
        "process",
        "process: extractors run in confined workers; in-process: in the curator itself (only if every client is "
        "trusted).",
    )
    worker_seconds: float = setting(
        300.0,
        "What a worker may take for a sample; runs whose steps take more than half of it on made records are refused "
        "before they are charged.",
        unit="seconds",
        gt=0,
    )
    pass_seconds: float = setting(
        3600.0,
        "What a sum over every record may take; longer ones are refused before they are charged.",
        unit="seconds",
        gt=0,
    )
    pass_speedup: float = setting(
        1.0,
        "How many times as fast as by one worker a sum over every record surely is, by parallel_steps or a cluster: "
        "measure it, and choose less.",
        unit="times",
        ge=1,
        le=4096,
    )
    worker_memory_bytes: int = setting(
        4096 * _MEBIBYTE,
        "What a worker may allocate beyond its start (on a GPU, also of its memory).",
        unit="bytes",
        ge=32 * _MEBIBYTE,
    )


class ClusterSettings(SettingsGroup):
    """Other machines that compute sums over every record; needs `dpswd[cluster]`."""

    scheduler: str | None = setting(
        None,
        "The cluster's scheduler; without one this machine computes alone (docs/operator/cluster.md).",
        allowed="tls://host:port or none",
        pattern=r"^(tls://[^/\s]+:\d+)?$",
    )
    certificates: Path = Field(
        default=Path("cluster"),
        description="The curator's folder of the cluster's certificates: ca.crt, member.crt and member.key.",
    )
    computed_twice: float = setting(
        0.1,
        "Of each sum's shards, chosen in secret, what two machines must compute to the same bits (docs/scale.md).",
        unit="share",
        ge=0,
        le=1,
    )


class ExtractorSettings(SettingsGroup):
    """Which extractors may see records."""

    approval: Literal["any", "listed"] = setting(
        "any",
        "any: every graph of the closed vocabulary; listed: only graphs approved with `dpswd-curator "
        "extractors --approve`.",
    )


class PermissionSettings(SettingsGroup):
    """What each client may ask for. Who is a client, and how much each may spend, stands in the ledger."""

    mechanisms: tuple[str, ...] = setting(
        (),
        "What a client may use (docs/privacy/mechanisms.md); * stands for every client that is not named. A client of "
        "which nothing is said may use all.",
        allowed='list such as ["ml-team=quantiles,feature_sums", "*=evaluation"]',
    )
    published_mechanisms: bool = setting(
        False,
        "Whether clients may ask for what only published methods need: rows, gradient, sinkhorn and their like "
        "(docs/ml-team/methods.md).",
    )

    @field_validator("mechanisms")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = [entry.partition("=")[0] for entry in value]
        for entry, name in zip(value, names, strict=True):
            allowed = entry.partition("=")[2].split(",")
            if not name or not all(allowed) or any(word != word.strip() for word in (name, *allowed)):
                raise ValueError(f"{entry!r} must be NAME=mechanism,mechanism without spaces, at least one mechanism")
        if len(set(names)) != len(names):
            raise ValueError("a client is named twice; write all its mechanisms into one entry")
        return value

    def allowed_to(self, client: str) -> tuple[str, ...] | None:
        """Names of the mechanisms that a client may use; None for all."""
        said = {name: allowed.split(",") for name, _, allowed in (entry.partition("=") for entry in self.mechanisms)}
        allowed = said.get(client, said.get("*"))
        return None if allowed is None else tuple(allowed)


def _at_most(most: int, meaning: str, *, unit: str, least: int = 1) -> int:
    """A bound that is at most the protocol's own, and the protocol's own by default."""
    bound: int = setting(most, meaning, unit=unit, ge=least, le=most)
    return bound


class LimitSettings(SettingsGroup):
    """Bounds on requests, at most the protocol's own."""

    max_message_bytes: int = _at_most(limits.MAX_MESSAGE_BYTES, "Bytes of one message.", unit="bytes", least=65_536)
    max_directions: int = _at_most(limits.MAX_DIRECTIONS, "Directions k of a step.", unit="directions")
    max_coefficients: int = _at_most(limits.MAX_COEFFICIENTS, "Coefficients L of a direction.", unit="coefficients")
    max_batch_size: int = _at_most(limits.MAX_BATCH_SIZE, "Records b in one sample.", unit="records")
    min_batch_size: int = setting(
        limits.MIN_BATCH_SIZE,
        "Fewest records b in one sample: a smaller step's time depends more on each record.",
        unit="records",
        ge=1,
        le=limits.MAX_BATCH_SIZE,
    )
    max_adapted_parameters: int = _at_most(limits.MAX_ADAPTED_PARAMETERS, "Adapted parameters p.", unit="values")
    max_source_features: int = _at_most(limits.MAX_SOURCE_FEATURES, "Source features m of a step.", unit="features")
    max_gradient_values: int = setting(
        limits.MAX_GRADIENT_VALUES, "Per-record gradient values b * p of one step, 4 bytes each.", unit="values", ge=1
    )
    max_sample_values: int = setting(
        limits.MAX_SAMPLE_VALUES, "Values of one sample's records, 4 bytes each.", unit="values", ge=1
    )
    max_step_attempts: int = setting(
        16, "How often one step is computed anew after crashes and errors.", unit="attempts", ge=1
    )
    client_requests: int = setting(
        4,
        "Requests that one client may have under way; never more than half of compute.request_threads.",
        unit="requests",
        ge=1,
    )
    client_message_bytes: int = setting(
        160 * _MEBIBYTE, "One client's requests under way and unread replies together.", unit="bytes", ge=_MEBIBYTE
    )
    message_bytes: int = setting(
        640 * _MEBIBYTE, "All clients' requests under way together.", unit="bytes", ge=_MEBIBYTE
    )
    receive_seconds: float = setting(
        120.0, "How long a request may take to be received before it is cut off.", unit="seconds", gt=0, le=3600
    )
    reply_quantum_ms: Literal["auto"] | Annotated[float, Field(ge=0, le=600_000)] = setting(
        "auto",
        "Replies to charged requests leave at multiples of it (docs/privacy/reply-times.md); auto: 50, or one and a "
        "half times what the slowest made records take; 0: at once.",
        unit="milliseconds",
        allowed="auto, or 0 to 600000",
    )
    client_storage_bytes: int = setting(
        2048 * _MEBIBYTE, "Bytes of extractors that one client may keep.", unit="bytes", ge=1
    )
    client_storage_objects: int = setting(10_000, "Uploaded objects that one client may keep.", unit="objects", ge=1)


class LedgerSettings(SettingsGroup):
    """Where the ledger stands: in a file, or in PostgreSQL for replicas."""

    url: str | None = setting(
        None,
        "PostgreSQL, without a password; by default the ledger is the file HOME/ledger.db.",
        allowed="postgresql://user@host:port/database?sslmode=verify-full or none",
    )
    schema_name: str = setting(
        "dpswd",
        "The ledger's own schema in that database; one for each data set.",
        allowed="a lower-case letter, then up to 39 such letters, digits and _",
        pattern=r"^[a-z][a-z0-9_]{0,39}$",
    )
    password_file: Path | None = setting(
        None, "File whose first line is the database's password; else PGPASSFILE is looked at."
    )
    witness_file: Path | None = setting(
        None, "Where the last entry is noted, best on another volume; by default HOME/ledger.witness."
    )
    heads_file: Path | None = setting(
        None, "A file, best on another machine, to which the last entry is appended after each step."
    )
    heads_command: tuple[str, ...] | None = setting(
        None, "A program that gets the last entry on standard input after each step."
    )
    keys: tuple[str, ...] = setting(
        (), "Further places of its key: PKCS#11 URIs, or PACKAGE.MODULE:FUNCTION (docs/operator/keys.md)."
    )
    lock_seconds: float = setting(10.0, "How long a request waits for a writer.", unit="seconds", gt=0, le=300)


class OperatorSettings(SettingsGroup):
    """Whom acts need, and what operators are told without asking."""

    second: tuple[Literal["extend", "approve", "restore", "state"], ...] = setting(
        (),
        "Acts that take two operators (docs/operator/guard-rails.md).",
        allowed='list of "extend", "approve", "restore", "state"',
    )
    notify_command: tuple[str, ...] | None = setting(
        None,
        "A program that gets a JSON object on standard input when the budget is low, a run was refused, an operator "
        "acted, or the ledger is odd.",
    )
    low_share: float = setting(
        0.1, "Below this share of it a budget is low, and told once.", unit="of the budget", ge=0, le=1
    )


class ConsoleSettings(SettingsGroup):
    """Who signs in to the console (docs/operator/console.md); by default whoever reads the token in its terminal."""

    issuer: str | None = setting(
        None, "The OpenID provider; behind a proxy, whom acts name.", allowed="https://...", pattern=r"^https://\S+$"
    )
    client_id: str | None = setting(None, "What the provider calls the console; needs `dpswd[oidc]`.")
    client_secret_file: Path | None = setting(None, "File with the client's secret; none for a public client.")
    ca_file: Path | None = setting(None, "The provider's certificate's authority (PEM); by default the system's.")
    role_claim: str = setting("roles", "The claim, dots leading inward, or the proxy's header, that holds roles.")
    viewer: str = setting("dpswd-viewer", "What in it stands for who sees every page.", min_length=1, max_length=200)
    operator: str = setting("dpswd-operator", "For who acts.", min_length=1, max_length=200)
    second: str = setting("dpswd-second", "For who seconds an operator, and no more.", min_length=1, max_length=200)
    auditor: str = setting("dpswd-auditor", "For who verifies and reports.", min_length=1, max_length=200)
    proxy_header: str | None = setting(None, "A proxy's header that names whom it signed in; on a Unix socket alone.")


class LogSettings(SettingsGroup):
    """What the serving curator writes to its log."""

    format: Literal["text", "json"] = setting(
        "text", "text for people; json for programs, one object with fixed fields per line."
    )
    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "debug, info (a line for each charged run and refusal), warning or error."
    )


class SyslogSettings(SettingsGroup):
    """Acts, refusals and releases for a security team."""

    address: str | None = setting(
        None, "The collector, over TLS.", allowed="host:port or none", pattern=r"^\S+:[0-9]{1,5}$"
    )
    ca_file: Path | None = setting(None, "Its certificate's authority (PEM); by default the system's.")
    certificate_file: Path | None = setting(None, "The curator's own certificate (PEM).")
    key_file: Path | None = setting(None, "Its key (PEM).")


class MetricsSettings(SettingsGroup):
    """Prometheus metrics. They ask for no password: keep them on an inner network."""

    enabled: bool = setting(False, "Whether metrics are served over HTTP, on a port of their own.")
    host: str = setting("127.0.0.1", "Interface to listen on. A host name or address.")
    port: int = setting(9464, "TCP port; 0 takes a free one, written to HOME/metrics-address.", ge=0, le=65535)


class TracingSettings(SettingsGroup):
    """OpenTelemetry traces; need `dpswd[tracing]`."""

    endpoint: str | None = setting(
        None,
        "The OTLP collector (gRPC) that spans are sent to; without one there is no tracing.",
        allowed="http://host:port, https://host:port or none",
        pattern=r"^https?://[^/\s]+$",
    )
    service_name: str = setting("dpswd-curator", "service.name of the spans.", min_length=1, max_length=200)
