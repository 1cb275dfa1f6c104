"""The least epsilon for what is wanted, from results of sites: held out site by site.

    python -m benchmarks.wishes run --data-dir ../shared/data [--seeds 0,1]    # more epsilons at `benchmarks.sites`
    python -m benchmarks.wishes summary                                        # how often the answer is right
    python -m benchmarks.wishes write                                          # what `plan --want` reads

Sites are those of `benchmarks.sites`, with labels, and as unlabelled images the shifts of `benchmarks.normalisation`
and the demo's hospital (`benchmarks.ladder`, `benchmarks.small_hospitals`). For each site and want the answer comes
from the others alone. It is right if it is within a factor 1.5 of where the site reached the want: between the last
measured epsilon that did not do and the first that did. Of cells whose site never reached it, which no site's data tell
beforehand, the answer's share of sites speaks, and no epsilon is right.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import ladder, records, sites, small_hospitals
from benchmarks.normalisation.__main__ import RESULTS as NORMALISATION
from dpswd.public_client.plans.wishes import RECALIBRATE, Site, least_epsilon

RESULTS = Path(__file__).parent / "results" / "wishes.json"
WRITTEN = Path(__file__).parents[1] / "public_client" / "plans" / "wishes.json"
EPSILONS, SEEDS, FACTOR = (0.03, 0.3, 3.0), 2, 1.5
WANTS = ("accuracy +1", "accuracy +2", "accuracy +5", RECALIBRATE)
Row = records.Row


def jobs(folder: Path, seeds: Sequence[int]) -> Iterator[records.Job]:
    """Runs of `benchmarks.sites` at more epsilons."""
    for table in sites.TABLES:
        task = sites.dealt(table, folder)
        for site, epsilon, seed in itertools.product(task.sites, EPSILONS, seeds):
            which = {"table": table.name, "site": site, "epsilon": epsilon, "seed": seed}
            yield which, functools.partial(sites.site_run, task, site, dict, epsilon=epsilon, seed=seed)


def measured_sites() -> list[Site]:
    """Every site of the results on file, with means over its runs."""
    labelled: dict[str, list[Row]] = defaultdict(list)
    for row in [*records.read(sites.RESULTS), *records.read(RESULTS)]:
        before, after = row["source"], row["delivered"]
        left = after["calibration_error"] / before["calibration_error"]
        labelled[f"{row['table']} {row['site']}"].append(
            row | {"gain": after["accuracy"] - before["accuracy"], "left": left}
        )
    shifts: dict[str, list[Row]] = defaultdict(list)
    small = records.read(small_hospitals.RESULTS)
    (control,) = [row for row in small if row["epsilon"] is None]
    own = {"shift": ladder.DEMO["shift"], "records": control["records"], "source": control["source_only"]}
    images = [own | row | {"delivered": row["accuracy"]} for row in small if row["epsilon"] is not None]
    for row in [*images, *records.read(ladder.RESULTS), *records.read(NORMALISATION)]:
        if not row["shift"].startswith("sequence"):
            shifts[row["shift"]].append(row | {"gain": row["delivered"] - row["source"], "left": None})
    made = [Site(name, "vectors", 2, True, _means(rows)) for name, rows in labelled.items()]
    return made + [Site(name, "images", 10, False, _means(rows)) for name, rows in shifts.items()]


def _means(rows: Sequence[Row]) -> tuple[tuple[int, float, float, float | None], ...]:
    alike: dict[tuple[int, float], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["records"] * row["epsilon"]):
        alike[row["records"], row["epsilon"]].append(row)
    made = []
    for (n, epsilon), own in alike.items():
        left = None if own[0]["left"] is None else round(statistics.mean(row["left"] for row in own), 3)
        made.append((n, epsilon, round(statistics.mean(row["gain"] for row in own), 2), left))
    return tuple(made)


def summary(every: Sequence[Site]) -> dict[str, float]:
    """Shares of right answers: of all cells by modality, and of those whose site reached what is wanted."""
    right: dict[str, list[bool]] = defaultdict(list)
    for site, want in itertools.product(every, WANTS):
        if (reached := site.least(want)) is None:
            continue
        records_then, epsilon = reached
        others = [one for one in every if one.modality == site.modality and one is not site]
        answer = least_epsilon(want, records_then, others).epsilon
        before = [e * n / records_then for n, e, *_ in site.runs if n * e < records_then * epsilon]
        correct = max(before, default=0.0) / FACTOR <= answer <= epsilon * FACTOR
        groups = (site.modality, "all")
        for group in (*groups, *(f"{group}, where it was reached" for group in groups if math.isfinite(epsilon))):
            right[group].append(correct)
    return {f"{name} ({len(cells)} cells)": sum(cells) / len(cells) for name, cells in sorted(right.items())}


def written(every: Sequence[Site]) -> str:
    """The sites and the share of right answers where the want was reached, as `plan --want` reads them."""
    (right,) = [share for name, share in summary(every).items() if name.startswith("all, ")]
    rows = ",\n".join(json.dumps(asdict(site)) for site in every)
    return f'{{"right": {right:.2f}, "sites": [\n{rows}\n]}}\n'


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary", "write"))
    parser.add_argument("--data-dir", type=Path, default=Path("../shared/data"))
    records.options(parser, RESULTS, seeds=range(SEEDS))
    asked = parser.parse_args()
    if asked.command == "run":
        torch.set_num_threads(1)
        records.Rows(RESULTS, asked.results).run(jobs(asked.data_dir, asked.seeds))
    elif asked.command == "write":
        WRITTEN.write_text(written(measured_sites()), encoding="ascii")
    else:
        for name, share in summary(measured_sites()).items():
            print(f"{name}: {100.0 * share:.0f}% within a factor {FACTOR:g} of epsilon")


if __name__ == "__main__":
    main()
