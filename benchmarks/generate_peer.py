"""AIM (McKenna and others, VLDB 2022) and MST (2021) beside our tables: the same records, bins, rows and classifiers.

    python -m benchmarks.generate_peer run --data-dir ../shared/data
    python -m benchmarks.generate_peer summary

AIM is smartnoise-synth's (1.0.8, with private-pgm's `mbi` before 2), in an environment that holds the benchmarks too::

    pip install --no-deps "smartnoise-synth==1.0.8"
    pip install "mbi>=1.1,<2" smartnoise-sql Faker "disjoint-set<0.10" "pac-synth<0.0.9" pandas

(its own pins ask for an opacus that AIM does not use). AIM gets the bins of the public schema as its domain, and all
pairs of the 14 columns, the label among them, as its workload: what our release holds as well. It prices with zero-
concentrated privacy under *add-or-remove*. Two rows are run: its own epsilon 1 under that relation, and epsilon 1 under
replace-one, ours. There a record moves two counts of a marginal (twice the rho of each Gaussian) and the scores of its
choice twice as far (four times the rho), and nine tenths of its rho are the Gaussians': the run gets rho / 2.2. Its
noise comes from the operating system, its choices from the seed. MST measures each column and a spanning tree of pairs;
it is run under its own relation alone. Splits and seeds are those of `benchmarks.generate_tables`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import operator
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import generate_tables, records
from benchmarks.generate_tables import DELTA, SEEDS, Array, Labels, adult, scores, split
from dpswd.public_client.generation.schema import Schema

RESULTS = Path(__file__).parent / "results" / "generate-peer.json"
EPSILON = 1.0
ADD_OR_REMOVE, REPLACE_ONE = "add-or-remove", "replace-one"
REPLACED = 0.9 * 2.0 + 0.1 * 4.0
"""By what replacing a record multiplies the rho of AIM, which gives a tenth of it to its choices."""
LABEL = "label"
METHODS = ("AIM", "MST")


def encoded(schema: Schema, x: Array) -> dict[str, np.ndarray[Any, Any]]:
    """The bin of each value, by column: (n,) whole numbers."""
    return {
        column.name: np.searchsorted(np.array(column.cuts), x[:, place]).astype(np.int64)
        for place, column in enumerate(schema.columns)
    }


def decoded(schema: Schema, drawn: dict[str, np.ndarray[Any, Any]], *, seed: int) -> Array:
    """Values (n, columns), evenly within their bins, as our own method draws them."""
    generator = np.random.default_rng(seed)
    columns = []
    for column in schema.columns:
        low, high = np.array(column.bounds).T[:, drawn[column.name]]
        columns.append(low + (high - low) * generator.random(len(low)))
    made: Array = schema.snapped(torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))).numpy()
    return made


def by_mst(schema: Schema, x: Array, y: Labels, *, seed: int) -> tuple[Array, Labels]:
    """As many rows as there are records, drawn from MST's model of them, under add-or-remove."""
    try:
        import pandas as pd
        from mbi import Dataset, Domain
        from snsynth.mst.mst import MSTSynthesizer
    except ImportError as error:
        raise SystemExit(f"{error}: MST is not installed here. What to install: {__doc__}") from error
    np.random.seed(seed)  # noqa: NPY002 its choices are drawn from the global generator
    sizes = {column.name: len(column.bounds) for column in schema.columns} | {LABEL: 2}
    held = Dataset(pd.DataFrame(encoded(schema, x) | {LABEL: y}), Domain(list(sizes), list(sizes.values())))
    mst = MSTSynthesizer(epsilon=EPSILON, delta=DELTA)
    mst.MST(held, EPSILON, DELTA)  # what its `fit` does, but with the public schema as its domain
    made = mst.undo_compress_fn(mst.synthesizer.synthetic_data(rows=len(y))).df
    drawn = {name: made[name].to_numpy().astype(np.int64) for name in sizes}
    return decoded(schema, drawn, seed=seed), drawn[LABEL]


def by_aim(
    schema: Schema, x: Array, y: Labels, *, relation: str, rounds: int | None, seed: int
) -> tuple[Array, Labels]:
    """As many rows as there are records, drawn from AIM's model of them."""
    try:
        from mbi import Dataset, Domain
        from snsynth.aim.aim import AIMSynthesizer
        from snsynth.utils import cdp_rho
    except ImportError as error:
        raise SystemExit(f"{error}: AIM is not installed here. What to install: {__doc__}") from error
    np.random.seed(seed)  # noqa: NPY002 its choices are drawn from the global generator
    sizes = {column.name: len(column.bounds) for column in schema.columns} | {LABEL: 2}
    held = Dataset(encoded(schema, x) | {LABEL: y}, Domain(list(sizes), list(sizes.values())))
    aim = AIMSynthesizer(epsilon=EPSILON, delta=DELTA, degree=2, rounds=rounds, verbose=True)
    # What its `fit` does, but with the public schema in the place of a domain that is read off the records.
    aim.rho = cdp_rho(EPSILON, DELTA) / (REPLACED if relation == REPLACE_ONE else 1.0)
    aim.AIM(held, aim.get_workload(held, degree=aim.degree, max_cells=aim.max_cells))
    drawn = {name: np.asarray(own) for name, own in aim.synthesizer.synthetic_data(rows=len(y)).to_dict().items()}
    return decoded(schema, drawn, seed=seed), drawn[LABEL].astype(np.int64)


def run(method: str, relation: str, rounds: int | None, seed: int, directory: Path) -> dict[str, Any]:
    """One run."""
    schema, x, y = adult(directory)
    own, rest = split(len(y), seed)
    begun = time.process_time()
    if method == "MST":
        drawn, labels = by_mst(schema, x[own], y[own], seed=seed)
    else:
        drawn, labels = by_aim(schema, x[own], y[own], relation=relation, rounds=rounds, seed=seed)
    spent = time.process_time() - begun
    return {
        "method": method, "relation": relation, "epsilon": EPSILON, "rounds": rounds, "seed": seed,
        "cpu_seconds": round(spent),
        "auc": scores(schema, drawn, labels, x[rest], y[rest]),
    }  # fmt: skip


def table(runs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> str:
    """Of the runs on file, beside ours and the real records, in Markdown."""
    kinds = ("logistic regression", "boosted trees")
    adults = [one for one in ours if one["data"] == "adult"]
    groups = [
        ("real records", "", [one for one in adults if one["epsilon"] is None]),
        ("rows of `tabular`", REPLACE_ONE, [one for one in adults if one["epsilon"] == EPSILON]),
    ]
    key = operator.itemgetter("method", "relation", "rounds")
    for method, relation, rounds in dict.fromkeys(map(key, runs)):
        what = method if method == "MST" else f"AIM, T={rounds or 'default'}"
        groups.append((what, relation, [one for one in runs if key(one) == (method, relation, rounds)]))
    heads = f"| trained on | epsilon 1 under | {' | '.join(kinds)} | CPU seconds of a fit |"
    lines = [heads, "|---|---|---|---|---|"]
    for what, relation, own in groups:
        cells = " | ".join(
            records.mean_and_deviation([one["auc"][kind] for one in own]).replace(" ± ", "±") for kind in kinds
        )
        spent = max(one.get("cpu_seconds", 0.0) for one in own)
        lines.append(f"| {what} | {relation} | {cells} | {f'{spent:.0f}' if spent else ''} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "summary"))
    parser.add_argument("--data-dir", type=Path)
    records.options(parser, RESULTS, seeds=SEEDS)
    parser.add_argument(
        "--relations", nargs="+", choices=(REPLACE_ONE, ADD_OR_REMOVE), default=(REPLACE_ONE, ADD_OR_REMOVE)
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="MST: add-or-remove alone")
    parser.add_argument("--rounds", type=int, help="T of AIM; its own default is 16 for each column, and takes long")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "run":
        if arguments.data_dir is None:
            parser.error("--data-dir is needed")
        records.Rows(RESULTS, arguments.results).run(
            (
                {"method": method, "relation": relation, "epsilon": EPSILON, "rounds": rounds, "seed": seed},
                functools.partial(run, method, relation, rounds, seed, arguments.data_dir),
            )
            for seed, method, relation in itertools.product(arguments.seeds, arguments.methods, arguments.relations)
            for rounds in (None if method == "MST" else arguments.rounds,)
            if method == "AIM" or relation == ADD_OR_REMOVE
        )
        return
    print(table(records.read(arguments.results or RESULTS), records.read(generate_tables.RESULTS)))


if __name__ == "__main__":
    main()
