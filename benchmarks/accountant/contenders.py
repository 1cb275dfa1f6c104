"""The same problems put to autodp and to dp_accounting, in their own terms."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import dp_accounting
import numpy as np
from autodp.autodp_core import Mechanism
from autodp.calibrator_zoo import eps_delta_calibrator
from autodp.mechanism_zoo import ExactGaussianMechanism
from autodp.transformer_zoo import AmplificationBySampling, Composition
from dp_accounting import pld, rdp

from dpswd.shared.core.privacy.events import RunEvent

_TABLE = 512


def curve_of(run: RunEvent) -> Callable[[float], float]:
    """The exact curve of one full-batch release as autodp wants it; whole orders from a table, which is quick."""
    law = run.step.shift()
    table = law.renyi(np.arange(2.0, _TABLE + 1.0)).tolist()

    def renyi(order: float) -> float:
        if math.isinf(order):
            return math.inf
        if order <= 1.0:
            return law.mean / 2.0
        return table[int(order) - 2] if order <= _TABLE and float(order).is_integer() else float(law.renyi(order))

    return renyi


def autodp_step(run: RunEvent, name: str = "step") -> Any:
    """One sampled step as an autodp mechanism (Wang, Balle, Kasiviswanathan 2019, Theorem 27)."""
    mechanism: Any = Mechanism()
    mechanism.name, mechanism.params, mechanism.neighboring = name, {}, "replace_one"
    mechanism.propagate_updates(curve_of(run), "RDP")
    if run.step.batch == run.step.records:
        return mechanism
    return AmplificationBySampling(PoissonSampling=False)(mechanism, run.step.sampling_ratio, improved_bound_flag=True)


def autodp_compose(steps: Sequence[RunEvent], delta: float) -> float:
    """Epsilon of runs of different steps, by autodp's composition."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mechanisms = [autodp_step(run, f"step {index}") for index, run in enumerate(steps)]
        composed = Composition()(mechanisms, [run.steps for run in steps])
        return float(composed.get_approxDP(delta))


def autodp_sigma(
    make_run: Callable[[float], RunEvent], *, epsilon: float, delta: float, bounds: tuple[float, float]
) -> float:
    """autodp's own calibrator, given a bracket around the answer."""

    class Run(Mechanism):  # type: ignore[misc]  # autodp is untyped
        def __init__(self, sigma: float, name: str = "run") -> None:
            Mechanism.__init__(self)
            run = make_run(float(sigma))
            composed = Composition()([autodp_step(run)], [run.steps])
            self.name, self.params, self.sigma = name, {"sigma": sigma}, float(sigma)
            self.propagate_updates(composed.RenyiDP, "RDP")

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(eps_delta_calibrator()(Run, epsilon, delta, list(bounds)).sigma)


def autodp_gaussian_sigma(*, epsilon: float, delta: float, steps: int, bounds: tuple[float, float]) -> float:
    """T plain Gaussian releases of sensitivity 1: with sigma / sqrt(T) they are one."""

    class Run(ExactGaussianMechanism):  # type: ignore[misc]  # autodp is untyped
        def __init__(self, sigma: float, name: str = "run") -> None:
            ExactGaussianMechanism.__init__(self, float(sigma) / math.sqrt(steps), name=name)
            self.sigma = float(sigma)

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(eps_delta_calibrator()(Run, epsilon, delta, list(bounds)).sigma)


def dp_accounting_event(run: RunEvent, noise_multiplier: float) -> Any:
    """One step with a plain Gaussian: sensitivity 1, on the full batch or sampled without replacement."""
    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    if run.step.batch == run.step.records:
        return gaussian
    return dp_accounting.SampledWithoutReplacementDpEvent(run.step.records, run.step.batch, gaussian)


def renyi_accountant() -> Any:
    """dp_accounting's Renyi accountant at its default orders, for replaced records."""
    return rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)


def pld_accountant() -> Any:
    """dp_accounting's PLD accountant. A Gaussian's pair is the same for every relation that moves it by 1."""
    return pld.PLDAccountant()


def dp_accounting_sigma(
    make_run: Callable[[float], RunEvent],
    *,
    epsilon: float,
    delta: float,
    bounds: tuple[float, float],
    accountant: Callable[[], Any],
) -> float:
    """dp_accounting's own calibrator, given a bracket around the answer; its tolerance 1e-6 is ours."""

    def event(sigma: float) -> Any:
        run = make_run(sigma)
        return dp_accounting.SelfComposedDpEvent(dp_accounting_event(run, sigma), run.steps)

    bracket = dp_accounting.ExplicitBracketInterval(*bounds)
    return float(dp_accounting.calibrate_dp_mechanism(accountant, event, epsilon, delta, bracket, tol=bounds[1] * 1e-6))


def dp_accounting_compose(steps: Sequence[tuple[RunEvent, float]], delta: float) -> float:
    """Epsilon of runs of different plain Gaussian steps (a run and its noise multiplier), by dp_accounting."""
    accountant = renyi_accountant()
    for run, noise in steps:
        accountant.compose(dp_accounting_event(run, noise), run.steps)
    return float(accountant.get_epsilon(delta))
