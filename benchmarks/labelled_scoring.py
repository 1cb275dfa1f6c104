"""What the parts of Fisher scoring bring: Adult by other columns than its table's, in plain arithmetic.

    python -m benchmarks.labelled_scoring --data-dir ../shared/data
    python -m benchmarks.labelled_scoring --data-dir ../shared/data --seeds 0,1,2,3 --epsilon 1 --together

needs adult.npz in the folder. People are dealt to hospitals as by `benchmarks.labelled_occupations choose`, and from
other sources and by race; nothing is looked at by occupation. The gradients are the mechanism's sums with its noise,
the descents are the product's own. Told are, for each dealing, the mean points of accuracy below training on the
hospitals' labels, and thousandths of log-loss above it; of so many seeds, that
draw people and noise. The second command looks at scoring alone and together only.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.labelled_gradients import clipped_sum, set_gradient
from benchmarks.labelled_occupations import DELTA, OTHERS, Dealing, Task, fitted, tasks
from benchmarks.records import Job, Row, Rows, options
from dpswd.public_client.published_methods.joint_scoring import JointScoring
from dpswd.public_client.published_methods.newton import Newton
from dpswd.public_client.published_methods.public_view import parted, viewed_head
from dpswd.public_client.published_methods.scoring import Scoring
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.core.privacy.events import RunEvent, SanitizedGradient, StepEvent
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import entropy_cotangents

RESULTS = Path(__file__).parent / "results" / "labelled-scoring.json"
EPSILONS = (1.0, 0.2)
DEALT = (*OTHERS, Dealing("workclass", 1, 1400), Dealing("marital-status", 2, 1400), Dealing("race", 0, 1400))
_CLIP_SHARE = 0.6  # the method's own


@dataclass(frozen=True)
class Variant:
    """What is done otherwise.

    Attributes:
        name: for the table.
        clip: in units of the method's own.
        steps: on all records.
        tells_clip: whether scoring knows of the clip.
        newton: whether the descent is Newton's.
        together: whether hospitals learn from each other.
    """

    name: str
    clip: float = 1.0
    steps: int = 10
    tells_clip: bool = True
    newton: bool = False
    together: bool = False


VARIANTS = (
    Variant("scoring"), Variant("scoring together", together=True),
    Variant("the clip is no part of the equation", tells_clip=False), Variant("half the clip", clip=0.5),
    Variant("1.5 times the clip", clip=1.5),
    Variant("newton's steps with scoring's clip", steps=20, newton=True),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Asked:
    """A hospital whose labels are asked by gradients.

    Attributes:
        whole: the source's classifier, in the axes of the source's features.
        head: what is trained of it.
        records: of the hospital, in these axes.
        labels: theirs.
        shown: the source's records, in these axes.
        clip_norm: of a record's gradient.
        noise: deviation of each coordinate of the mean.
        generator: of the noise.
    """

    whole: nn.Module
    head: nn.Linear
    records: Tensor
    labels: Tensor
    shown: Tensor
    clip_norm: float
    noise: float
    generator: torch.Generator

    @classmethod
    def of(cls, task: Task, variant: Variant, *, epsilon: float, seed: int) -> Asked:
        """With the noise of a seed."""
        (own, labels), public = task.trained, task.source.tensors
        whole = viewed_head(task.start, public[0], power=0.0)
        _, head = parted(whole)
        with torch.no_grad():
            seen, shown = whole.view(own), whole.view(public[0])
            wide = torch.cat([shown, torch.ones(len(shown), 1)], dim=1)
            wrong = entropy_cotangents(head(shown), 1 - public[1]).norm(dim=1) * wide.norm(dim=1)
        clip_norm = _CLIP_SHARE * variant.clip * float(wrong.median())
        noise = _noise(len(own), 2 * wide.shape[1], variant.steps, epsilon) * 2.0 * clip_norm / len(own)
        generator = torch.Generator().manual_seed(1000 * seed + task.code)
        return cls(whole, head, seen, labels, shown, clip_norm, noise, generator)

    def scoring(self, variant: Variant) -> Scoring:
        """By the method's own recipe, if the variant says nothing else."""
        clip_norm = self.clip_norm if variant.tells_clip else float("inf")
        return Scoring(self.head, self.shown, records=len(self.labels), noise=self.noise, clip_norm=clip_norm)

    def answer(self) -> None:
        """A released gradient, where the head's own are kept."""
        mean = clipped_sum(self.head, self.records, self.labels, clip_norm=self.clip_norm) / len(self.labels)
        set_gradient(self.head, mean + self.noise * torch.randn(mean.shape, generator=self.generator))


def reached(dealt: Sequence[Task], variant: Variant, *, epsilon: float, seed: int) -> list[nn.Module]:
    """The hospitals' classifiers after a variant's steps."""
    asked = [Asked.of(task, variant, epsilon=epsilon, seed=seed) for task in dealt]
    descents: list[torch.optim.Optimizer]
    if variant.together:
        descents = [JointScoring({str(place): one.scoring(variant) for place, one in enumerate(asked)})]
    elif variant.newton:
        descents = [Newton(one.head, one.shown, noise=one.noise) for one in asked]
    else:
        descents = [one.scoring(variant) for one in asked]
    for _ in range(variant.steps):
        for one in asked:
            one.answer()
        for descent in descents:
            descent.step()
    return [one.whole for one in asked]


@functools.cache
def _noise(records: int, numbers: int, steps: int, epsilon: float) -> float:
    """Deviation in units of the sensitivity, of full steps."""

    def run(noise: float) -> RunEvent:
        return RunEvent(StepEvent(records, records, (SanitizedGradient(numbers, 1.0, 2.0 * noise),)), steps)

    return calibrate_sigma(run, epsilon=epsilon, delta=DELTA)


def _beside(model: nn.Module, own: nn.Module, task: Task) -> tuple[float, float]:
    """Points of accuracy below, and thousandths of log-loss above."""
    x, y = task.tested
    with torch.no_grad():
        scores = [one(x) for one in (own, model)]
    right = [100.0 * float((one.argmax(dim=1) == y).double().mean()) for one in scores]
    losses = [1000.0 * float(functional.cross_entropy(one, y)) for one in scores]
    return right[0] - right[1], losses[1] - losses[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    options(parser, RESULTS, seeds=(0,))
    parser.add_argument("--epsilon", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--together", action="store_true")
    arguments = parser.parse_args()
    path, variants = arguments.data_dir / "adult.npz", VARIANTS[: 2 if arguments.together else None]
    torch.set_num_threads(1)

    def job(epsilon: float, variant: Variant, dealing: Dealing, seed: int) -> Job:
        settings = {"epsilon": epsilon, "variant": variant.name, "dealing": _words_for(dealing), "seed": seed}
        return settings, functools.partial(measured, path, dealing, variant, epsilon=epsilon, seed=seed)

    cells = itertools.product(arguments.epsilon, variants, DEALT, arguments.seeds)
    rows = Rows(RESULTS, arguments.results).run(itertools.starmap(job, cells))
    heads = [_words_for(dealing) for dealing in DEALT]
    print(f"| epsilon | | {' | '.join(heads)} | mean |\n|{'---|' * (len(heads) + 3)}")
    for (epsilon, name), each in itertools.groupby(rows, key=lambda row: (row["epsilon"], row["variant"])):
        group = [*each]
        figures = [_means(row["hospitals"] for row in group if row["dealing"] == head) for head in heads]
        shown = " | ".join(f"{points:.2f}, {loss:.1f}" for points, loss in [*figures, _means([figures])])
        print(f"| {epsilon:g} | {name} | {shown} |")


def _words_for(dealing: Dealing) -> str:
    return f"{dealing.column} from {dealing.source}"


def _means(groups: Iterable[Sequence[Sequence[float]]]) -> tuple[float, float]:
    """Of the points and the losses of all pairs in all groups."""
    points, losses = zip(*itertools.chain.from_iterable(groups), strict=True)
    return statistics.mean(points), statistics.mean(losses)


@functools.cache
def _dealt(path: Path, dealing: Dealing, seed: int) -> list[tuple[Task, nn.Module]]:
    """Hospitals, and what each one's labels alone would teach."""
    return [(task, fitted(*task.trained)) for task in tasks(path, dealing, seed=seed)]


def measured(path: Path, dealing: Dealing, variant: Variant, *, epsilon: float, seed: int) -> Row:
    """Of each hospital the points of accuracy below its own labels' model, and thousandths of log-loss above."""
    own = _dealt(path, dealing, seed)
    models = reached([task for task, _ in own], variant, epsilon=epsilon, seed=seed)
    pairs = [_beside(model, best, task) for model, (task, best) in zip(models, own, strict=True)]
    points, loss = _means([pairs])
    return {"points": points, "loss": loss, "hospitals": pairs}


if __name__ == "__main__":
    main()
