"""Inference from what is delivered: is one record among a hospital's, and what is it like, by the file alone?

**Worlds.** A hospital that is made of the public source (or of what a generator draws) holds one record opposite to the
others' middle, or in its place the source's furthest, or that one with another label (where none are read: another
value in its furthest column). All else but the noise is the same in every trial, directions included, for they are
public. The release is made at the certificate's noise and the file derived as `check` derives it. Where the source
itself calls for no change of the model, it is moved until the same runs are asked and the model changes.

**Membership** tells the second world from the first, **attribute** from the third, by the likelihood-ratio attack with
shadow models (Carlini and others, S&P 2022): half of the files are shadows, whose statistics give a normal law for each
world. The ratio of the two, above 1 or not, tells the other half. Of a model the statistics are its scores at the two
records and at the middle, of a generator shares and moments of 2,000 rows along the line between them.

**Bounds.** Clopper-Pearson limits of the two error rates give epsilon whatever the mechanism is (Jagielski, Ullman and
Oprea, NeurIPS 2020), and the least mu of a Gaussian's law that has such rates, in whose units all releases of full
batches are told (Dong, Roth and Su, JRSS B 2022).
"""

from __future__ import annotations

import datetime as dt
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import beta, multivariate_normal, norm
from torch import Tensor

from dpswd.public_client.curator.description import Description
from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.source import collect
from dpswd.public_client.evidence.certificate import described
from dpswd.public_client.evidence.evidence import GENERATOR, Evidence
from dpswd.public_client.generation.generator import load_generator
from dpswd.public_client.ladder.check import Checked, derive_by, source_batches
from dpswd.public_client.testing.canaries import CERTAIN, CONFIDENCE, rounded_down
from dpswd.public_client.testing.mock import MockCurator
from dpswd.shared.accounting.calibration import epsilon as epsilon_of
from dpswd.shared.core.errors import DpswdError, InvalidValue
from dpswd.shared.core.privacy.budget import MAX_EPSILON
from dpswd.shared.core.privacy.event_json import event_from_json
from dpswd.shared.core.privacy.events import BoundedSum, RunEvent, StepEvent
from dpswd.shared.mechanisms import every_mechanism
from dpswd.shared.models.adapted import read_adapted

MOST_TRIALS, LEAST_TRIALS, MINUTES = 200, 100, 10
"""Files of each world where nobody says how many: the most, the least, and what time limits between them."""
MEMBERSHIP, ATTRIBUTE = "membership", "attribute"
MOVES = ((0.0, 1.0), (1.5, 1.0), (0.0, 0.5), (-1.5, 0.5), (3.0, 1.0))
"""Deviations by which a source is moved, and by what it is stretched before, in the order in which they are tried."""

_FARTHER = 2.0  # than the source's furthest record: clipped, whatever is read of it
_ROWS = 2000
_MOST = 2**20
_SPREAD = 1e-3  # added to variances, in units of a statistic's own over both worlds: it may never change
_LEAST = 1e-12

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StandIn:
    """A hospital made of public records, and the record that it holds in one place in each of three worlds.

    Attributes:
        description: of the hospital that it stands for.
        records: (n, ...), the first of which is replaced.
        labels: (n,).
        ones: (3, ...) records of the worlds.
        kinds: (3,) their labels.
    """

    description: Description
    records: Tensor
    labels: Tensor
    ones: Tensor
    kinds: Tensor

    @classmethod
    def of(
        cls, description: Description, records: Tensor, labels: Tensor, move: tuple[float, float], *, labelled: bool
    ) -> StandIn:
        """Of public records (m, ...) and labels (m,), moved as of `MOVES`; `labelled`: where labels are read."""
        chosen = np.random.default_rng(0).integers(len(records), size=description.records)
        deviation, centre = records.std(dim=0, unbiased=False), records.mean(dim=0)
        held, kinds = centre + move[1] * (records[chosen] - centre) + move[0] * deviation, labels[chosen]
        middle = held.mean(dim=0)
        far = (held - middle) / deviation.clamp(min=1e-6 + 0.1 * float(deviation.mean()))
        first = int(torch.linalg.vector_norm(far.flatten(1), dim=1).argmax())
        away = _FARTHER * (held[first] - middle)
        ones, own = middle + torch.stack([-away, away, away]), kinds[[first, first, first]]
        if labelled and description.classes > 1:
            own[2] = (own[1] + 1) % description.classes
        else:
            column = int(far[first].abs().argmax())
            ones[2].view(-1)[column] = ones[0].view(-1)[column]
        return cls(description, held, kinds, ones, own)

    def curator(self, world: int, seed: int) -> MockCurator:
        """Its curator in a world; the seed is the noise's."""
        records, labels = self.records.clone(), self.labels.clone()
        records[0], labels[0] = self.ones[world], self.kinds[world]
        return MockCurator(
            self.description,
            records=records.numpy(),
            labels=labels.numpy(),
            randomness=np.random.default_rng([world, seed]).bytes,
            seeds=np.random.default_rng(0).bytes,
        )

    def seen(self, path: Path, kind: str) -> Values:
        """What an attacker reads off a file, (s,)."""
        label, other = int(self.kinds[1]), int(self.kinds[2 if self.kinds[2] != self.kinds[1] else 0])
        middle = self.records.mean(dim=0)
        if kind != GENERATOR:
            looked = torch.stack([self.ones[1], self.ones[0], middle])
            scores = torch.log_softmax(read_adapted(path).scores(looked).double(), dim=1)
            own = scores[:, label]
            rest = scores.clone().index_fill_(1, torch.tensor([label]), -torch.inf).logsumexp(dim=1)
            return torch.cat([own - rest, own - scores[:, other]]).numpy()
        drawn, kinds = load_generator(path).sample(_ROWS, seed=1)
        line = (self.ones[1] - middle).flatten()
        along = ((drawn - middle).flatten(1) @ line / line.square().sum().clamp(min=1e-12)).double()
        same = (kinds == label).double()
        shares = [same, (kinds == other).double(), along, along.square(), same * along, (along > 0.5).double()]
        return torch.stack([share.mean() for share in shares]).numpy()


def attacked(
    path: Path, checked: Checked, *, model: Any, source: Any, trials: int | None = None, progress: bool = True,
    announce: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """What membership and attribute inference prove of a delivered file.

    Args:
        path: of the model or the generator.
        checked: of it, without findings.
        model: see `derive`.
        source: see `derive`.
        trials: files of each world, half of them as shadows; None for as many as `MINUTES` allow.
        progress: shows a bar.
        announce: is told how long it will take.

    Returns:
        For each secret what the certificate claims, both lower bounds at `CONFIDENCE`, whether one at `CERTAIN` refutes
        the claim, of what the stand-in was made, trials, seconds and the day.

    Raises:
        InvalidValue: nothing was found of which such a file would follow.
    """
    evidence, begun = checked.evidence, time.monotonic()
    batches = source_batches(evidence.settings, source)
    privacy, delta = checked.certificate["privacy"], float(checked.certificate["privacy"]["delta"])
    with tempfile.TemporaryDirectory() as folder:
        files = _Files(evidence, Path(folder) / path.name, model, batches)
        made_of, stand_in, each_s = files.stand_in(path)
        if trials is None:
            trials = min(MOST_TRIALS, max(LEAST_TRIALS, int(60 * MINUTES / each_s / 3)))
        announce(f"{3 * trials} files at {each_s:.2g} s: about {math.ceil(3 * trials * each_s / 60)} min")
        with reporting("attacking the file", 3 * trials, shown=progress) as bar:
            worlds = [files.drawn(stand_in, world, trials, bar.advance) for world in range(3)]
    rows = []
    for secret, outside in ((MEMBERSHIP, worlds[0]), (ATTRIBUTE, worlds[2])):
        scores = ratios(outside, worlds[1])
        stated, surely = (bounds(*scores, delta=delta, confidence=confidence) for confidence in (CONFIDENCE, CERTAIN))
        row = {"attack": secret, "claim": privacy["epsilon"], "whatever_it_is": rounded_down(stated[0])}
        row |= {"lower_bound": rounded_down(stated[1])} if files.whole else {}
        row |= {"refuted": max(surely if files.whole else surely[:1]) > privacy["epsilon"], "confidence": CONFIDENCE}
        row |= {"stand_in": made_of, "trials": trials, "seconds": round(time.monotonic() - begun)}
        rows.append(row | {"day": f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"})
    return rows


class _Files:
    """Files as the evidence has them made, of hospitals that stand in."""

    def __init__(self, evidence: Evidence, to: Path, model: Any, batches: Batches) -> None:
        self._evidence, self._to, self._model, self._batches = evidence, to, model, batches
        self._kind = str(evidence.settings["kind"])
        self._events = [event_from_json(str(run.entries[0].payload["event"])) for run in evidence.runs()]
        mechanisms = every_mechanism()
        self._labelled = any(mechanisms[run.parameters.mechanism].needs_labels for run in evidence.runs())
        self.whole = all(event.step.batch == event.step.records for event in self._events)

    def stand_in(self, path: Path) -> tuple[str, StandIn, float]:
        """In words of what it is made, itself, and the seconds of a file."""
        description = described(self._evidence)
        fresh = replace(description.data_set_budget, epsilon=MAX_EPSILON, spent=0.0, remaining=MAX_EPSILON)
        if description.remaining <= 0.0:  # of a published release
            description = replace(description, data_set_budget=fresh, client_budget=fresh)
        if self._kind == GENERATOR:
            records, labels = load_generator(path).sample(min(description.records, _MOST))
        else:
            source = collect(self._batches, most=_MOST)
            records, labels = source.images.float(), source.labels
        best: tuple[int, str, StandIn, float] | None = None
        for move in MOVES[: 1 if self._kind == GENERATOR else None]:
            begun, own = time.monotonic(), StandIn.of(description, records, labels, move, labelled=self._labelled)
            curator = own.curator(1, 0)
            try:
                self._make(curator)
            except DpswdError:  # of a source that is moved so far, say
                continue
            alike = [charge.run.event for charge in curator.charges] == self._events
            changed = self._kind == GENERATOR or self._changed()
            words = f"the source stretched by {move[1]:g} and moved by {move[0]:g} deviations"
            words = "rows of the generator" if self._kind == GENERATOR else words
            words += ("" if alike else ", asked other runs") + ("" if changed else ", where the model stays")
            if best is None or alike + 2 * changed > best[0]:
                best = alike + 2 * changed, words, own, time.monotonic() - begun
            if alike and changed:
                break
        if best is None:
            raise InvalidValue("no hospital that is made of the source is answered as this one was")
        return best[1:]

    def drawn(self, stand_in: StandIn, world: int, trials: int, advance: Callable[[str], None]) -> Values:
        """What is seen of files of one world (trials, s)."""
        rows = []
        for trial in range(trials):
            self._make(stand_in.curator(world, 1 + trial))
            rows.append(stand_in.seen(self._to, self._kind))
            advance("")
        return np.stack(rows)

    def _make(self, curator: MockCurator) -> None:
        derive_by(curator, self._evidence, self._to, model=self._model, batches=self._batches, summed_up=False)

    def _changed(self) -> bool:
        """Whether the model is another than the team's."""
        weights, before = read_adapted(self._to).composed()[1], self._evidence.weights
        return set(weights) != set(before) or any(not torch.equal(weights[name], before[name]) for name in before)


def ratios(outside: Values, inside: Values) -> tuple[Values, Values]:
    """Log-likelihood ratios of the later half of each world's statistics (N, s), by normal laws of the earlier half."""
    half = len(outside) // 2
    unit = np.concatenate([outside[:half], inside[:half]]).std(axis=0) + _LEAST
    worlds = outside / unit, inside / unit
    without, within = (
        multivariate_normal(own[:half].mean(axis=0), np.cov(own[:half].T) + _SPREAD * np.eye(own.shape[1]))
        for own in worlds
    )
    first, second = (np.atleast_1d(within.logpdf(own[half:]) - without.logpdf(own[half:])) for own in worlds)
    return first, second


def bounds(outside: Values, inside: Values, *, delta: float, confidence: float) -> tuple[float, float]:
    """Lower bounds on epsilon by how often ratios above 0 tell two worlds: whatever it is, and by a Gaussian's law.

    Args:
        outside: (N,) of files of one world.
        inside: (N,) of the other's.
        delta: of the claim.
        confidence: that a bound holds.
    """
    each = (1.0 - confidence) / 2.0
    false = upper_limit(int((outside > 0.0).sum()), len(outside), each)
    true = 1.0 - upper_limit(int((inside <= 0.0).sum()), len(inside), each)
    sides = [(true - delta, false), (1.0 - false - delta, 1.0 - true)]
    whatever = max(math.log(high / low) if high > 0.0 else 0.0 for high, low in sides)
    mu = float(norm.ppf(true) - norm.ppf(false))
    if not mu > 1e-3:
        return max(0.0, whatever), 0.0
    gaussian = StepEvent(1, 1, (BoundedSum(1, 1.0, 1, 1.0 / mu),))
    return max(0.0, whatever), epsilon_of(RunEvent(gaussian, 1), delta)


def upper_limit(hits: int, trials: int, alpha: float) -> float:
    """Clopper-Pearson: the rate is at most this, wrong with probability at most alpha."""
    return 1.0 if hits == trials else float(beta.ppf(1.0 - alpha, hits + 1, trials - hits))
