"""Every way to train for a target, behind one interface: private ones, and local baselines for public stand-ins.

::

    trained = method("replay").train(Problem(extractor, classifier, loader, curator=hospital, wishes={"epsilon": 1.0}))
    trained = method("coral").train(Problem(extractor, classifier, loader, target=stand_in))
    trained.models["curator"].extractor

A private method asks one curator or a `Federation`; a local baseline sees a public stand-in for the target. To plug in
another method, add a `Method` to `METHODS`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from public_client.curator.stub import Curator
from public_client.data.accuracy import features
from public_client.data.checks import checked
from public_client.data.devices import resolve_device
from public_client.data.progress import reporting
from public_client.data.source import Batches, collect
from public_client.methods.baselines import PENALTIES, train_local
from public_client.plans.run_plan import RunPlan
from public_client.training.adaptation import DomainAdaptation
from public_client.training.federation import Federation
from public_client.training.history import HistoryPoint
from public_client.training.logs import Recorder
from public_client.training.loop import Evaluate
from public_client.training.sites import ALONE, Model
from shared.errors import InvalidValue, SettingsError

Needs = Literal["nothing", "curator", "target"]
LOCAL = "stand-in"
"""The name of the only model of a method that asks no curator."""


@dataclass
class Problem:
    """What a method gets; it leaves the modules as they are.

    Attributes:
        extractor: source-trained.
        classifier: source-trained.
        source: labelled public batches.
        curator: of the private target, for methods that need one; or several.
        target: (n, ...) records of a public stand-in, for local baselines.
        wishes: of `Curator.plan` or `Curator.plan_critic`, beside the method's own, which they replace.
        shared: whether several sites train one model.
        steps: updates of a local baseline.
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
    curator: Curator | Federation | None = None
    target: Tensor | None = None
    wishes: Mapping[str, Any] = field(default_factory=dict)
    shared: bool = False
    steps: int = 2000
    seed: int = 0
    device: str = "auto"
    evaluate: Evaluate | Mapping[str, Evaluate] | None = None
    checkpoint: Path | None = None
    log: Recorder | None = None
    progress: bool = True


@dataclass
class Trained:
    """What a method made.

    Attributes:
        models: by site; `ALONE` for one curator, `LOCAL` where none was asked.
        plans: by site; empty where nothing was private.
        histories: by site.
        reports: what was charged at each site, and how far it came.
        adaptation: of a private method, to save its models or look at its runs.
    """

    models: dict[str, Model]
    plans: dict[str, RunPlan] = field(default_factory=dict)
    histories: dict[str, list[HistoryPoint]] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    adaptation: DomainAdaptation | None = None


@dataclass(frozen=True)
class Method:
    """One way to train.

    Attributes:
        name: on the command line.
        summary: one line.
        needs: a "curator", a public stand-in for the "target", or "nothing".
        wishes: what it asks of a plan.
        run: trains.
    """

    name: str
    summary: str
    needs: Needs
    run: Callable[[Method, Problem], Trained]
    wishes: Mapping[str, Any] = field(default_factory=dict)

    def train(self, problem: Problem) -> Trained:
        """Trains for the problem's target.

        Raises:
            SettingsError: the problem lacks what the method needs.
        """
        if self.needs == "curator" and problem.curator is None:
            raise SettingsError(f"method {self.name} needs a curator; give one, or rehearse with a public stand-in")
        if self.needs == "target" and problem.target is None:
            raise SettingsError(
                f"method {self.name} is a local baseline and needs the target's records: it is for public stand-ins, "
                "never for a curator's"
            )
        return self.run(self, problem)


def _aligned(method: Method, problem: Problem) -> Trained:
    assert problem.curator is not None
    return _private(problem, problem.curator.plan(**_wishes(method, problem)))


def _adversarial(method: Method, problem: Problem) -> Trained:
    assert problem.curator is not None
    return _private(problem, problem.curator.plan_critic(**_wishes(method, problem)))


def _wishes(method: Method, problem: Problem) -> dict[str, Any]:
    wishes = {**method.wishes, **problem.wishes}
    if "epsilon" not in wishes:
        raise InvalidValue("epsilon is missing; say what the run may cost")
    return wishes


def _private(problem: Problem, plan: RunPlan | Mapping[str, RunPlan]) -> Trained:
    assert problem.curator is not None
    adaptation = DomainAdaptation(
        copy.deepcopy(problem.extractor),
        copy.deepcopy(problem.classifier),
        curator=problem.curator,
        plan=plan,
        shared=problem.shared,
        device=problem.device,
        seed=problem.seed,
        source_epochs=0,
    )
    adaptation.fit(
        problem.source,
        evaluate=problem.evaluate,
        checkpoint=problem.checkpoint,
        log=problem.log,
        progress=problem.progress,
    )
    return Trained(
        models={name: adaptation.model(name) for name in adaptation.sites},
        plans={name: site.plan for name, site in adaptation.sites.items()},
        histories={name: site.history for name, site in adaptation.sites.items()},
        reports=adaptation.reports,
        adaptation=adaptation,
    )


def _local(method: Method, problem: Problem) -> Trained:
    assert problem.target is not None
    device = resolve_device(problem.device)
    extractor, classifier = (copy.deepcopy(m).to(device) for m in (problem.extractor, problem.classifier))
    torch.manual_seed(problem.seed)  # of a critic's first weights
    generator = torch.Generator().manual_seed(problem.seed)
    batches = checked(problem.source, extractor, classifier, device=device)
    dimension = features(extractor, collect(batches, most=1).images.to(device)).shape[1]
    penalty = PENALTIES[method.name](dimension, generator)
    with reporting(f"non-private {method.name}", problem.steps, shown=problem.progress) as bar:
        train_local(
            extractor, classifier, batches, problem.target, penalty,
            steps=problem.steps, generator=generator, device=device, bar=bar,
        )  # fmt: skip
    return Trained(models={LOCAL: Model(extractor, classifier)})


def _nothing(_: Method, problem: Problem) -> Trained:
    device = resolve_device(problem.device)
    extractor, classifier = (copy.deepcopy(m).to(device) for m in (problem.extractor, problem.classifier))
    return Trained(models={LOCAL: Model(extractor.eval(), classifier.eval())})


METHODS = (
    Method("source-only", "no adaptation: the source-trained model as it is", "nothing", _nothing),
    Method(
        "replay",
        "one release of quantile coefficients, replayed (the default)",
        "curator",
        _aligned,
        {"release": "quantiles", "parameters": "none"},
    ),
    Method(
        "adapter",
        "a target-side adapter, trained by sanitized gradients",
        "curator",
        _aligned,
        {"release": "quantiles", "parameters": "adapters"},
    ),
    Method(
        "quantiles",
        "quantile coefficients with all weights, both sides",
        "curator",
        _aligned,
        {"release": "quantiles", "parameters": "all"},
    ),
    Method(
        "rows",
        "the DP-SWD paper's Algorithm 2: rows, all weights, both sides",
        "curator",
        _aligned,
        {"release": "rows", "parameters": "all"},
    ),
    Method(
        "dp-dann",
        "a target-side adapter against a domain critic, by sanitized gradients (DANN)",
        "curator",
        _adversarial,
    ),
    Method("swd", "local baseline, not private: sliced Wasserstein distance", "target", _local),
    Method("dann", "local baseline, not private: domain-adversarial training", "target", _local),
    Method("coral", "local baseline, not private: distance of covariances", "target", _local),
)


def method_names() -> tuple[str, ...]:
    """Every method that can be trained here."""
    return tuple(m.name for m in METHODS)


def method(name: str) -> Method:
    """The method of this name.

    Raises:
        InvalidValue: there is none.
    """
    for found in METHODS:
        if found.name == name:
            return found
    raise InvalidValue(f"there is no method {name!r}; allowed: {', '.join(method_names())}")


__all__ = ["ALONE", "LOCAL", "METHODS", "Method", "Problem", "Trained", "method", "method_names"]
