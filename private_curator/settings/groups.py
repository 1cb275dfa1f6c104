"""The sections of the curator's settings: every field with its default, range, unit and meaning.

`private_curator.settings.tree` makes one tree of them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from shared.protocol import limits

_MEBIBYTE = 1024 * 1024


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ListenSettings(_Section):
    """Where the curator listens."""

    host: str = Field(
        default="127.0.0.1", description="Interface to listen on; 0.0.0.0 for all. A host name or address."
    )
    port: int = Field(
        default=50051, ge=0, le=65535, description="TCP port; 0 takes a free one, written to HOME/address."
    )
    shutdown_seconds: float = Field(
        default=20.0,
        ge=0,
        le=600,
        json_schema_extra={"unit": "seconds"},
        description="Seconds that running steps get to finish after SIGTERM before they are cut off.",
    )


class RecordsSettings(_Section):
    """Where the private records are and how they become float32."""

    name: str = Field(default="records", min_length=1, max_length=200, description="The data set's public name.")
    file: Path = Field(
        description="Records: an npy, npz, Parquet, Arrow or CSV file, or a folder of images (docs/data-in.md)."
    )
    array: str | None = Field(
        default=None, description="Name of the records' array in an npz file; needed if it holds several."
    )
    columns: tuple[str, ...] | None = Field(
        default=None, description="Columns of a table that make a record, in order; by default all but the labels'."
    )
    delimiter: str | None = Field(
        default=None,
        min_length=1,
        max_length=1,
        description="Between the cells of a CSV file; by default a comma, a tab where the name ends in .tsv.",
    )
    header: Literal["auto", "yes", "no"] = Field(
        default="auto",
        description="Whether a CSV file's first line names the columns; auto takes it so, and refuses one of numbers.",
    )
    labels_array: str | None = Field(
        default=None,
        description="Name of the labels' array in an npz file or column of a table; checked, kept private, never "
        "released.",
    )
    labels_file: Path | None = Field(
        default=None, description="npy file with the labels, beside an npy or npz file; checked, never released."
    )
    classes: Annotated[int, Field(ge=2, le=limits.MAX_CLASSES)] | tuple[str, ...] | None = Field(
        default=None,
        json_schema_extra={"allowed": f"2 to {limits.MAX_CLASSES}, or as many different names"},
        description="Public: the number of classes, labels being 0, 1, ..., or the names of the classes in order. "
        "Clients may then evaluate models on all records, noised and charged (docs/evaluation.md).",
    )
    memory_bytes: int = Field(
        default=1024 * _MEBIBYTE,
        ge=_MEBIBYTE,
        json_schema_extra={"unit": "bytes"},
        description="Memory that records may take in formats that are read as a whole (tables, images, compressed "
        "npz); npy and uncompressed npz take none.",
    )
    record_shape: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        default=None, description="Shape that one record gets, for example [1, 28, 28]; by default the file's own."
    )
    scale_from: tuple[float, float] | None = Field(
        default=None,
        description="Public range of the stored values; by default [0, 255] for uint8 and no scaling for float32.",
    )
    scale_to: tuple[float, float] = Field(default=(0.0, 1.0), description="Range that scale_from is mapped to.")

    @field_validator("classes")
    @classmethod
    def _distinct(cls, value: int | tuple[str, ...] | None) -> int | tuple[str, ...] | None:
        if isinstance(value, tuple) and not (2 <= len(set(value)) == len(value) <= limits.MAX_CLASSES and all(value)):
            raise ValueError(f"must be 2 to {limits.MAX_CLASSES} different names, or their number")
        return value

    @field_validator("scale_from", "scale_to")
    @classmethod
    def _increasing(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not (all(map(math.isfinite, value)) and value[0] < value[1]):
            raise ValueError("must be two finite numbers, the smaller first")
        return value


class ComputeSettings(_Section):
    """What the steps run on."""

    device: Literal["cpu", "cuda", "auto"] = Field(
        default="auto", description="cpu, cuda (refused where there is none), or auto: cuda where there is one."
    )
    request_threads: int = Field(
        default=16,
        ge=2,
        le=256,
        json_schema_extra={"unit": "threads"},
        description="Requests that are handled at the same time.",
    )
    parallel_steps: int = Field(
        default=1,
        ge=1,
        le=64,
        json_schema_extra={"unit": "steps"},
        description="Steps that are computed at the same time; others wait.",
    )
    torch_threads: int = Field(
        default=0,
        ge=0,
        le=256,
        json_schema_extra={"unit": "threads"},
        description="CPU threads of one step's arithmetic; 0 leaves torch's choice.",
    )
    isolation: Literal["process", "in-process"] = Field(
        default="process",
        description="process: extractors are evaluated in confined worker processes without network; in-process: in "
        "the curator itself, where nothing can be stopped (only if every client is trusted).",
    )
    worker_seconds: float = Field(
        default=300.0,
        gt=0,
        json_schema_extra={"unit": "seconds"},
        description="Seconds that a worker may take for a sample's features, or for their gradients, before it is "
        "ended. Runs whose steps take more than half of it on synthetic records are refused before they are charged.",
    )
    worker_memory_bytes: int = Field(
        default=4096 * _MEBIBYTE,
        ge=32 * _MEBIBYTE,
        json_schema_extra={"unit": "bytes"},
        description="Bytes that a worker may allocate beyond what it needs to start (on a GPU, also of its memory).",
    )


class ExtractorSettings(_Section):
    """Which extractors may see records."""

    approval: Literal["any", "listed"] = Field(
        default="any",
        description="any: every graph of the closed vocabulary; listed: only graphs approved with "
        "`dpswd-curator extractor approve`.",
    )


class LimitSettings(_Section):
    """Bounds on requests, at most the protocol's own (shared/protocol/limits.py)."""

    max_message_bytes: int = Field(
        default=limits.MAX_MESSAGE_BYTES,
        ge=65_536,
        le=limits.MAX_MESSAGE_BYTES,
        json_schema_extra={"unit": "bytes"},
        description="Bytes of one message.",
    )
    max_directions: int = Field(
        default=limits.MAX_DIRECTIONS,
        ge=1,
        le=limits.MAX_DIRECTIONS,
        json_schema_extra={"unit": "directions"},
        description="Directions k of a step.",
    )
    max_coefficients: int = Field(
        default=limits.MAX_COEFFICIENTS,
        ge=1,
        le=limits.MAX_COEFFICIENTS,
        json_schema_extra={"unit": "coefficients"},
        description="Coefficients L of a direction.",
    )
    max_batch_size: int = Field(
        default=limits.MAX_BATCH_SIZE,
        ge=1,
        le=limits.MAX_BATCH_SIZE,
        json_schema_extra={"unit": "records"},
        description="Records b in one sample.",
    )
    max_adapted_parameters: int = Field(
        default=limits.MAX_ADAPTED_PARAMETERS,
        ge=1,
        le=limits.MAX_ADAPTED_PARAMETERS,
        json_schema_extra={"unit": "values"},
        description="Adapted parameters p.",
    )
    max_source_features: int = Field(
        default=limits.MAX_SOURCE_FEATURES,
        ge=1,
        le=limits.MAX_SOURCE_FEATURES,
        json_schema_extra={"unit": "features"},
        description="Source features m of a step.",
    )
    max_gradient_values: int = Field(
        default=256 * _MEBIBYTE,
        ge=1,
        json_schema_extra={"unit": "values"},
        description="Per-record gradient values b * p of one step, 4 bytes each: bounds the curator's memory.",
    )
    max_sample_values: int = Field(
        default=256 * _MEBIBYTE,
        ge=1,
        json_schema_extra={"unit": "values"},
        description="Values of one sample's records, b times those of one record, 4 bytes each: bounds the curator's "
        "memory.",
    )
    max_step_attempts: int = Field(
        default=16,
        ge=1,
        json_schema_extra={"unit": "attempts"},
        description="How often one step is computed anew after crashes and errors; no attempt but the last releases "
        "anything, but how often a step fails is seen by the client.",
    )
    client_requests: int = Field(
        default=4,
        ge=1,
        json_schema_extra={"unit": "requests"},
        description="Requests that one client may have under way; never more than half of compute.request_threads.",
    )
    reply_quantum_ms: Literal["auto"] | Annotated[float, Field(ge=0, le=600_000)] = Field(
        default="auto",
        json_schema_extra={"unit": "milliseconds", "allowed": "auto, or 0 to 600000"},
        description="Replies to charged requests leave at multiples of so many milliseconds after they came, so that "
        "their time tells nothing of a record; auto: 50, or one and a half times a step on synthetic records; 0: at "
        "once.",
    )
    client_storage_bytes: int = Field(
        default=2048 * _MEBIBYTE,
        ge=1,
        json_schema_extra={"unit": "bytes"},
        description="Bytes of uploaded extractors and source features that one client may keep.",
    )
    client_storage_objects: int = Field(
        default=10_000,
        ge=1,
        json_schema_extra={"unit": "objects"},
        description="Uploaded objects that one client may keep.",
    )


class LedgerSettings(_Section):
    """Where the ledger stands: in a file, or in PostgreSQL, where several replicas share it (docs/replicas.md)."""

    url: str | None = Field(
        default=None,
        json_schema_extra={"allowed": "postgresql://user@host:port/database?sslmode=verify-full or none"},
        description="PostgreSQL with every parameter of libpq, but no password; without it the ledger is the file "
        "HOME/ledger.db.",
    )
    schema_name: str = Field(
        default="dpswd",
        pattern=r"^[a-z][a-z0-9_]{0,39}$",
        json_schema_extra={"allowed": "a lower-case letter, then up to 39 such letters, digits and _"},
        description="The ledger's own schema in that database; one for each data set.",
    )
    password_file: Path | None = Field(
        default=None, description="File whose first line is the database's password; else PGPASSFILE is looked at."
    )
    lock_seconds: float = Field(
        default=10.0,
        gt=0,
        le=300,
        json_schema_extra={"unit": "seconds"},
        description="How long a request waits for another writer of the ledger before it is told to come again.",
    )


class LogSettings(_Section):
    """What the serving curator writes to standard error."""

    format: Literal["text", "json"] = Field(
        default="text", description="text for people; json for programs, one object with fixed fields per line."
    )
    level: Literal["info", "warning", "error"] = Field(
        default="info", description="The least level that is written; info has a line for each request."
    )


class MetricsSettings(_Section):
    """Prometheus metrics, data-independent (docs/monitoring.md). No authentication: keep them on an inner network."""

    enabled: bool = Field(default=False, description="Whether metrics are served over HTTP, on a port of their own.")
    host: str = Field(default="127.0.0.1", description="Interface to listen on. A host name or address.")
    port: int = Field(
        default=9464, ge=0, le=65535, description="TCP port; 0 takes a free one, written to HOME/metrics-address."
    )


class TracingSettings(_Section):
    """OpenTelemetry traces, one span for each request (docs/monitoring.md). Needs dpswd[tracing]."""

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^/\s]+$",
        json_schema_extra={"allowed": "http://host:port, https://host:port or none"},
        description="The OTLP collector (gRPC) that spans are sent to; without one there is no tracing.",
    )
    service_name: str = Field(
        default="dpswd-curator", min_length=1, max_length=200, description="service.name of the spans."
    )
