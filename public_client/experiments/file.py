"""An experiment as one file: data, source training, method, privacy, curators, outputs, seeds. TOML or YAML.

Every key has a type and a range; whatever is wrong is named by its path (``privacy.epsilon``), all of it at once. Paths
in a file are relative to the file. The command line's options replace single keys.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from dpswd.shared.configuration import SettingsGroup, setting
from dpswd.shared.core.errors import SettingsError
from dpswd.shared.words import MAX_PURPOSE_LENGTH

if TYPE_CHECKING:
    from dpswd.shared.protocol.contract import DataContract

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
LADDER = "ladder"
"""The default of `train`, `plan` and `prepare`: the one place that decides it."""
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


def _from_the_file(path: Path, info: ValidationInfo) -> Path:
    """A relative path of a file starts at the file's folder; one of the command line at the working directory."""
    context = info.context or {"folder": Path(), "given": ()}
    return path if info.field_name in context["given"] else context["folder"] / path


RelativePath = Annotated[Path, AfterValidator(_from_the_file)]


def _code_from_the_file(text: str, info: ValidationInfo) -> str:
    """The same of the file before a name."""
    file, _, name = text.rpartition(":")
    return f"{_from_the_file(Path(file), info)}:{name}" if file.endswith(".py") else text


class Data(SettingsGroup):
    """The public source, and for rehearsals the public original of the target."""

    task: str = setting("digits", "A ready task: digits, mnist-usps or usps-mnist.")
    geometry: Literal["stretched", "framed"] = setting("stretched", "How USPS becomes 28 x 28.")
    folder: RelativePath | None = setting(None, "With mnist.npz and usps16.npz; by default OpenML's copies.")
    source: RelativePath | None = setting(
        None,
        "Your public records instead of a task's: an .npz (arrays x, y), a table (.csv, .tsv, .parquet, .arrow), or a "
        "generator's .safetensors.",
    )
    label: str | None = setting(
        None, "Of source: a table's column of labels (default: label), or the array's name (y)."
    )
    columns: list[str] = setting([], "Of a table: those that make a record, in order; by default all but the labels'.")
    header: Literal["auto", "yes", "no"] = setting("auto", "Whether the first line of CSV names the columns.")
    rows: Count = setting(10_000, "Records that are drawn where source is a generator.")
    labelled: Annotated[int, Field(ge=0)] | None = setting(
        None,
        "For a method whose target is the source's own records (dpda): so many of them keep their label; by default "
        "all labels of a file that are not -1, and none of a ready task.",
    )
    classes: Count | None = setting(None, "For such a method: of the hospital's labels, where no own label tells.")
    target: RelativePath | None = setting(None, "Beside source: a file like it, a public stand-in for rehearsals.")


class Contract(SettingsGroup):
    """What the team declares of its source's values, compared with what each hospital declares of its records'."""

    value_range: tuple[float, float] | None = setting(None, "Smallest and largest value, before the normalisation.")
    channel_mean: list[float] = setting([], "A value is (value - mean) / std; one for each channel, or one for all.")
    channel_std: list[float] = setting([], "The same.")
    column_names: list[str] = setting([], "Of the numbers of a table's row, in order.")
    units: list[str] = setting([], "Of the columns, in order.")
    class_names: list[str] = setting([], "Of the labels 0, 1, ..., in order.")

    @model_validator(mode="after")
    def _whole(self) -> Contract:
        # The contract's module loads torch; small commands that declare nothing go without.
        if self.model_fields_set and (broken := self.declared.broken_structure()):
            raise ValueError("; ".join(f"{name} {text}" for name, text in broken))
        return self

    @property
    def declared(self) -> DataContract:
        """As it is compared."""
        from dpswd.shared.protocol.contract import DataContract

        return DataContract(**{name: tuple(value or ()) for name, value in self.model_dump().items()})


class Network(SettingsGroup):
    """What is trained."""

    code: Annotated[str, AfterValidator(_code_from_the_file)] | None = setting(
        None,
        "FILE.py:NAME (or module:NAME), your own: a network, or a class or function without arguments that makes one "
        "or (extractor, classifier); by default a ready one. It is trained on the source first, unless model is given.",
        pattern=r"^.+:[A-Za-z_]\w*$",
    )
    model: RelativePath | None = setting(
        None,
        "What is trained already: a fitted classifier (.joblib, which runs its maker's code), weights of network "
        "(.safetensors, .pt). It is not trained further on the source.",
    )


class Source(SettingsGroup):
    """Source-only training."""

    epochs: int | None = setting(None, "Passes; by default about 900 updates.", ge=0)
    batch_size: Count | None = setting(
        None, "Labelled records in one batch; by default 128, or 64 of fewer than 2000 records."
    )


class MethodGroup(SettingsGroup):
    """How the model is adapted."""

    name: str = setting(LADDER, "One of --list-methods.")
    settings: dict[str, Any] = setting(
        {}, "The method's own settings, such as coefficients; what is left out is its own choice."
    )
    shared: bool = setting(False, "Several curators train together: one model, or models that learn from each other.")
    control_steps: Annotated[int, Field(ge=0)] | None = setting(
        None,
        "Updates of the control, the default's tuning without a release, which is shown beside a rehearsal's results; "
        "by default the replay's; 0 leaves it out.",
    )


class Privacy(SettingsGroup):
    """What the run may cost, and its size."""

    epsilon: Positive = setting(1.0, "What the run may cost at each curator.")
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = setting(1e-5, "Of a local hospital's or mock's budget.")
    budget: Positive | None = setting(None, "Epsilon of a local hospital's or mock's budget; epsilon by default.")
    steps: Count | None = setting(None, "T; by default the method's.")
    batch_size: Count | None = setting(None, "b; by default the method's.")
    evaluate_epsilon: Positive | None = setting(
        None, "What one private comparison with your own model may cost beside epsilon; the better one is delivered."
    )
    yes: bool = setting(False, "Charges a run although most measured runs on such records left the model as it was.")

    def wishes(self) -> dict[str, Any]:
        """Of a plan; what is left out is the method's own choice."""
        return self.model_dump(include={"epsilon", "steps", "batch_size"}, exclude_none=True)


class CuratorGroup(SettingsGroup):
    """One hospital."""

    address: str = Field(description="host:port.", pattern=r"^.+:\d+$")
    credentials: RelativePath = Field(description="Directory with ca.crt, client.crt, client.key.")
    name: str | None = setting(None, "The team's name for it; by default curator-1 and so on.", pattern=_NAME)
    server_name: str | None = setting(None, "The name in the curator's certificate, if it differs.")
    weight: Positive = setting(1.0, "In a model that several curators train together.")
    epsilon: Positive | None = setting(None, "Instead of privacy.epsilon.")
    steps: Count | None = setting(None, "Instead of privacy.steps.")
    batch_size: Count | None = setting(None, "Instead of privacy.batch_size.")


class ReleaseGroup(SettingsGroup):
    """One hospital that published a release as a file."""

    file: RelativePath = Field(description="As the hospital published it.")
    key: RelativePath = Field(description="The ledger's public key, 64 hexadecimal digits, as the hospital gave it.")
    name: str | None = setting(None, "The team's name for it; by default curator-1 and so on.", pattern=_NAME)
    weight: Positive = setting(1.0, "In a model that several hospitals train together.")


class Rehearsal(SettingsGroup):
    """Where there is no curator: hospitals on this machine, from public data."""

    hospitals: Count = setting(1, "Among how many the stand-in's records are dealt.")


class DryRun(SettingsGroup):
    """What a mock curator imitates."""

    enabled: bool = setting(False, "Asks no server and spends nothing; accuracy means nothing.")
    descriptions: list[RelativePath] = setting(
        [], "Output of dpswd-client describe --format json, one for each curator."
    )
    records: Count | None = setting(None, "n, without a description; by default the stand-in's.")


class Output(SettingsGroup):
    """What is written."""

    save: RelativePath | None = setting(None, "The adapted model; for several sites or seeds, their names are added.")
    checkpoint: RelativePath | None = setting(None, "Directory that survives a killed client; holds one training.")
    resume: bool = setting(False, "Continues the run in the checkpoint; no step is spent twice.")
    log_dir: RelativePath | None = setting(None, "TensorBoard and CSV logs.")
    track: tuple[Literal["mlflow", "wandb"], ...] = setting((), "Told what is logged, beside log_dir's files.")


class Experiment(SettingsGroup):
    """The whole file."""

    name: str = setting("experiment", "For titles and logs.")
    purpose: str = setting(
        "",
        "Why, in one line of at most 200 characters: it stands in the hospital's ledger and in the receipts.",
        max_length=MAX_PURPOSE_LENGTH,
    )
    seeds: list[int] = setting([0], "One training for each.", min_length=1)
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "Where to compute.")
    data: Data = Data()
    contract: Contract = Contract()
    network: Network = Network()
    source: Source = Source()
    method: MethodGroup = MethodGroup()
    privacy: Privacy = Privacy()
    curators: list[CuratorGroup] = setting([], "The hospitals; none for a rehearsal.")
    releases: list[ReleaseGroup] = setting([], "Instead of curators: hospitals that published a release as a file.")
    rehearsal: Rehearsal = Rehearsal()
    dry_run: DryRun = DryRun()
    output: Output = Output()

    @field_validator("curators", "releases")
    @classmethod
    def _distinct(cls, sites: list[Any]) -> list[Any]:
        names = [name_of(site, index) for index, site in enumerate(sites)]
        if len(set(names)) != len(names):
            raise ValueError(f"have the names {', '.join(names)}; each must be given once")
        return sites

    @model_validator(mode="after")
    def _together(self) -> Experiment:
        if self.output.resume and self.output.checkpoint is None:
            raise ValueError("output.resume needs output.checkpoint, the directory of the run")
        if self.output.checkpoint is not None and len(self.seeds) > 1:
            raise ValueError("output.checkpoint holds one training; give one seed, or leave the checkpoint out")
        if self.privacy.evaluate_epsilon is not None and self.releases:
            raise ValueError("privacy.evaluate_epsilon asks the hospital; a published release alone cannot answer")
        if self.releases and (self.curators or self.dry_run.enabled):
            raise ValueError("releases are trained from by themselves; leave out curators and dry_run, or the releases")
        descriptions = self.dry_run.descriptions
        if len(descriptions) > 1 and len(descriptions) != max(1, len(self.curators)):
            raise ValueError(
                f"dry_run.descriptions has {len(descriptions)} files for {max(1, len(self.curators))} curators"
            )
        return self

    @property
    def rehearsed(self) -> bool:
        """Whether the target is a public stand-in, served on this machine: its labels are at hand."""
        return not self.sites and not self.dry_run.enabled

    @property
    def sites(self) -> Sequence[CuratorGroup | ReleaseGroup]:
        """The hospitals that are asked, or that were."""
        return self.curators or self.releases

    def to_yaml(self) -> str:
        """The experiment with all its defaults, as a file that reads back to itself."""
        import yaml

        text: str = yaml.safe_dump(json.loads(self.model_dump_json()), sort_keys=False)
        return text


def name_of(site: CuratorGroup | ReleaseGroup, index: int) -> str:
    """The hospital's name in reports, logs and file names."""
    return site.name or f"curator-{index + 1}"


def read_experiment(path: Path | None, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Reads an experiment file and replaces single keys of it.

    Args:
        path: .toml, .yaml or .yml; None for the defaults.
        changes: values by their path, such as ``{"privacy.epsilon": 0.5}``.

    Raises:
        SettingsError: the file cannot be read, or keys are unknown or out of range; each is named by its path.
    """
    values = {} if path is None else _parsed(path)
    changes = changes or {}
    for key, value in changes.items():
        _put(values, key.split("."), value)
    context = {"folder": Path() if path is None else path.parent, "given": {key.split(".")[-1] for key in changes}}
    try:
        return Experiment.model_validate(values, context=context)
    except ValidationError as error:
        where = "" if path is None else f"{path}: "
        raise SettingsError(where + "; ".join(_problem(dict(problem)) for problem in error.errors())) from error


def _parsed(path: Path) -> dict[str, Any]:
    readers: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".yaml": _yaml, ".yml": _yaml}
    if path.suffix not in readers:
        raise SettingsError(f"{path} must end in .toml, .yaml or .yml")
    try:
        loaded = readers[path.suffix](path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        language = "TOML" if path.suffix == ".toml" else "YAML"
        raise SettingsError(f"{path} is not valid {language}: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, dict):
        raise SettingsError(f"{path} holds no keys at its top; see docs/ml-team/trying.md")
    return loaded


def _yaml(text: str) -> Any:
    import yaml  # comes with the extra `client`; TOML needs no package

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _put(values: dict[str, Any], keys: list[str], value: Any) -> None:
    *sections, last = keys
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise SettingsError(f"{'.'.join(keys)}: {section} holds a value, no section")
        values = inner
    values[last] = value


def _problem(problem: dict[str, Any]) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        keys = _keys_at(problem["loc"][:-1])
        close = difflib.get_close_matches(str(problem["loc"][-1]), keys, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        return f"{key} is unknown; {hint}allowed: {', '.join(keys)}"
    if problem["type"] == "missing":
        return f"{key} is missing"
    text = str(problem["msg"]).removeprefix("Value error, ")
    if not key:
        return text
    given = problem.get("input")
    shown = f" (given: {given!r})" if isinstance(given, (str, int, float, bool)) else ""
    return f"{key}: {text[:1].lower()}{text[1:]}{shown}"


def _keys_at(location: tuple[Any, ...]) -> list[str]:
    """The keys of the section at a place."""
    if not location:
        return list(Experiment.model_fields)
    lists: dict[Any, type[SettingsGroup]] = {"curators": CuratorGroup, "releases": ReleaseGroup}
    section = lists.get(location[0]) or type(Experiment.model_fields[location[0]].default)
    return list(section.model_fields)
