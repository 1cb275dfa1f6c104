"""docs/privacy/accountant-speed.md: how fast the accountant is, beside autodp and dp_accounting in the same process.

Every figure is processor time of this process on one thread, so that other jobs on the machine count little; the
contenders take turns, and the median of several turns counts. Caches are emptied before every turn of ours where
"cold" is said. The ratios matter, not the times.
"""

from __future__ import annotations

import functools
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.accountant import contenders
from benchmarks.accountant.memory import MEASURED
from benchmarks.accountant.settings import SETTINGS, Setting, markdown_table
from benchmarks.records import Row, Rows
from dpswd.shared.accounting import profile
from dpswd.shared.accounting.amplification import renyi_curve
from dpswd.shared.accounting.bounds import Bound
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.accounting.conversion import epsilon_of
from dpswd.shared.accounting.crosscheck import check_with_autodp
from dpswd.shared.accounting.pricing import filter_for
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.curves import ShiftLaw
from dpswd.shared.core.privacy.events import RunEvent
from dpswd.shared.core.privacy.filter import PrivacyFilter

EPSILON = 3.0
MNIST_USPS = SETTINGS[1]
GAUSSIAN = replace(MNIST_USPS, name="plain Gaussian", features=1, directions=1)
FULL_BATCH = replace(GAUSSIAN, name="plain Gaussian, full batch", batch=GAUSSIAN.records, steps=1_000)

LEDGER = "the ledger's charges"
TURNS = 5
COMPOSED = 40_000
OURS_MEASURED, THEIRS_MEASURED, CHEAP_MEASURED = (400, 4_000, COMPOSED), (6, 12, 24), (500, 1_000, 2_000)
"""Numbers of distinct steps that are really composed; theirs are extrapolated to 40,000 from the last one."""

COMPOSED_TURNS = 3
"""Turns of the contenders that are extrapolated; ours compose all 40,000 steps once."""

ORDER = 128
"""Largest order of our Theorem 27 curve where it is composed: above autodp's best order here."""


@dataclass(frozen=True)
class Ratio:
    """One comparison; times in seconds."""

    problem: str
    ours: str
    theirs: str
    our_time: float
    their_time: float
    target: float | None

    @property
    def ratio(self) -> float:
        return self.their_time / self.our_time

    @property
    def missed(self) -> bool:
        return self.target is not None and self.ratio < self.target

    @property
    def charged(self) -> bool:
        """Whether a curator prices so."""
        return "`auto`" in self.ours or self.ours == LEDGER

    @property
    def row(self) -> Row:
        """To be written."""
        return {"ours_s": self.our_time, "theirs_s": self.their_time, "ratio": self.ratio}

    def line(self) -> list[str]:
        times = (_duration(self.our_time), _duration(self.their_time))
        shown = f"**{self.ratio:.3g}**" if self.missed else f"{self.ratio:.3g}"
        return [self.problem, self.ours, times[0], self.theirs, times[1], shown]


def write(path: Path, rows: Rows) -> None:
    """Measure everything in this one process, print it, and write the page with what a curator runs and what missed."""
    calibration, composition, linearity = [], [], ""

    def measured() -> Row:
        nonlocal linearity
        calibration.extend(_calibration())
        ratios_of_all, linearity = _composition()
        composition.extend(ratios_of_all)
        ratios = {f"{one.problem}: {one.ours} beside {one.theirs}": one.row for one in [*calibration, *composition]}
        return {"ratios": ratios, "admission": _admission()}

    (row,) = rows.run([({"measure": "speed"}, measured)], again=True)
    admission = _admission_table(row["admission"])
    page = [
        _HEAD,
        _CALIBRATION,
        _table(ratio for ratio in calibration if ratio.charged or ratio.missed),
        _COMPOSITION,
        _table(ratio for ratio in composition if ratio.charged or ratio.missed),
        _ADMISSION,
        admission,
        "\n`python -m benchmarks.accountant speed` prints all.",
    ]
    path.write_text("\n".join(page) + "\n", encoding="utf-8")
    print("\n".join([_table(calibration), _table(composition), linearity, admission]))
    print(f"wrote {path}")


def _table(ratios: Iterable[Ratio]) -> str:
    heads = ["problem", "ours", "time", "theirs", "time", "ratio"]
    return markdown_table(heads, [ratio.line() for ratio in ratios])


def forget() -> None:
    """Empty every cache of the accountant."""
    for name, module in list(sys.modules.items()):
        if name.startswith("dpswd.shared.core.privacy"):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


def _timed(action: Callable[[], object], *, cold: bool = False) -> float:
    if cold:
        forget()
    begin = time.process_time()
    action()
    return time.process_time() - begin


def _median_times(actions: Sequence[Callable[[], object]]) -> list[float]:
    """Median of the cold times; the contenders take turns. The first, unmeasured turn loads what is loaded late."""
    for action in actions:
        action()
    turned = [[_timed(action, cold=True) for action in actions] for _ in range(TURNS)]
    return [statistics.median(times) for times in zip(*turned, strict=True)]


def _calibration() -> list[Ratio]:
    ratios = []
    sliced, gaussian, full = MNIST_USPS, GAUSSIAN, FULL_BATCH
    for setting, bounds in ((sliced, (1.0, 4.0)), (gaussian, (2.0, 10.0))):
        actions: list[Callable[[], object]] = [
            functools.partial(calibrate_sigma, setting.rows, epsilon=EPSILON, delta=setting.delta, bound=Bound.WBK27),
            functools.partial(calibrate_sigma, setting.rows, epsilon=EPSILON, delta=setting.delta),
            functools.partial(
                contenders.autodp_sigma, setting.rows, epsilon=EPSILON, delta=setting.delta, bounds=bounds
            ),
        ]
        if setting is gaussian:
            actions.append(
                functools.partial(
                    contenders.dp_accounting_sigma,
                    setting.rows,
                    epsilon=EPSILON,
                    delta=setting.delta,
                    bounds=bounds,
                    accountant=contenders.renyi_accountant,
                )
            )
        times = _median_times(actions)
        name = f"{setting.name}, sampled"
        for label, theirs in zip(("autodp, Theorem 27", "dp_accounting RDP, Theorem 27"), times[2:], strict=False):
            ratios.append(Ratio(name, "`wbk27`", label, times[0], theirs, 5.0))
            ratios.append(Ratio(name, "`auto`", label, times[1], theirs, 5.0))
    bounds = (10.0, 100.0)
    dp_accounting = functools.partial(
        contenders.dp_accounting_sigma, full.rows, epsilon=EPSILON, delta=full.delta, bounds=bounds
    )
    renyi, auto, their_renyi, their_pld, their_formula = _median_times(
        [
            functools.partial(calibrate_sigma, full.rows, epsilon=EPSILON, delta=full.delta, bound=Bound.HYB),
            functools.partial(calibrate_sigma, full.rows, epsilon=EPSILON, delta=full.delta),
            functools.partial(dp_accounting, accountant=contenders.renyi_accountant),
            functools.partial(dp_accounting, accountant=contenders.pld_accountant),
            functools.partial(
                contenders.autodp_gaussian_sigma, epsilon=EPSILON, delta=full.delta, steps=full.steps, bounds=bounds
            ),
        ]
    )
    ratios.append(Ratio(full.name, "Renyi (`hyb`)", "dp_accounting RDP", renyi, their_renyi, 5.0))
    ratios.append(Ratio(full.name, "exact (`auto`)", "dp_accounting PLD", auto, their_pld, 5.0))
    ratios.append(Ratio(full.name, "exact (`auto`)", "autodp, analytic Gaussian", auto, their_formula, 5.0))
    return ratios


def _steps(setting: Setting, count: int, low: float, high: float) -> list[RunEvent]:
    """``count`` different steps, sigma from ``low`` to ``high``."""
    return [replace(setting, steps=1).rows(float(sigma)) for sigma in np.geomspace(low, high, count)]


def _charge(steps: Sequence[RunEvent], budget: PrivacyFilter) -> float:
    """What the ledger does with a session of different steps: price and admit each of them."""
    spent = budget.zero()
    for step in steps:
        spent = budget.admit(spent, budget.price(step))
    return budget.epsilon(spent)


def _theorem_27(steps: Sequence[RunEvent], delta: float) -> float:
    """The sum of our Theorem 27 curves: what the others compute."""
    curves = [renyi_curve(run.step, Bound.WBK27, ORDER) for run in steps]
    return epsilon_of(curves[0][0], np.sum([curve for _, curve in curves], axis=0), delta)


def _gaussian(steps: Sequence[RunEvent], delta: float) -> float:
    return contenders.dp_accounting_compose([(run, run.step.parts[0].sigma) for run in steps], delta)


@dataclass(frozen=True)
class Contender:
    """Who composes a session, and how many steps of one are really composed."""

    label: str
    compose: Callable[[Sequence[RunEvent], float], object]
    counts: tuple[int, ...]
    ours: bool = False
    target: float | None = None

    def total(self, sessions: dict[int, list[RunEvent]], delta: float) -> tuple[float, str]:
        """Seconds for 40,000 steps, and the time for each step at each count. Ours start with empty caches."""
        self.compose(sessions[self.counts[0]][:2], delta)  # loads what is loaded late
        times = []
        for count in self.counts:
            turns = 1 if count == COMPOSED else COMPOSED_TURNS
            once = functools.partial(self.compose, sessions[count], delta)
            times.append(statistics.median(_timed(once, cold=True) for _ in range(turns)))
        each = ", ".join(f"{1e3 * t / n:.3g} ms" for t, n in zip(times, self.counts, strict=True))
        return COMPOSED * times[-1] / self.counts[-1], each


def _ledger(steps: Sequence[RunEvent], delta: float) -> float:
    return _charge(steps, filter_for(PrivacyBudget(EPSILON, delta), steps[len(steps) // 2]))


def _as_one_gaussian(steps: Sequence[RunEvent], delta: float) -> float:
    """Gaussian releases compose to one whose squared shift is the sum of theirs (Dong, Roth, Su 2019, 3.3)."""
    square = math.fsum(part.sigma**-2 for run in steps for part in run.step.parts)
    return profile.epsilon(ShiftLaw(1, 1, 0.0, square), delta)


def _composition() -> tuple[list[Ratio], str]:
    autodp = Contender("autodp", contenders.autodp_compose, THEIRS_MEASURED)
    google = Contender("dp_accounting RDP", _gaussian, THEIRS_MEASURED)
    charges = Contender(LEDGER, _ledger, OURS_MEASURED, ours=True, target=100.0)
    curves = Contender("`wbk27` alone", _theorem_27, OURS_MEASURED, ours=True, target=100.0)
    as_one = Contender("exact, as one release", _as_one_gaussian, OURS_MEASURED, ours=True, target=100.0)
    cheap = [replace(them, counts=CHEAP_MEASURED) for them in (autodp, google)]
    problems = [
        (MNIST_USPS, 5.0, 50.0, [charges, curves, autodp]),
        (GAUSSIAN, 20.0, 200.0, [charges, curves, autodp, google]),
        (FULL_BATCH, 2e3, 2e4, [as_one, replace(charges, target=None), *cheap]),
    ]
    ratios, lines = [], []
    for setting, low, high, field in problems:
        sessions = {n: _steps(setting, n, low, high) for contender in field for n in contender.counts}
        totals = {}
        for contender in field:
            totals[contender], each = contender.total(sessions, setting.delta)
            lines.append([setting.name, contender.label, ", ".join(map(str, contender.counts)), each])
        ratios += [
            Ratio(setting.name, mine.label, theirs.label, totals[mine], totals[theirs], mine.target)
            for theirs in field
            for mine in field
            if mine.ours and not theirs.ours
        ]
    return ratios, markdown_table(["problem", "who", "distinct steps", "time for each step"], lines)


FEATURES = (64, 96, 320, 500, 784, 1_024, 2_048, 4_096, 10_000)
DIRECTIONS = (7, 30, 150, 64, 333, 500, 100, 1_000, 2_000)


def _admission() -> Row:
    """Seconds, of the sorts of runs in turn the median and the worst, and megabytes."""
    setting = MNIST_USPS
    plan = setting.rows(1.2)
    budget = filter_for(PrivacyBudget(EPSILON, setting.delta), plan)
    part = replace(plan, steps=1)
    session = budget.admit(budget.zero(), budget.price(part))
    times = []
    for _ in range(2_000):
        begin = time.perf_counter_ns()
        budget.admit(session, budget.price(part))
        times.append((time.perf_counter_ns() - begin) * 1e-9)
    one_step, whole_run, second_opinion = [], [], []
    adaptive = filter_for(PrivacyBudget(EPSILON, setting.delta), part)
    for features, directions in zip(FEATURES, DIRECTIONS, strict=True):
        run = replace(setting, features=features, directions=directions).rows(2.0 * (directions / features) ** 0.5)
        one_step.append(_timed(functools.partial(adaptive.price, replace(run, steps=1)), cold=True))
        whole_run.append(_timed(functools.partial(budget.price, run), cold=True))
        second_opinion.append(_timed(functools.partial(check_with_autodp, run), cold=True))
    base, peak = _peak_memory()
    of_new = {"step_s": one_step, "run_s": whole_run, "second_opinion_s": second_opinion}
    medians = {name: statistics.median(each) for name, each in {"known_s": times, **of_new}.items()}
    worst = {f"worst_{name}": max(each) for name, each in of_new.items()}
    return {**medians, **worst, "imported_mb": base, "peak_mb": peak}


def _admission_table(row: Row) -> str:
    def new(name: str) -> str:
        return f"{_duration(row[name])}, worst {_duration(row[f'worst_{name}'])}"

    rows = [
        ["known parameters: price and admit", _duration(row["known_s"]), "20 µs", _met(row["known_s"], 20e-6)],
        [
            "new (d, k), cold, a step in a session of adaptive charges",
            new("step_s"), "0.5 s", _met(row["worst_step_s"], 0.5),
        ],
        ["new (d, k), cold, a committed run with its PLD", new("run_s"), "0.5 s", _met(row["worst_run_s"], 0.5)],
        ["autodp's second opinion on a new run", new("second_opinion_s"), "–", ""],
        [
            f"peak memory, {MEASURED}", f"{row['peak_mb']:.0f} MB ({row['imported_mb']:.0f} MB after import)",
            "300 MB", _met(row["peak_mb"], 300.0),
        ],
    ]  # fmt: skip
    return markdown_table(["what", "measured", "wanted below", "met"], rows)


def _met(value: float, limit: float) -> str:
    return "yes" if value < limit else "**no**"


def _peak_memory() -> tuple[float, float]:
    """Megabytes after import and at the peak, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.accountant.memory"], capture_output=True, text=True, check=True
    )
    base, peak = map(float, done.stdout.split())
    return base, peak


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}" if seconds < 1e3 else f"{seconds:,.0f} s"
    return f"{seconds * 1e9:.0f} ns"


_HEAD = f"""# How fast the accountant is

Shown is what a curator runs, and in **bold** what was slower than wanted. Processor time of one process on one thread;
the contenders take turns, medians of {TURNS} count. Ours start with empty caches and get no bracket around the answer;
autodp and dp_accounting get one of a factor of 4 to 10.
"""

_CALIBRATION = f"""## Calibrating sigma

M-U of [the table](accountant.md) at ε = {EPSILON:g} (T = {MNIST_USPS.steps:,}); the plain Gaussian has d = k = 1. A
factor of 5 was wanted.
"""

_COMPOSITION = f"""
## Composing {COMPOSED:,} different steps

"The ledger's charges" prices each step by everything that is valid and admits it, one by one. "`wbk27` alone" is the
others' bound, up to order {ORDER}. Ours compose all {COMPOSED:,} steps; theirs would take hours and are
**extrapolated** in proportion from at most {CHEAP_MEASURED[-1]:,} steps. A factor of 100 was wanted.
"""

_ADMISSION = """
## Admission and memory
"""
