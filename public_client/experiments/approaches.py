"""Everything that an experiment can train by, under one interface: the methods, and local baselines for stand-ins.

::

    trained = approach("replay").train(Problem(extractor, classifier, loader, hospital=hospital, wishes={"epsilon": 1}))
    trained = approach("coral").train(Problem(extractor, classifier, loader, target=stand_in))
    trained.models["curator"].extractor

A private method asks one hospital or a `Federation`; a local baseline sees a public stand-in for the target.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.federation import Federation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.data.accuracy import features
from dpswd.public_client.data.checks import checked
from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.source import collect
from dpswd.public_client.experiments.baselines import PENALTIES, train_local
from dpswd.public_client.experiments.best import check_comparable, check_room, deliver_best, refuse_own_target
from dpswd.public_client.experiments.file import LADDER
from dpswd.public_client.ladder.adapt import adapt
from dpswd.public_client.ladder.adapted import AdaptedEach
from dpswd.public_client.methods import Method, Replay, method_kinds
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.replay.control import control
from dpswd.public_client.training.checkpoint import begun_in
from dpswd.public_client.training.history import HistoryPoint
from dpswd.public_client.training.logs import Recorder
from dpswd.public_client.training.loop import Evaluate
from dpswd.public_client.training.sites import ALONE, Model
from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.devices import resolve_device
from dpswd.shared.protocol.contract import DataContract

SOURCE_ONLY, CONTROL = "source-only", "control"
Needs = Literal["nothing", "hospital", "target"]
LOCAL = "stand-in"
"""The name of the only model of an approach that asks no hospital."""


@dataclass
class Problem:
    """What an approach gets; it leaves the modules as they are.

    Attributes:
        extractor: source-trained.
        classifier: source-trained.
        source: labelled public batches.
        hospital: with the private target, for methods; or several.
        target: (n, ...) records of a public stand-in, for local baselines.
        settings: of the method.
        wishes: epsilon, steps and batch_size of the plan.
        shared: whether several sites train together.
        steps: updates of a local baseline.
        control_steps: updates of the control.
        evaluate_epsilon: what a private evaluation may cost that finds the best of source-only, control and adapted
            model; None delivers the adapted one.
        contract: what the team declares of the source.
        seed: of the client's random choices.
        device: "auto", "cpu" or "cuda".
        evaluate: for curves, where labels of the target are at hand; by site where there are several.
        checkpoint: directory of a run that can be resumed.
        log: told of every step.
        progress: whether bars are shown.
    """

    extractor: nn.Module
    classifier: nn.Module
    source: Batches
    hospital: Hospital | Federation | None = None
    target: Tensor | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    wishes: Mapping[str, Any] = field(default_factory=dict)
    shared: bool = False
    steps: int = 2000
    control_steps: int = Replay().tuning_steps
    evaluate_epsilon: float | None = None
    contract: DataContract | None = None
    seed: int = 0
    device: str = "auto"
    evaluate: Evaluate | Mapping[str, Evaluate] | None = None
    checkpoint: Path | None = None
    log: Recorder | None = None
    progress: bool = True


@dataclass
class Trained:
    """What an approach made.

    Attributes:
        models: by site; `ALONE` for one hospital, `LOCAL` where none was asked.
        plans: by site; empty where nothing was private.
        histories: by site.
        reports: what was charged at each site, and how far it came.
        adaptation: of a method, to save its models or look at its runs.
        adapted: of the ladder, by site; else None.
    """

    models: dict[str, Model]
    plans: dict[str, Plan] = field(default_factory=dict)
    histories: dict[str, list[HistoryPoint]] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    adaptation: DomainAdaptation | None = None
    adapted: AdaptedEach | None = None


@dataclass(frozen=True)
class Approach:
    """One way to train.

    Attributes:
        name: on the command line.
        summary: one line.
        needs: a "hospital", a public stand-in for the "target", or "nothing".
        run: trains.
    """

    name: str
    summary: str
    needs: Needs
    run: Callable[[Approach, Problem], Trained]

    def train(self, problem: Problem) -> Trained:
        """Trains for the problem's target.

        Raises:
            SettingsError: the problem lacks what is needed.
        """
        if self.needs == "hospital" and problem.hospital is None:
            raise SettingsError(f"method {self.name} needs a curator; give one, or rehearse with a public stand-in")
        if self.needs == "target" and problem.target is None:
            raise SettingsError(
                f"method {self.name} is a local baseline and needs the target's records: it is for public stand-ins, "
                "never for a curator's"
            )
        return self.run(self, problem)


def method_of(name: str, settings: Mapping[str, Any]) -> Method:
    """The method of this name with these settings.

    Raises:
        InvalidValue: there is no such method, or a setting is unknown or out of range.
    """
    if name not in method_kinds():
        raise InvalidValue(
            f"{name} is no method with settings and a plan of its own; those are {', '.join(method_kinds())}"
        )
    return method_kinds()[approach(name).name].from_json({"name": name, **settings})


def _private(own: Approach, problem: Problem) -> Trained:
    assert problem.hospital is not None
    if "epsilon" not in problem.wishes:
        raise InvalidValue("epsilon is missing; say what the run may cost")
    if problem.evaluate_epsilon is not None:
        refuse_own_target(own.name)
    plan = problem.hospital.plan(method_of(own.name, problem.settings), **problem.wishes)
    adaptation = DomainAdaptation(
        copy.deepcopy(problem.extractor),
        copy.deepcopy(problem.classifier),
        hospital=problem.hospital,
        plan=plan,
        shared=problem.shared,
        contract=problem.contract,
        device=problem.device,
        seed=problem.seed,
        source_epochs=0,
    )
    others: dict[str, Model] = {}
    if problem.evaluate_epsilon is not None:  # all that may fail and is not paid for comes before the charge
        new = problem.checkpoint is None or not begun_in(problem.checkpoint)
        if new:
            check_room(adaptation, epsilon=problem.evaluate_epsilon)
        others = {SOURCE_ONLY: Model(problem.extractor, problem.classifier), CONTROL: _controlled(problem)}
        if new:
            check_comparable(adaptation, others, epsilon=problem.evaluate_epsilon)
    adaptation.fit(
        problem.source,
        evaluate=problem.evaluate,
        checkpoint=problem.checkpoint,
        log=problem.log,
        progress=problem.progress,
    )
    if problem.evaluate_epsilon is not None:
        deliver_best(adaptation, others, epsilon=problem.evaluate_epsilon)
    return Trained(
        models={name: adaptation.model(name) for name in adaptation.sites},
        plans={name: site.plan for name, site in adaptation.sites.items()},
        histories={name: site.history for name, site in adaptation.sites.items()},
        reports=adaptation.reports,
        adaptation=adaptation,
    )


def _climbed(_: Approach, problem: Problem) -> Trained:
    assert problem.hospital is not None
    if "epsilon" not in problem.wishes:
        raise InvalidValue("epsilon is missing; say what the ladder may cost")
    hospitals = problem.hospital if isinstance(problem.hospital, Federation) else {ALONE: problem.hospital}
    adapted = adapt(
        Model(copy.deepcopy(problem.extractor), copy.deepcopy(problem.classifier)),
        problem.source,
        hospitals,
        epsilon=problem.wishes["epsilon"],
        contract=problem.contract,
        directory=problem.checkpoint,
        device=problem.device,
        seed=problem.seed,
        evaluate_epsilon=problem.evaluate_epsilon,
        evaluate=problem.evaluate,
        log=problem.log,
        progress=problem.progress,
    )
    asked = {name: own for name, own in adapted.items() if own.lost is None}
    return Trained(
        models={name: own.model for name, own in asked.items()},
        plans={name: own.plan for name, own in asked.items()},
        histories={name: own.history for name, own in asked.items()},
        reports=[report for name, own in adapted.items() for report in own.reports(name)],
        adapted=adapted,
    )


def _local(own: Approach, problem: Problem) -> Trained:
    assert problem.target is not None
    device = resolve_device(problem.device)
    extractor, classifier = (copy.deepcopy(m).to(device) for m in (problem.extractor, problem.classifier))
    torch.manual_seed(problem.seed)  # of a critic's first weights
    generator = torch.Generator().manual_seed(problem.seed)
    batches = checked(problem.source, extractor, classifier, device=device)
    dimension = features(extractor, collect(batches, most=1).images.to(device)).shape[1]
    penalty = PENALTIES[own.name](dimension, generator)
    with reporting(f"non-private {own.name}", problem.steps, shown=problem.progress) as bar:
        train_local(
            extractor, classifier, batches, problem.target, penalty,
            steps=problem.steps, generator=generator, device=device, bar=bar,
        )  # fmt: skip
    return Trained(models={LOCAL: Model(extractor, classifier)})


def _nothing(_: Approach, problem: Problem) -> Trained:
    device = resolve_device(problem.device)
    extractor, classifier = (copy.deepcopy(m).to(device) for m in (problem.extractor, problem.classifier))
    return Trained(models={LOCAL: Model(extractor.eval(), classifier.eval())})


def _controlled(problem: Problem) -> Model:
    """The control of a problem, in evaluation mode."""
    device = resolve_device(problem.device)
    batches = checked(problem.source, problem.extractor, problem.classifier, device=device)
    return Model(
        *control(
            problem.extractor, problem.classifier, batches,
            steps=problem.control_steps, seed=problem.seed, device=device, progress=problem.progress,
        )
    )  # fmt: skip


def _control(_: Approach, problem: Problem) -> Trained:
    return Trained(models={LOCAL: _controlled(problem)})


APPROACHES = (
    Approach(LADDER, "Asks the cheapest thing that may help, and goes on while it pays.", "hospital", _climbed),
    Approach(SOURCE_ONLY, "No adaptation: the source-trained model as it is.", "nothing", _nothing),
    Approach(
        CONTROL, "The default's tuning without a release: random variation alone, no epsilon.", "nothing", _control
    ),
    *(
        Approach(name, (kind.__doc__ or "").splitlines()[0], "hospital", _private)
        for name, kind in method_kinds().items()
    ),
    Approach("swd", "Local baseline, not private: sliced Wasserstein distance.", "target", _local),
    Approach("dann", "Local baseline, not private: domain-adversarial training.", "target", _local),
    Approach("coral", "Local baseline, not private: distance of covariances.", "target", _local),
)


def approach_names() -> tuple[str, ...]:
    """Everything that can be trained here."""
    return tuple(own.name for own in APPROACHES)


def approach(name: str) -> Approach:
    """The approach of this name.

    Raises:
        InvalidValue: there is none.
    """
    for candidate in APPROACHES:
        if candidate.name == name:
            return candidate
    near = "".join(f"; did you mean {each!r}?" for each in difflib.get_close_matches(name, approach_names(), n=1))
    raise InvalidValue(f"there is no method {name!r}; allowed: {', '.join(approach_names())}{near}")
