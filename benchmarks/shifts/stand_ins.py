"""Releases on which the bound on corrected priors was chosen: random classes absent or rarer, on models of other seeds.

    python -m benchmarks.shifts.stand_ins run --data-dir ../shared/data --minutes 10
    python -m benchmarks.shifts.stand_ins summary

A row is one release; where the verdict would correct priors by it: what a correction by the posterior's mean and by
parts of that brings, and how little each may bring by the posterior. The summary tells what bounds make of it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import records
from benchmarks.local import RATE, released
from benchmarks.shifts.cells import DELTAS
from benchmarks.shifts.sources import Origin, load
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.replay import fit
from dpswd.public_client.replay.cross_fitting import CrossFit, OutOfFold
from dpswd.public_client.replay.posterior import VIEW_STEPS
from dpswd.public_client.replay.priors import SHARES, frequency_gains, prior_weights

RESULTS = Path(__file__).parents[1] / "results" / "shifts_stand_ins.jsonl"
CACHE = Path.home() / ".cache" / "dpswd" / "shifts"
MODELS = (("fashion", 3), ("fashion", 4), ("fashion", 3), ("fashion", 4), ("mnist", 3), ("usps", 3), ("adult", 4))
"""Source and seed, one of which is drawn for each release; the battery's seeds are 0 to 2."""
QUANTILES = (0.005, 0.01, 0.02, 0.05, 0.1)
BOUNDS = (0.0, 0.5, 1.0, 2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    more = commands.add_parser("run", help="more releases, behind those on file")
    more.add_argument("--data-dir", type=Path, required=True)
    more.add_argument("--cache", type=Path, default=CACHE, help="folder that keeps source-trained models")
    more.add_argument("--minutes", type=float, required=True, help="begin no release after these")
    summarise = commands.add_parser("summary", help="what bounds make of them")
    records.options(more, RESULTS, seeds=range(100))  # of releases
    records.options(summarise, RESULTS)
    arguments = parser.parse_args()
    if arguments.command == "summary":
        print(summary([row for row in records.read(arguments.results or RESULTS) if row["parts"]]))
        return
    torch.set_num_threads(1)
    own = functools.cache(functools.partial(_own, data_dir=arguments.data_dir, cache=arguments.cache))
    jobs = [({"number": number}, functools.partial(_measured, number, own)) for number in arguments.seeds]
    records.Rows(RESULTS, arguments.results).run(jobs, minutes=arguments.minutes)


def _own(source: str, seed: int, *, data_dir: Path, cache: Path) -> tuple[Origin, OutOfFold]:
    origin = load(source, seed, data_dir=data_dir, cache=cache)
    return origin, CrossFit(origin.extractor, origin.classifier, origin.source, seed=seed).out_of_fold()


def _measured(number: int, own: Callable[[str, int], tuple[Origin, OutOfFold]]) -> records.Row:
    drawn = random.Random(number)
    source, seed = drawn.choice(MODELS)
    row = {
        "number": number, "source": source, "seed": seed,
        "rarer": 0.1 if source == "adult" else drawn.choice((0.0, 0.0, 0.1)),  # half of two classes leaves one
        "records": drawn.choice((500, 1000, 2000, 4000)), "epsilon": drawn.choice((1.0, 3.0)),
    }  # fmt: skip
    return row | release(*own(source, seed), row)


@torch.no_grad()
def release(origin: Origin, out_of_fold: OutOfFold, row: dict[str, Any]) -> dict[str, Any]:
    """One release with half of the classes, at random, `rarer`.

    Returns:
        outcome of the verdict; where it would correct priors, for each share: the gain in accuracy and quantiles of
        what it may be by the posterior and the worse of both readings (`priors`), in percentage points.
    """
    generator = torch.Generator().manual_seed(row["number"])
    source, pool = origin.source, origin.pool
    classes = int(source.labels.max()) + 1
    rare = torch.randperm(classes, generator=generator)[: classes // 2]
    shares = torch.ones(classes).index_fill(0, rare, row["rarer"])
    order = torch.randperm(len(pool), generator=generator)
    order = order[torch.rand(len(order), generator=generator) < shares[pool.labels[order]]][: row["records"]]
    target = pool.part(order)
    features, seen = origin.extractor(source.images), origin.extractor(target.images)
    residuals = released(seen, features[: Replay().source_records], epsilon=row["epsilon"], delta=DELTAS[origin.kind])
    with torch.enable_grad(), reporting("", VIEW_STEPS, shown=False) as bar:
        fitted = fit.find_view(origin.extractor, source, residuals, learning_rate=RATE, generator=generator, bar=bar)
    said: dict[str, Any] = {"n": len(target), "outcome": fitted.outcome, "parts": []}
    if fitted.class_draws is None:
        return said
    scores = origin.classifier(seen)
    for share in SHARES:
        bias = torch.log(prior_weights(fitted.class_weights, share))
        gains = [
            frequency_gains(_changes(own, bias, source.labels), source.labels, fitted.class_draws)
            for own in (out_of_fold.in_sample, out_of_fold.scores)
        ]
        low = {str(part): round(min(float(one.quantile(part)) for one in gains), 3) for part in QUANTILES}
        gained = float(_changes(scores, bias, target.labels).mean())
        said["parts"].append({"share": share, "gain": round(gained, 2), "low": low})
    return said


def _changes(scores: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Of each record, (m,): 100 if scores are right only with the bias, -100 if only without."""
    return 100.0 * (((scores + bias).argmax(dim=1) == labels).double() - (scores.argmax(dim=1) == labels).double())


def summary(rows: list[dict[str, Any]]) -> str:
    """What each quantile and bound makes of releases whose priors could be corrected."""
    lines = [f"{len(rows)} releases", "all of it, always: " + _say_gains([row["parts"][0]["gain"] for row in rows])]
    for quantile, bound in itertools.product(QUANTILES, BOUNDS):
        whole, parts = [], []
        for row in rows:
            safe = [part for part in row["parts"] if part["low"][str(quantile)] > -bound]
            parts.append(safe[0]["gain"] if safe else 0.0)
            whole.append(safe[0]["gain"] if safe and safe[0]["share"] == 1.0 else 0.0)
        lines.append(f"{quantile:.1%} below -{bound}: by parts {_say_gains(parts)}; all or nothing {_say_gains(whole)}")
    return "\n".join(lines)


def _say_gains(gains: list[float]) -> str:
    mean = sum(gains) / max(1, len(gains))
    return f"mean {mean:+.2f}, worst {min(gains, default=0.0):+.1f}, {sum(gain < -1.0 for gain in gains)} below -1"


if __name__ == "__main__":
    main()
