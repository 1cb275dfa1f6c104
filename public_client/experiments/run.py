"""Runs an experiment: loads the data, trains on the source, adapts by the method, writes what was asked for.

Without curators the target's public original is given to rehearsal hospitals on this machine; a dry run asks mock
curators, which are no process and hold no records.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from public_client.curator.stub import Curator
from public_client.data.accuracy import accuracy
from public_client.data.datasets import Labelled, Task, load_task
from public_client.data.devices import resolve_device
from public_client.data.files import load_labelled, ready_network
from public_client.data.source import usual_epochs
from public_client.experiments import demo_run as experiment
from public_client.experiments import plots, report
from public_client.experiments.connect import connected_parties
from public_client.experiments.file import Experiment, name_of
from public_client.methods.alignment import Alignment
from public_client.methods.catalogue import Problem, Trained, method
from public_client.testing.mock import MockCurator
from public_client.training.federation import Federation
from public_client.training.logs import TrainingLog
from public_client.training.loop import Evaluate
from public_client.training.sites import ALONE
from shared.errors import DataInvalid, SettingsError

_SMALL_SOURCE = 2000  # records, below which batches of 128 would be a large part of the source


@dataclass
class Result:
    """What one seed gave.

    Attributes:
        seed: of the client's random choices.
        method: its name.
        source_only: accuracy on the target before, percent; NaN where it cannot be known.
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
    accuracies: dict[str, float]
    trained: Trained
    budgets: dict[str, dict[str, float]]
    charges: dict[str, list[str]]
    seconds: float
    files: list[Path] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not known is null."""
        return {
            "seed": self.seed,
            "method": self.method,
            "source_only": _known(self.source_only),
            "accuracy": {name: _known(value) for name, value in self.accuracies.items()},
            "sites": self.trained.reports,
            "budgets": self.budgets,
            "charges": self.charges,
            "seconds": self.seconds,
            "files": [str(file) for file in self.files],
        }


def run(wanted: Experiment, *, progress: bool = True) -> list[Result]:
    """Trains once for each seed.

    Args:
        wanted: a checked experiment.
        progress: shows bars on standard error.

    Raises:
        SettingsError: the parts of the experiment do not fit together.
    """
    chosen = method(wanted.method_name)
    if chosen.needs == "target" and wanted.curators:
        raise SettingsError(f"method {chosen.name} needs the target itself; it is for rehearsals without curators")
    if wanted.output.save is not None and chosen.needs != "curator":
        raise SettingsError(
            f"output.save keeps models that curators paid for; {chosen.name} is a local method, without a plan"
        )
    task = _task(wanted)
    _check_checkpoint(wanted)
    return [_one(wanted, task, seed, progress=progress) for seed in wanted.seeds]


def _one(wanted: Experiment, task: Task, seed: int, *, progress: bool) -> Result:
    chosen = method(wanted.method_name)
    public = not wanted.curators and not wanted.dry_run.enabled  # the target's labels are at hand
    source = experiment.train_source_model(
        task.source,
        target=task.target if public else None,
        epochs=_epochs(wanted, task),
        seed=seed,
        device=wanted.device,
        batch_size=_batch_size(wanted, task),
        network=lambda: _network(wanted, task),
        progress=progress,
    )
    place = resolve_device(wanted.device)
    with (
        connected_parties(wanted, task) if chosen.needs == "curator" else nullcontext(None) as connected,
        _log(wanted, seed) as log,
    ):
        evaluate = _evaluations(task, connected, place) if public else {}
        problem = Problem(
            source.extractor,
            source.classifier,
            source.loader,
            curator=connected,
            target=task.target.images if public else None,
            wishes=_wishes(wanted, connected),
            shared=wanted.method.shared,
            steps=wanted.method.steps,
            seed=seed,
            device=wanted.device,
            evaluate=evaluate or None,
            checkpoint=wanted.output.checkpoint,
            log=log,
            progress=progress,
        )
        begun = time.monotonic()
        trained = chosen.train(problem)
        seconds = time.monotonic() - begun
        result = Result(
            seed=seed,
            method=chosen.name,
            source_only=source.target,
            accuracies=_accuracies(trained, evaluate, task if public else None, place),
            trained=trained,
            budgets=_budgets(connected),
            charges=_charges(connected),
            seconds=seconds,
        )
        if not wanted.dry_run.enabled:
            result.files += _save(wanted, trained, seed)
        result.files += _plots(wanted, result, seed)
    return result


def mean_and_deviation(values: list[float]) -> str:
    """Of accuracies in percent, for a terminal."""
    if len(values) == 1:
        return f"{values[0]:.1f}%"
    return f"{statistics.mean(values):.1f}% ± {statistics.stdev(values):.1f} over {len(values)} seeds"


def _task(wanted: Experiment) -> Task:
    data = wanted.data
    if data.source is None:
        if data.target is not None:
            raise SettingsError("data.target needs data.source; without both a ready task is used")
        return load_task(data.task, geometry=data.geometry, data_dir=data.folder)
    source = load_labelled(data.source)
    target = load_labelled(data.target) if data.target is not None else None
    if target is not None and target.images.shape[1:] != source.images.shape[1:]:
        raise DataInvalid(
            f"{data.target} holds records of shape {tuple(target.images.shape[1:])}, {data.source} of "
            f"{tuple(source.images.shape[1:])}; they must be alike"
        )
    if target is None and not wanted.curators and not wanted.dry_run.enabled:
        raise SettingsError("data.source alone needs curators; for a rehearsal give data.target, a public stand-in")
    nothing = Labelled(source.images[:0], source.labels[:0])
    return Task(name=data.source.stem, source=source, target=target or nothing)


def _epochs(wanted: Experiment, task: Task) -> int:
    if wanted.source.epochs is not None:
        return wanted.source.epochs
    return usual_epochs(max(1, len(task.source) // _batch_size(wanted, task)))


def _batch_size(wanted: Experiment, task: Task) -> int:
    usual = 64 if len(task.source) < _SMALL_SOURCE else 128
    return min(wanted.source.batch_size or usual, len(task.source))


def _network(wanted: Experiment, task: Task) -> tuple[nn.Module, nn.Module]:
    """The caller's network, or a ready one."""
    if wanted.network.factory is None:
        return ready_network(task.image_shape, int(task.source.labels.max()) + 1)
    module, function = wanted.network.factory.split(":")
    try:
        extractor, classifier = getattr(import_module(module), function)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise SettingsError(
            f"network.factory {wanted.network.factory} must name a function without arguments that returns "
            f"(extractor, classifier): {error}"
        ) from error
    if not isinstance(extractor, nn.Module) or not isinstance(classifier, nn.Module):
        raise SettingsError(f"network.factory {wanted.network.factory} must return two torch modules")
    return extractor, classifier


def _check_checkpoint(wanted: Experiment) -> None:
    directory, resume = wanted.output.checkpoint, wanted.output.resume
    if directory is None:
        return
    begun = any(directory.glob("run.json")) or any(directory.glob("sites/*/run.json"))
    if begun != resume:
        state = "holds no run to resume" if resume else "holds a run already; continue it with --resume"
        raise SettingsError(f"{directory} {state}, or choose another directory")


def _wishes(wanted: Experiment, connected: Curator | Federation | None) -> dict[str, Any]:
    """The plan's wishes; where curators differ, by site."""
    wishes = wanted.privacy.wishes()
    if not isinstance(connected, Federation):
        own = wanted.curators[0] if wanted.curators else None
        for key in ("epsilon", "steps", "batch_size"):
            value = getattr(own, key, None)
            if value is not None:
                wishes[key] = value
        return wishes
    named = {name_of(curator, index): curator for index, curator in enumerate(wanted.curators)}
    for key in ("epsilon", "steps", "batch_size"):
        by_site = {n: v for n, curator in named.items() if (v := getattr(curator, key)) is not None}
        if by_site:
            common = {name: wishes[key] for name in connected if key in wishes}
            wishes[key] = common | by_site
    return wishes


def _evaluations(task: Task, connected: Curator | Federation | None, place: torch.device) -> dict[str, Evaluate]:
    """The accuracy on each rehearsal hospital's own records."""
    names = list(connected) if isinstance(connected, Federation) else [ALONE]

    def on(part: Labelled) -> Evaluate:
        return lambda extractor, classifier: accuracy(extractor, classifier, part)

    count = len(names)
    return {
        name: on(Labelled(task.target.images[i::count], task.target.labels[i::count]).to(place))
        for i, name in enumerate(names)
    }


def _accuracies(
    trained: Trained, evaluate: dict[str, Evaluate], task: Task | None, place: torch.device
) -> dict[str, float]:
    if task is None:
        return dict.fromkeys(trained.models, math.nan)
    return {
        name: evaluate[name](model.extractor, model.classifier)
        if name in evaluate
        else accuracy(model.extractor, model.classifier, task.target.to(place))
        for name, model in trained.models.items()
    }


def _budgets(connected: Curator | Federation | None) -> dict[str, dict[str, float]]:
    if connected is None:
        return {}
    described = connected.describe()
    found = described if isinstance(described, dict) else {ALONE: described}
    return {name: {"spent": d.spent, "remaining": d.remaining} for name, d in found.items()}


def _charges(connected: Curator | Federation | None) -> dict[str, list[str]]:
    found = connected.curators if isinstance(connected, Federation) else {ALONE: connected}
    return {
        name: [str(charge) for charge in curator.charges]
        for name, curator in found.items()
        if isinstance(curator, MockCurator)
    }


@contextmanager
def _log(wanted: Experiment, seed: int) -> Iterator[TrainingLog | None]:
    if wanted.output.log_dir is None:
        yield None
        return
    several = len(wanted.seeds) > 1
    with TrainingLog(wanted.output.log_dir / f"seed-{seed}" if several else wanted.output.log_dir) as log:
        yield log


def _save(wanted: Experiment, trained: Trained, seed: int) -> list[Path]:
    path = wanted.output.save
    if path is None or trained.adaptation is None:
        return []
    path.parent.mkdir(parents=True, exist_ok=True)
    if len(wanted.seeds) > 1:
        path = path.with_stem(f"{path.stem}-seed-{seed}")
    return trained.adaptation.save(path)


def _plots(wanted: Experiment, result: Result, seed: int) -> list[Path]:
    directory, trained = wanted.output.plots, result.trained
    if directory is None or not trained.histories:
        return []
    directory.mkdir(parents=True, exist_ok=True)
    ending = f"-seed-{seed}" if len(wanted.seeds) > 1 else ""
    dry = " (dry run: synthetic records)" if wanted.dry_run.enabled else ""
    title = f"{wanted.name}: {result.method}{dry}"
    written = [directory / f"epsilon{ending}.png"]
    drawn = {name: points for name, points in trained.histories.items() if points and name in trained.plans}
    if not drawn:
        return []
    charged = {report["site"]: report["charged_epsilon"] for report in trained.reports}
    plots.plot_epsilon(written[0], drawn, trained.plans, charged=charged, title=title)
    if not math.isnan(result.source_only):
        written.append(directory / f"accuracy{ending}.png")
        curves = [report.Curve(name, points) for name, points in drawn.items()]
        report.plot(written[-1], title=title, curves=curves, levels=[("source-only", result.source_only)])
    sites = trained.adaptation.sites if trained.adaptation is not None else {}
    for name, site in sites.items():
        if isinstance(site.opened, Alignment) and site.opened.first is not None:
            written.append(directory / f"features{'' if name == ALONE else '-' + name}{ending}.png")
            plots.plot_features(written[-1], site.opened, title=f"{title}, {name}")
    return written


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
