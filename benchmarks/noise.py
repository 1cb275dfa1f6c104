"""How fast the curator's noise is: beside plain numpy, numpy under a ChaCha generator, and OpenDP.

    python -m benchmarks.noise [--values 262144] [--repeats 15]

Every contender runs on one thread and turns a vector of zeros into noised values; the best of `repeats` counts, and
the contenders take turns so that a busy machine slows all of them. The ratios matter, not the times. OpenDP is not a
dependency of this project: where `import opendp` fails it is not measured; to measure it, put it on PYTHONPATH
(`pip install --target /some/folder --no-deps opendp==0.16.0 deprecated wrapt`). Seconds. Takes no seeds: keys are
fresh, and the figures are times.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import randomgen

from benchmarks.records import Row, Rows, machine, options
from dpswd.private_curator.core.steps.randomness import SystemNoise
from dpswd.shared.core.noise.noise import grid_step

RESULTS = Path(__file__).parent / "results" / "noise.json"
SIGMA = 1.0
ALLOWED_SLOWDOWN = 2.0  # against plain numpy
LEAST_SPEEDUP = 200.0  # against OpenDP's Gaussian vector measurement
OPENDP_VALUES = 4096  # OpenDP's exact sampler takes tens of microseconds a value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=1 << 18)
    parser.add_argument("--repeats", type=int, default=15)
    options(parser, RESULTS)
    chosen = vars(parser.parse_args())
    rows = Rows(RESULTS, chosen.pop("results"))
    (row,) = rows.run([(chosen, lambda: measured(**chosen))], again=True)
    for name, value in row["nanoseconds_per_value"].items():
        print(f"{name:55s} {value:12.2f} ns a value")
    print(f"against numpy:  {row['slowdown_against_numpy']:.2f} times its time (at most {ALLOWED_SLOWDOWN:g})")
    if row["speedup_against_opendp"] is None:
        print("against OpenDP: not measured, opendp is not installed")
    else:
        print(f"against OpenDP: {row['speedup_against_opendp']:.0f} times as fast (at least {LEAST_SPEEDUP:g})")


def measured(*, values: int, repeats: int) -> Row:
    """Times of all contenders, and the ratios."""
    contenders = {
        "dpswd: exact grid Gaussian, ChaCha20, fresh key": (_dpswd(values), values),
        "numpy: PCG64 standard_normal, float64": (_numpy(values), values),
        "numpy under randomgen's ChaCha, rounded to the grid": (_chacha(values), values),
    }
    opendp = _opendp()
    if opendp is not None:
        contenders["OpenDP: Gaussian vector measurement"] = (opendp, OPENDP_VALUES)
    nanoseconds = _measure(contenders, repeats=repeats)
    names = list(nanoseconds)
    return {
        "machine": machine(),
        "nanoseconds_per_value": nanoseconds,
        "slowdown_against_numpy": nanoseconds[names[0]] / nanoseconds[names[1]],
        "speedup_against_opendp": nanoseconds[names[3]] / nanoseconds[names[0]] if opendp is not None else None,
    }


def _measure(contenders: dict[str, tuple[Callable[[], object], int]], *, repeats: int) -> dict[str, float]:
    """Best time of each contender in nanoseconds a value."""
    best = dict.fromkeys(contenders, float("inf"))
    for run, _ in contenders.values():
        run()  # tables and caches
    for _ in range(repeats):
        for name, (run, count) in contenders.items():
            start = time.perf_counter_ns()
            run()
            best[name] = min(best[name], (time.perf_counter_ns() - start) / count)
    return best


def _dpswd(count: int) -> Callable[[], object]:
    source, step = SystemNoise(), grid_step(SIGMA)
    return lambda: source.grid_gaussian((count,), sigma=SIGMA, step=step)


def _numpy(count: int) -> Callable[[], object]:
    generator = np.random.default_rng()
    return lambda: generator.standard_normal(count)


def _chacha(count: int) -> Callable[[], object]:
    def run() -> object:
        generator = np.random.Generator(randomgen.ChaCha(key=int.from_bytes(os.urandom(32), "little")))
        return np.rint(generator.standard_normal(count) * 2048).astype(np.int64)

    return run


def _opendp() -> Callable[[], object] | None:
    try:
        import opendp.prelude as dp
    except ImportError:
        return None
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)
    measurement = space >> dp.m.then_gaussian(scale=SIGMA)
    zeros = [0.0] * OPENDP_VALUES
    return lambda: measurement(zeros)


if __name__ == "__main__":
    main()
