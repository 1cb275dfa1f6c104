"""The least epsilon for what is wanted, from results of sites: held out site by site.

    python -m benchmarks.wishes run --data-dir ../shared/data [--seeds 0,1]    # more epsilons at `benchmarks.sites`
    python -m benchmarks.wishes summary                                        # how often the answer is right
    python -m benchmarks.wishes write                                          # what `plan --want` reads

Sites are those of `benchmarks.sites`, with labels; without, the battery's (each source under each shift, default
method), the shifts of `benchmarks.normalisation` and the demo's hospital (`benchmarks.ladder`,
`benchmarks.small_hospitals`). A cell is a site, one of its numbers of records and a want; the answer comes from the
other sites alone. It is right if no run contradicts it by more than a factor 1.5: none within reached the want at less,
and none failed at more. Where none reached it, which nothing public tells beforehand, it is right too if it says that
most sites do not. Runs that fail above one that reached it are taken as chance.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks import ladder, records, sites, small_hospitals
from benchmarks.normalisation.__main__ import RESULTS as NORMALISATION
from benchmarks.shifts.__main__ import RESULTS as BATTERY
from benchmarks.shifts.cells import KINDS
from dpswd.public_client.plans.wishes import RECALIBRATE, Site, alike, least_epsilon

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
    battery: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in records.read(BATTERY):
        gain = row["adapted"] - row["source_only"]
        battery[row["source"], row["shift"]].append(row | {"records": row["n"], "gain": gain, "left": None})
    made = [Site(name, "vectors", 2, True, _means(rows)) for name, rows in labelled.items()]
    made += [Site(name, "images", 10, False, _means(rows)) for name, rows in shifts.items()]
    for (source, shift), rows in battery.items():
        kind = KINDS[source]
        modality, classes = ("images" if kind == "images" else "vectors"), 2 if kind == "tables" else 10
        made.append(Site(f"{source} {shift}", modality, classes, False, _means(rows)))
    return made


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
    """Shares of right answers: of all cells by where they are from, and of those whose site reached what is wanted."""
    right: dict[str, list[bool]] = defaultdict(list)
    for want, site in itertools.product(WANTS, every):
        others = [one for one in every if one is not site]
        at: dict[int, list[tuple[float, bool]]] = defaultdict(list)
        for (n, epsilon, *_), reached in zip(site.runs, site.reached(want), strict=False):
            at[n].append((epsilon, reached))
        for n, runs in at.items():
            answer = least_epsilon(want, n, alike(site.modality, site.classes * site.labelled, n, others))
            did = min((epsilon for epsilon, reached in runs if reached), default=math.inf)
            failed = max((epsilon for epsilon, reached in runs if not reached and epsilon < did), default=0.0)
            correct = failed / FACTOR <= answer.epsilon <= did * FACTOR
            correct |= math.isinf(did) and 2 * answer.reached < answer.sites
            for group in ("sites" if site.labelled else "shifts", "all"):
                right[group].append(correct)
                if math.isfinite(did):
                    right[f"{group}, where it was reached"].append(correct)
    return {f"{name} ({len(cells)} cells)": sum(cells) / len(cells) for name, cells in sorted(right.items())}


def written(every: Sequence[Site], shares: Mapping[str, float]) -> str:
    """The sites and shares of right answers where the want was reached, as `plan --want` reads them."""
    groups = {name.split(",")[0]: round(share, 2) for name, share in shares.items() if "reached" in name}
    right = json.dumps({name: groups[name] for name in ("sites", "shifts")})
    rows = ",\n".join(json.dumps(asdict(site)) for site in every)
    return f'{{"right": {right}, "sites": [\n{rows}\n]}}\n'


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
        every = measured_sites()
        WRITTEN.write_text(written(every, summary(every)), encoding="ascii")
    else:
        for name, share in summary(measured_sites()).items():
            print(f"{name}: {100.0 * share:.0f}% within a factor {FACTOR:g} of epsilon")


if __name__ == "__main__":
    main()
