"""How the method's settings for few records of two classes were chosen: on Adult, dealt to four hospitals.

    python -m benchmarks.labelled_choice --data-dir ../shared/data

needs adult.npz in the folder (UCI Adult, CC BY 4.0). The hospitals have the sizes of the four in
benchmarks/labelled_hearts.py, and shares of the positive class as different as theirs, 46, 37, 97 and 78 percent; their
records are drawn anew for every seed. Numeric columns are scaled to -1..1, categories of up to eight codes are one-hot,
the mean of all is taken off. What is printed is the mean over hospitals of the test accuracy, with each hospital's own
shares and with one model for all. Seeds deal the records and draw the noise.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.labelled import ADD, REPLACE, Site, released
from benchmarks.records import Job, Row, Rows, options
from dpswd.public_client.methods.statistics import Statistics
from dpswd.public_client.methods.statistics_head import ClassSums, Head, discriminant, shares_of
from dpswd.shared.core.mechanisms.class_statistics.geometry import Weights
from dpswd.shared.models.free_weights import free_moment_weight, with_free_counts

RESULTS = Path(__file__).parent / "results" / "labelled-choice.json"
SIZES, SHARES = ((199, 104), (172, 89), (30, 16), (85, 45)), (0.46, 0.37, 0.97, 0.78)
DELTA = 1e-4
CLIPS = (0.7, 1.0, 1.5)  # over the mean norm
CHOICES = (
    Weights(2, 1.0, 0.0, 0.0), with_free_counts(2, free_moment_weight(2, 0.0)),
    Weights(2, 0.3, 0.0, 0.7), Weights(2, 0.1, 0.0, 1.0), Weights(2, 0.5, 0.0, 1.0), Weights(2, 1.0, 0.0, 1.0), None,
)  # fmt: skip
"""None: as the method chooses."""


@dataclass(frozen=True, kw_only=True)
class Fixed(Statistics):
    """The method with weights that do not follow the noise."""

    fixed: Weights | None = None

    def weights(self, noise: float, *, records: int, dimension: int, classes: int) -> Weights:
        """The fixed ones."""
        return self.fixed or super().weights(noise, records=records, dimension=dimension, classes=classes)


def table(path: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Adult's records (n, d), centred, and labels (n,)."""
    with np.load(path, allow_pickle=False) as archive:
        codes, sizes, numeric = archive["x"], archive["sizes"], archive["numeric"]
        columns = []
        for place, size in enumerate(sizes):
            if numeric[place]:
                columns.append((2.0 * codes[:, place] / (size - 1) - 1.0)[:, None])
            elif size <= 8:
                columns.append(np.eye(size)[codes[:, place]])
        values = np.concatenate(columns, axis=1)
        return (values - values.mean(axis=0)).astype(np.float32), archive["y"].astype(np.int64)


def dealt(labels: npt.NDArray[np.int64], rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    """Record numbers of each hospital, those for training first."""
    hospitals = []
    for (trained, tested), share in zip(SIZES, SHARES, strict=True):
        count = trained + tested
        ill = round(share * count)
        parts = [rng.choice(np.flatnonzero(labels == kind), size) for kind, size in ((1, ill), (0, count - ill))]
        hospitals.append(rng.permutation(np.concatenate(parts)))
    return hospitals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    options(parser, RESULTS, seeds=range(20))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    values, labels = table(arguments.data_dir / "adult.npz")
    usual = float(np.linalg.norm(values, axis=1).mean())
    scaled = {clip: (values * (0.5 / (clip * usual))).astype(np.float32) for clip in CLIPS}  # it clips at 1/2

    def job(clip: float, epsilon: float, relation: str, weights: Weights | None, seed: int) -> Job:
        def measured() -> Row:
            own, one = _reached(scaled[clip], labels, weights, epsilon, relation, seed)
            return {"own_shares": 100.0 * own, "one_model": 100.0 * one}

        words = "chosen" if weights is None else _words_for(weights)
        return {"clip": clip, "epsilon": epsilon, "relation": relation, "weights": words, "seed": seed}, measured

    cells = itertools.product(CLIPS, (1.0, 0.1), (ADD, REPLACE), CHOICES, arguments.seeds)
    rows = Rows(RESULTS, arguments.results).run(itertools.starmap(job, cells))
    print("clip / mean norm, epsilon, relation, count weight, moment weight, centring: own shares, one model")
    names = ("clip", "epsilon", "relation", "weights")
    for key, each in itertools.groupby(rows, key=lambda row: [row[name] for name in names]):
        pairs = [(row["own_shares"], row["one_model"]) for row in each]
        own, one = (statistics.mean(column) for column in zip(*pairs, strict=True))
        print(f"{', '.join(map(str, key))}: {own:.1f}, {one:.1f}", flush=True)


def _words_for(weights: Weights) -> str:
    return f"{weights.count:.2g}, {weights.moment:.2g}, {weights.centring:.2g}"


def _reached(
    values: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    weights: Weights | None,
    epsilon: float,
    relation: str,
    seed: int,
) -> tuple[float, float]:
    """Mean accuracies over hospitals, 0 to 1: with their own shares, and of one model."""
    identity, sums, tests = nn.Identity().eval(), [], []
    for place, (numbers, (trained, _)) in enumerate(
        zip(dealt(labels, np.random.default_rng(seed)), SIZES, strict=True)
    ):
        own, rest = numbers[:trained], numbers[trained:]
        sums.append(
            released(
                Site(values[own], labels[own]), identity, classes=2, epsilon=epsilon, delta=DELTA,
                seed=100 * seed + place, method=Fixed(prior="none", fixed=weights), relation=relation,
            )[0]
        )  # fmt: skip
        tests.append((values[rest] / 0.5, labels[rest]))
    together = ClassSums.together(sums)
    head, shares = discriminant(together), shares_of(together)
    one = [_accuracy(head, *test) for test in tests]
    own_shares = [
        _accuracy(head.with_shares(shares, shares_of(k, around=shares)), *test)
        for k, test in zip(sums, tests, strict=True)
    ]
    return statistics.mean(own_shares), statistics.mean(one)


def _accuracy(head: Head, u: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]) -> float:
    return float(((u @ head.weight.T + head.bias).argmax(axis=1) == labels).mean())


if __name__ == "__main__":
    main()
