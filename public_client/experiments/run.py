"""Runs experiments: loads the data, trains on the source, adapts by each method, writes what was asked for.

::

    task = load_data(experiment)
    source = train_source_model(experiment, task, seed=0)
    with connected_hospitals(experiment, task) as hospitals:
        result = adapt(experiment, task, source, hospitals, seed=0)

`run` does this for every seed and every method. Without curators the target's public original is given to hospitals on
this machine; a dry run asks mock curators, which are no process and hold no records.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.federation import Federation
from dpswd.public_client.data.accuracy import accuracy
from dpswd.public_client.data.datasets import Labelled, Task
from dpswd.public_client.experiments.approaches import CONTROL, LOCAL, Trained, asks_hospital, method_of, unasked
from dpswd.public_client.experiments.connect import connected_hospitals, dealt, published, site_names
from dpswd.public_client.experiments.file import LADDER, Experiment
from dpswd.public_client.experiments.start import (
    SourceModel,
    aligned,
    declared,
    load_data,
    own_target,
    require_alike,
    train_source_model,
)
from dpswd.public_client.ladder.adapt import adapt as climb
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.plans.measured import BATTERIES, modality_of
from dpswd.public_client.testing.mock import MockCurator
from dpswd.public_client.tools.trackers import TrackedLog
from dpswd.public_client.training.checkpoint import begun_in
from dpswd.public_client.training.logs import TrainingLog
from dpswd.public_client.training.loop import Evaluate
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.errors import ProtocolError, SettingsError
from dpswd.shared.devices import resolve_device
from dpswd.shared.protocol.contract import DataContract

_logged = logging.getLogger(__name__)
_PROBE = bytes(1 << 20)  # more than a ready network's model and checkpoint take together


@dataclass
class Result:
    """What one method gave with one seed.

    Attributes:
        seed: of the client's random choices.
        method: its name.
        source_only: accuracy on the target before, percent; NaN where it cannot be known.
        control: accuracy of the default's tuning without a release, percent; NaN where it cannot be known or was not
            wanted.
        accuracies: on the target afterwards, by site; NaN where it cannot be known.
        trained: models, plans and reports.
        budgets: spent and remaining epsilon, by site.
        charges: what a dry run would have been charged, by site.
        seconds: wall-clock of the adaptation.
        files: that were written.
    """

    seed: int
    method: str
    source_only: float
    control: float
    accuracies: dict[str, float]
    trained: Trained
    budgets: dict[str, dict[str, float]]
    charges: dict[str, list[str]]
    seconds: float
    files: list[Path] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not known is null."""
        own = ("seed", "method", "budgets", "charges", "seconds")
        return {name: getattr(self, name) for name in own} | {
            "source_only": _number(self.source_only),
            "control": _number(self.control),
            "accuracy": {name: _number(value) for name, value in self.accuracies.items()},
            "sites": self.trained.reports,
            "files": [str(file) for file in self.files],
        }


def run(experiment: Experiment, *, progress: bool = True) -> list[Result]:
    """Trains by the experiment's method, once for each seed.

    Args:
        experiment: what to run.
        progress: shows bars on standard error.

    Returns:
        The results by seed.

    Raises:
        SettingsError: the parts of the experiment do not fit together.
    """
    check(experiment)
    task = load_data(experiment)
    _require_promise(experiment, task)
    task = _compared(experiment, task)
    results = []
    prepared = next(iter(published(experiment).values())).load_extractor if experiment.releases else None
    for seed in experiment.seeds:
        source = train_source_model(experiment, task, seed=seed, prepared=prepared, progress=progress)
        control = control_accuracy(experiment, task, source, seed=seed, progress=progress)
        with connected_hospitals(experiment, task) as hospitals:
            results.append(adapt(experiment, task, source, hospitals, seed=seed, control=control, progress=progress))
    return results


def _require_promise(experiment: Experiment, task: Task) -> None:
    """Refuses a charge that has most often changed nothing, unless it is wished all the same.

    Raises:
        SettingsError: more than half of the measured runs on such records left the model as it was.
    """
    modality = modality_of(task.image_shape)
    battery = BATTERIES.get(modality) if experiment.method.name == Replay.name else None
    excused = experiment.dry_run.enabled or experiment.output.resume or experiment.privacy.yes
    if experiment.curators and not excused and battery is not None and 2 * battery.retained > battery.cells:
        raise SettingsError(
            f"{battery.retained} of {battery.cells} measured runs of {Replay.name} on {modality} were charged and left "
            "the model as it was. Leave the method out (the ladder asks less first), or give --yes; nothing was charged"
        )


def _compared(experiment: Experiment, task: Task) -> Task:
    """The source by the hospitals' names, held to what they declare of their records before it is trained on; free.

    Sites that do not answer have their say when they are asked for the run.

    Raises:
        DataInvalid: see `require_alike`.
        ProtocolError: no hospital can be used.
    """
    if experiment.rehearsed or (experiment.output.resume and not (task.columns or task.class_names)):
        return task
    with connected_hospitals(experiment, task) as hospitals:
        described = {} if hospitals is None else hospitals.describe()
    task = aligned(experiment, task, described)
    if not experiment.output.resume:
        require_alike(experiment, task, described)
    return task


def check(experiment: Experiment) -> None:
    """Finds what would end an experiment later, before anything is trained or charged.

    Raises:
        SettingsError: method and curators do not fit, or an output cannot be written.
    """
    name, output = experiment.method.name, experiment.output
    asks, climbs = asks_hospital(name), name == LADDER
    if asks and not climbs:
        method_of(name, experiment.method.settings)
    elif experiment.method.settings:
        raise SettingsError(
            f"method.settings: {name} has none; leave them out, or name a method that has (--method replay)"
        )
    if climbs and (sized := [key for key in ("steps", "batch_size") if key in _wishes(experiment)]):
        raise SettingsError(
            f"privacy.{sized[0]}: the ladder sizes its runs itself; leave it out, or name a method (--method replay)"
        )
    if climbs and experiment.method.shared:
        raise SettingsError("method.shared: the ladder asks each hospital by itself; leave it out, or name a method")
    if not climbs and experiment.privacy.evaluate_epsilon is not None:
        raise SettingsError(
            f"privacy.evaluate_epsilon: {name} compares nothing; leave the method out (the ladder compares what it "
            "changed with your model), or evaluate both models afterwards (dpswd-client evaluate)"
        )
    if output.save is not None and not asks:
        raise SettingsError(f"output.save keeps models that curators paid for; {name} asks none, without a plan")
    if (directory := output.checkpoint) is not None:
        begun = begun_in(directory)
        if begun != output.resume:
            state = "holds no run to resume" if output.resume else "holds a run already; continue it with --resume"
            raise SettingsError(f"{directory} {state}, or choose another directory")
    for key in ("save", "checkpoint", "log_dir"):
        if (path := getattr(output, key)) is not None:
            _check_writable(key, path, path.parent if key == "save" else path)


def adapt(
    experiment: Experiment,
    task: Task,
    source: SourceModel,
    hospitals: Federation | None,
    *,
    seed: int,
    control: float = math.nan,
    progress: bool = True,
) -> Result:
    """Trains once by the experiment's method, and writes the experiment's outputs; the source model stays as it is.

    Args:
        experiment: a checked experiment.
        task: its data.
        source: the start.
        hospitals: `connected_hospitals`.
        seed: of the client's random choices.
        control: accuracy of the same tuning without a release, to be shown beside the result.
        progress: shows bars.

    Raises:
        BudgetExhausted: no hospital admits its plan; nothing was spent.
    """
    public = experiment.rehearsed
    evaluate = _evaluations(experiment, task) if public else {}
    begun = time.monotonic()
    with _log(experiment, seed) as log:
        trained = _trained(
            experiment, source, hospitals, declared(experiment, task),
            seed=seed, evaluate=evaluate or None, log=log, progress=progress,
        )  # fmt: skip
    seconds = time.monotonic() - begun
    result = Result(
        seed=seed,
        method=experiment.method.name,
        source_only=source.accuracy,
        control=control,
        accuracies={
            name: evaluate[name](model.extractor, model.classifier) if public else math.nan
            for name, model in trained.models.items()
        },
        trained=trained,
        budgets=_budgets(hospitals),
        charges={
            name: [str(charge) for charge in hospital.curator.charges]
            for name, hospital in (hospitals.hospitals if hospitals is not None else {}).items()
            if isinstance(hospital.curator, MockCurator)
        },
        seconds=seconds,
    )
    ending = f"-seed-{seed}" if len(experiment.seeds) > 1 else ""
    if (path := experiment.output.save) is not None and not experiment.dry_run.enabled:
        result.files += trained.save(path.with_stem(path.stem + ending))
    return result


def _trained(
    experiment: Experiment, source: SourceModel, hospitals: Federation | None, contract: DataContract, *, seed: int,
    evaluate: Mapping[str, Evaluate] | None, log: TrainingLog | None, progress: bool,
) -> Trained:  # fmt: skip
    """Trains by the experiment's method."""
    name, wishes, device = experiment.method.name, _wishes(experiment), experiment.device
    if not asks_hospital(name):
        steps = _control_steps(experiment) or Replay().tuning_steps
        return Trained({LOCAL: unasked(name, source, steps=steps, seed=seed, device=device, progress=progress)})
    assert hospitals is not None, "connected, since the method asks"
    extractor, classifier = copy.deepcopy((source.extractor, source.classifier))
    alike: dict[str, Any] = {"contract": contract, "device": device, "seed": seed}
    watching: dict[str, Any] = {"evaluate": evaluate, "log": log, "progress": progress}
    if name == LADDER:
        limits = {"epsilon": wishes["epsilon"], "evaluate_epsilon": experiment.privacy.evaluate_epsilon}
        start, directory = Model(extractor, classifier), experiment.output.checkpoint
        return Trained.of(climb(start, source.loader, hospitals, directory=directory, **limits, **alike, **watching))
    plan = hospitals.plan(method_of(name, experiment.method.settings), **wishes)
    shared = experiment.method.shared
    made = DomainAdaptation(
        extractor, classifier, hospital=hospitals, plan=plan, shared=shared, source_epochs=0, **alike
    )
    return Trained.of(made.fit(source.loader, checkpoint=experiment.output.checkpoint, **watching))


def _budgets(hospitals: Federation | None) -> dict[str, dict[str, float]]:
    """What is left, by site; nothing of a site that stopped meanwhile, for what was trained is kept all the same."""
    try:
        described = {} if hospitals is None else hospitals.describe()
    except ProtocolError as error:
        _logged.warning("what is left of the budgets is not known: %s", error)
        described = {}
    return {name: {"spent": own.spent, "remaining": own.remaining} for name, own in described.items()}


def _control_steps(experiment: Experiment) -> int:
    """As many updates as the replay would make, unless the experiment says otherwise."""
    if experiment.method.control_steps is not None:
        return experiment.method.control_steps
    return int(experiment.method.settings.get("tuning_steps", Replay().tuning_steps))


def control_accuracy(experiment: Experiment, task: Task, source: SourceModel, *, seed: int, progress: bool) -> float:
    """Accuracy of the control on a rehearsal's stand-in, percent; NaN where nothing private is put beside it."""
    steps = _control_steps(experiment)
    private = asks_hospital(experiment.method.name)
    if not (experiment.rehearsed and steps and private) or own_target(experiment):  # the control is for one elsewhere
        return math.nan
    if not any(weights.requires_grad for weights in source.classifier.parameters()):  # trees are not tuned
        return math.nan
    model = unasked(CONTROL, source, steps=steps, seed=seed, device=experiment.device, progress=progress)
    return accuracy(model.extractor, model.classifier, task.target.to(resolve_device(experiment.device)))


def _check_writable(key: str, path: Path, folder: Path) -> None:
    """A file that cannot be written is found before the budget is spent on it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(_PROBE)
        refused = "a folder stands there" if key == "save" and path.is_dir() else None
        if refused is None and path.exists() and not os.access(path, os.W_OK):
            refused = "it belongs to somebody else"
    except OSError as error:
        refused = f"{error.filename or folder}: {error.strerror}"
    if refused is not None:
        raise SettingsError(
            f"output.{key} cannot be written: {path} ({refused}); nothing was charged. Mend that, or choose another"
        )


def _wishes(experiment: Experiment) -> dict[str, Any]:
    """The plan's wishes; where a curator has its own, by site."""
    wishes = experiment.privacy.wishes()
    for key in ("epsilon", "steps", "batch_size"):
        own = {name: getattr(c, key) for name, c in zip(site_names(experiment), experiment.curators, strict=False)}
        if any(value is not None for value in own.values()):
            by_site = {name: wishes.get(key) if value is None else value for name, value in own.items()}
            wishes[key] = {name: value for name, value in by_site.items() if value is not None}
    return wishes


def _evaluations(experiment: Experiment, task: Task) -> dict[str, Evaluate]:
    """The accuracy on each local hospital's own records, and on all of them for a method that asks none.

    Of a method for the team's own records it is the accuracy on those.
    """
    device = resolve_device(experiment.device)

    def on(part: Labelled) -> Evaluate:
        moved = part.to(device)
        return lambda extractor, classifier: accuracy(extractor, classifier, moved)

    if own_target(experiment):
        return dict.fromkeys(site_names(experiment), on(task.source))
    return {name: on(part) for name, part in (dealt(experiment, task.target) | {LOCAL: task.target}).items()}


def _log(experiment: Experiment, seed: int) -> AbstractContextManager[TrainingLog | None]:
    if (directory := experiment.output.log_dir) is None:
        return nullcontext()
    directory = directory / f"seed-{seed}" if len(experiment.seeds) > 1 else directory
    return TrackedLog(directory, experiment.output.track, name=experiment.name)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
