"""An experiment as one file: data, source training, method, privacy, curators, outputs, seeds. TOML or YAML.

Every key has a type and a range; whatever is wrong is named by its path (``privacy.epsilon``), all of it at once. Paths
in a file are relative to the file. The command line's options replace single keys.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from shared.errors import SettingsError

Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(_Section):
    """The public source, and for rehearsals the public original of the target."""

    task: str = Field(default="digits", description="A ready task: digits, mnist-usps or usps-mnist.")
    geometry: Literal["stretched", "framed"] = Field(default="stretched", description="How USPS becomes 28 x 28.")
    folder: Path | None = Field(default=None, description="With mnist.npz and usps16.npz; by default OpenML's copies.")
    source: Path | None = Field(
        default=None,
        description="Instead of a task: an .npz with x (n, ...) float32 and y (n,) labels, the public source.",
    )
    target: Path | None = Field(
        default=None,
        description="Beside source: an .npz like it, a public stand-in for rehearsals and local baselines.",
    )


class Network(_Section):
    """What is trained."""

    factory: str | None = Field(
        default=None,
        description="module:function that returns (extractor, classifier); by default a ready network by the shape of "
        "the records. Your own code, run on your machine.",
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
    )


class Source(_Section):
    """Source-only training."""

    epochs: int | None = Field(default=None, ge=0, description="Passes; by default about 900 updates.")
    batch_size: Count | None = Field(
        default=None, description="Labelled records in one batch; by default 128, or 64 of fewer than 2000 records."
    )


class MethodSection(_Section):
    """How the model is adapted."""

    name: str | None = Field(
        default=None, description="One of dpswd-client train --list-methods; by default what privacy's keys ask for."
    )
    shared: bool = Field(default=False, description="Several curators train one model instead of one each.")
    steps: Count = Field(default=2000, description="Updates of a local baseline (swd, dann, coral).")


class Privacy(_Section):
    """What the run may cost, and the recipe's numbers; what is left out is the recipe's own choice."""

    epsilon: Positive = Field(default=1.0, description="What the run may cost at each curator.")
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        default=1e-5, description="Of a rehearsal's or mock's budget."
    )
    budget: Positive | None = Field(
        default=None, description="Epsilon of a rehearsal's or mock's budget; epsilon by default."
    )
    steps: Count | None = Field(default=None, description="T.")
    batch_size: Count | None = Field(default=None, description="b.")
    directions: Count | None = Field(default=None, description="k.")
    release: Literal["quantiles", "rows"] | None = Field(default=None, description="Overrides the method's release.")
    parameters: Literal["none", "adapters", "all"] | None = Field(
        default=None, description="Overrides what is adapted."
    )
    coefficients: Count | None = Field(default=None, description="L of each direction.")
    adapter: Literal["auto", "warp", "channels", "features", "low-rank", "monotone"] | None = Field(
        default=None, description="Kind of the target-side adapter."
    )
    adapter_rank: Count | None = Field(default=None, description="Of a low-rank adapter.")
    adapter_knots: Annotated[int, Field(ge=2)] | None = Field(
        default=None, description="Of each column of a monotone adapter."
    )
    gradient_share: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        default=None, description="Part of a step's price that pays for the gradient."
    )
    clip_norm: Positive | None = Field(default=None, description="C, the largest norm of one record's gradient.")
    target_norm: Positive | None = Field(default=None, description="Norm of source features after the public map.")
    source_records: Count | None = Field(
        default=None, description="Public records that are compared with the private ones."
    )
    learning_rate: Positive | None = Field(default=None, description="Of the alignment, at its start.")
    averaging: Annotated[float, Field(ge=0.0, lt=1.0)] | None = Field(
        default=None, description="Decay of the weights' average."
    )
    alignment_weight: Positive | None = Field(default=None, description="Of the distance beside the class loss.")
    tuning_steps: Count | None = Field(default=None, description="Updates on public records after a replayed fit.")

    def wishes(self) -> dict[str, Any]:
        """Arguments of `Curator.plan`, or of `Curator.plan_critic`; what is left out is the plan's own choice."""
        return self.model_dump(exclude={"delta", "budget"}, exclude_none=True)


class CuratorSection(_Section):
    """One hospital."""

    address: str = Field(description="host:port.", pattern=r"^.+:\d+$")
    credentials: Path = Field(description="Directory with ca.crt, client.crt, client.key.")
    name: str | None = Field(
        default=None, pattern=_NAME, description="The team's name for it; by default curator-1 and so on."
    )
    server_name: str | None = Field(default=None, description="The name in the curator's certificate, if it differs.")
    weight: Positive = Field(default=1.0, description="In a model that several curators train together.")
    epsilon: Positive | None = Field(default=None, description="Instead of privacy.epsilon.")
    steps: Count | None = Field(default=None, description="Instead of privacy.steps.")
    batch_size: Count | None = Field(default=None, description="Instead of privacy.batch_size.")


class Rehearsal(_Section):
    """Where there is no curator: hospitals on this machine, from public data."""

    hospitals: Count = Field(default=1, description="Among how many the stand-in's records are dealt.")


class DryRun(_Section):
    """What a mock curator imitates."""

    enabled: bool = Field(default=False, description="Asks no server and spends nothing; accuracy means nothing.")
    descriptions: list[Path] = Field(
        default=[], description="Output of dpswd-client describe --format json, one for each curator."
    )
    records: Count | None = Field(default=None, description="n, without a description; by default the stand-in's.")


class Output(_Section):
    """What is written."""

    save: Path | None = Field(
        default=None, description="The adapted model; for several sites or seeds, their names are added."
    )
    checkpoint: Path | None = Field(default=None, description="Directory that survives a killed client.")
    resume: bool = Field(default=False, description="Continues the run in checkpoint.")
    log_dir: Path | None = Field(default=None, description="TensorBoard and CSV logs.")
    plots: Path | None = Field(default=None, description="Directory for PNG plots.")


class Experiment(_Section):
    """The whole file."""

    name: str = Field(default="experiment", description="For titles and logs.")
    seeds: list[int] = Field(default=[0], min_length=1, description="One training for each.")
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="Where to compute.")
    data: Data = Data()
    network: Network = Network()
    source: Source = Source()
    method: MethodSection = MethodSection()
    privacy: Privacy = Privacy()
    curators: list[CuratorSection] = Field(default=[], description="The hospitals; none for a rehearsal.")
    rehearsal: Rehearsal = Rehearsal()
    dry_run: DryRun = DryRun()
    output: Output = Output()

    @field_validator("curators")
    @classmethod
    def _distinct(cls, curators: list[CuratorSection]) -> list[CuratorSection]:
        names = [name_of(curator, index) for index, curator in enumerate(curators)]
        if len(set(names)) != len(names):
            raise ValueError(f"have the names {', '.join(names)}; each must be given once")
        return curators

    @model_validator(mode="after")
    def _together(self) -> Experiment:
        if self.output.resume and self.output.checkpoint is None:
            raise ValueError("output.resume needs output.checkpoint, the directory of the run")
        if self.output.checkpoint is not None and len(self.seeds) > 1:
            raise ValueError("output.checkpoint holds one training; give one seed, or leave the checkpoint out")
        descriptions = self.dry_run.descriptions
        if len(descriptions) > 1 and len(descriptions) != max(1, len(self.curators)):
            raise ValueError(
                f"dry_run.descriptions has {len(descriptions)} files for {max(1, len(self.curators))} curators"
            )
        return self

    @property
    def method_name(self) -> str:
        """The method, by name or by what privacy's keys ask for: replay, unless they ask for an iteration."""
        if self.method.name is not None:
            return self.method.name
        asked = self.privacy
        if asked.release == "rows" and asked.parameters in (None, "all"):
            return "rows"
        iterated = asked.steps is not None or asked.batch_size is not None
        parameters = asked.parameters or ("adapters" if iterated else "none")
        return {"adapters": "adapter", "all": "quantiles", "none": "replay"}[parameters]

    def to_yaml(self) -> str:
        """The experiment with all its defaults, as a file that reads back to itself."""
        import yaml

        text: str = yaml.safe_dump(json.loads(self.model_dump_json(exclude_none=True)), sort_keys=False)
        return text


def name_of(curator: CuratorSection, index: int) -> str:
    """The curator's name in reports, logs and file names."""
    return curator.name or f"curator-{index + 1}"


def read_experiment(path: Path | None, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Reads an experiment file and replaces single keys of it.

    Args:
        path: .toml, .yaml or .yml; None for the defaults.
        changes: values by their path, such as ``{"privacy.epsilon": 0.5}``.

    Raises:
        SettingsError: the file cannot be read, or keys are unknown or out of range; each is named by its path.
    """
    values = {} if path is None else _parsed(path)
    for key, value in (changes or {}).items():
        _put(values, key.split("."), value)
    try:
        made = Experiment.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_explained(error, path)) from error
    return made if path is None else _beside(made, path.parent, changes or {})


def _parsed(path: Path) -> dict[str, Any]:
    readers: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".yaml": _yaml, ".yml": _yaml}
    reader = readers.get(path.suffix)
    kind = "TOML" if path.suffix == ".toml" else "YAML"
    if reader is None:
        raise SettingsError(f"{path} must end in .toml, .yaml or .yml")
    try:
        loaded = reader(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise SettingsError(f"{path} is not valid {kind}: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, dict):
        raise SettingsError(f"{path} holds no keys at its top; see docs/ml-team.md for an example")
    return loaded


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _put(values: dict[str, Any], keys: list[str], value: Any) -> None:
    *places, last = keys
    for place in places:
        inner = values.setdefault(place, {})
        if not isinstance(inner, dict):
            raise SettingsError(f"{'.'.join(keys)}: {place} holds a value, no section")
        values = inner
    values[last] = value


def _explained(error: ValidationError, path: Path | None) -> str:
    """Every problem with its key's path, what was given and what is allowed."""
    where = f"{path}: " if path is not None else ""
    return where + "; ".join(_problem(dict(problem)) for problem in error.errors())


def _problem(problem: dict[str, Any]) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = _keys_at(problem["loc"][:-1])
        close = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        return f"{place} is unknown; {hint}allowed: {', '.join(known)}"
    if problem["type"] == "missing":
        return f"{place} is missing"
    text = str(problem["msg"]).removeprefix("Value error, ")
    if not place:
        return text
    given = problem.get("input")
    shown = f" (given: {given!r})" if isinstance(given, (str, int, float, bool)) else ""
    return f"{place}: {text[:1].lower()}{text[1:]}{shown}"


def _keys_at(location: tuple[Any, ...]) -> list[str]:
    """The keys of the section at a place."""
    section: type[BaseModel] = Experiment
    for part in location:
        if isinstance(part, int):
            continue
        section = _SECTIONS.get(str(part), section)
    return list(section.model_fields)


_SECTIONS: Mapping[str, type[BaseModel]] = {
    "data": Data,
    "network": Network,
    "source": Source,
    "method": MethodSection,
    "privacy": Privacy,
    "curators": CuratorSection,
    "rehearsal": Rehearsal,
    "dry_run": DryRun,
    "output": Output,
}


def _beside(made: Experiment, folder: Path, changes: Mapping[str, Any]) -> Experiment:
    """The experiment with relative paths of the file read from the file's folder; the command line's stay."""

    def moved(section: BaseModel, prefix: str) -> BaseModel:
        fresh = {
            key: folder / value
            for key in type(section).model_fields
            if isinstance(value := getattr(section, key), Path) and f"{prefix}.{key}" not in changes
        }
        return section.model_copy(update=fresh)

    update: dict[str, Any] = {name: moved(getattr(made, name), name) for name in ("data", "output")}
    if "curators" not in changes:
        update["curators"] = [moved(curator, "curators") for curator in made.curators]
    if "dry_run.descriptions" not in changes:
        descriptions = [folder / path for path in made.dry_run.descriptions]
        update["dry_run"] = made.dry_run.model_copy(update={"descriptions": descriptions})
    return made.model_copy(update=update)
