"""DPOT at record level: error against noise-to-signal and epsilon (LeTien and others 2019, Figure 2).

    python -m benchmarks.optimal_transport run         # anew, beside what is on file: five seeds
    python -m benchmarks.optimal_transport summary
    python -m benchmarks.optimal_transport large       # time and memory of n = 50,000

Two Gaussian samples of 20 features whose means are apart, mapped and clipped as the product does it. Told are the error
of the estimated squared 2-Wasserstein distance beside the same samples' own, and how much mass the noised plan has in
common with theirs. The noise is that of one release of rows: by the product's accountant (record level), and by the
paper's rule (attribute level: Kenthapadi and others 2013, sigma = w sqrt(2 (ln(1/(2 delta)) + epsilon)) / epsilon, w
the largest row norm of the projection). The second is a labelled baseline: a curator prices what is declared, and what
it would charge stands beside it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import records
from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.published_methods.transport import Transport, solve
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.accounting.calibration import epsilon as epsilon_of
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.privacy.events import RowProjections, RunEvent, StepEvent

Values = npt.NDArray[np.float64]
RESULTS = Path(__file__).parent / "results" / "optimal-transport.json"
N, D, K, DELTA, APART, SPREAD = 500, 20, 40, 1e-5, 2.0, 0.5
SEEDS = (0, 1, 2, 3, 4)
EPSILONS: tuple[float | None, ...] = (None, 100.0, 30.0, 10.0, 3.0, 1.0)
RULES = ("record level", "attribute level, as published")
METHODS = (Transport(directions=K), Transport(directions=K, solver="entropic"))


def sigma_of(rule: str, epsilon: float, U: np.ndarray[Any, Any]) -> float:
    """Noise of one release at this epsilon: what is promised, or what the paper's rule claims."""
    if rule == RULES[0]:
        return calibrate_sigma(_event, epsilon=epsilon, delta=DELTA)
    # One attribute of a record changes by at most 1: w is the largest row norm of the projection.
    w = float(np.linalg.norm(U, axis=1).max())
    return w * math.sqrt(2.0 * (math.log(1.0 / (2.0 * DELTA)) + epsilon)) / epsilon


def jobs(seeds: Sequence[int]) -> Iterator[records.Job]:
    """All runs; noise is drawn in their order."""
    for seed in seeds:
        rng = np.random.default_rng(seed)
        raw = [rng.normal(size=(N, D)) * SPREAD + shift for shift in (0.0, APART / math.sqrt(D))]
        source, target = (torch.from_numpy(values.astype(np.float32)) for values in raw)
        feature_map = map_from_source(source, target_norm=0.35)
        x, y = (feature_map.clipped(values).double().numpy() for values in (source, target))
        U = directions(bytes([seed]) * 32, D, K).double().numpy()
        for method in METHODS:
            exact = functools.cache(functools.partial(solve, x, y, dimension=D, sigma=0.0, method=_whole(method)))
            for rule, epsilon in itertools.product(RULES, EPSILONS):
                if epsilon is not None or rule == RULES[0]:
                    settings = {"seed": seed, "rule": rule, "epsilon": epsilon, "solver": method.solver}
                    yield settings, functools.partial(_measured, x, y, U, rng, exact, method, rule, epsilon)


def _measured(
    x: Values, y: Values, U: Values, rng: np.random.Generator, exact: Callable[[], Any], method: Transport, rule: str,
    epsilon: float | None,
) -> records.Row:  # fmt: skip
    truth, plan = exact()
    sigma = 0.0 if epsilon is None else sigma_of(rule, epsilon, U)
    noised = y @ U + sigma * rng.normal(size=(N, K))
    estimate, noisy = solve(x @ U, noised, dimension=D, sigma=sigma, method=_whole(method))
    return {
        "sigma": sigma,
        "noise_to_signal": sigma * math.sqrt(K) / float(np.linalg.norm(y @ U, axis=1).mean()),
        "relative_error": abs(estimate - truth) / truth,
        "plan_overlap": float(plan.minimum(noisy).sum()),
        "priced": None if epsilon is None else _priced(sigma),
    }


def _whole(method: Transport) -> Transport:
    return Transport(directions=K, solver=method.solver, part=N)


def _event(sigma: float) -> RunEvent:
    return RunEvent(StepEvent(N, N, (RowProjections(D, K, sigma, sigma / 2048),)), 1)


def _priced(sigma: float) -> float | None:
    """Epsilon for records of that noise; None where it is more than the accountant counts."""
    try:
        return epsilon_of(_event(sigma), DELTA)
    except InvalidValue:
        return None


def table(runs: list[dict[str, Any]]) -> str:
    """Of the runs on file, in Markdown."""
    head = "| noise | nominal epsilon | epsilon for records | not clipped | noise to signal |"
    lines = [f"{head} distance, exact | entropic | plan, exact | entropic |", "|---|---|---|---|---|---|---|---|---|"]
    for rule in RULES:
        for epsilon in EPSILONS:
            of = {
                solver: [one for one in runs if (one["rule"], one["epsilon"], one["solver"]) == (rule, epsilon, solver)]
                for solver in ("exact", "entropic")
            }
            if not of["exact"]:
                continue
            one = of["exact"]
            priced = [value["priced"] for value in one if value["priced"] is not None]
            ratio = f"{np.mean([value['noise_to_signal'] for value in one]):.2g}"
            cells = [
                rule if epsilon is not None else "none: the projection alone",
                "" if epsilon is None else f"{epsilon:g}",
                "" if not priced else f"{np.mean(priced):.3g}",
                "" if rule == RULES[0] else _unclipped(float(np.mean([value["sigma"] for value in one]))),
                ratio,
                *(_percent(of[solver], "relative_error") for solver in of),
                *(_percent(of[solver], "plan_overlap") for solver in of),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _unclipped(sigma: float) -> str:
    """Epsilon for records whose D attributes may each change by 1, as the paper's may: they move D^(1/2) as far."""
    priced = _priced(sigma / math.sqrt(D))
    return "more than is counted" if priced is None else f"{priced:.3g}"


def _percent(runs: list[dict[str, Any]], key: str) -> str:
    return f"{records.mean_and_deviation([100.0 * one[key] for one in runs], 0)}%" if runs else ""


def large() -> None:
    """50,000 points on either side, part by part."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50_000, K)), rng.normal(size=(50_000, K)) + 0.5
    start = time.process_time()
    distance, plan = solve(x, y, dimension=D, sigma=0.1, method=Transport(directions=K))
    seconds, most = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"n = 50,000: {seconds:.0f} s of one core, {most:.1f} GiB at most, {plan.nnz} pairs, distance {distance:.3g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary", "large"), nargs="?", default="summary")
    parser.add_argument("--format", choices=("json", "text"), default="text")
    records.options(parser, RESULTS, seeds=SEEDS)
    arguments = parser.parse_args()
    if arguments.command == "large":
        large()
        return
    if arguments.command == "run":
        records.Rows(RESULTS, arguments.results).run(jobs(arguments.seeds))
        return
    runs = records.read(arguments.results or RESULTS)
    print(json.dumps(runs) if arguments.format == "json" else table(runs))


if __name__ == "__main__":
    main()
