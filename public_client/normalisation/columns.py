"""One explanation more, of tables and sequences: their columns lie elsewhere, beside other class frequencies.

What a column that moves does to every layer behind it, the network tells of the source's records: they are moved alike
and reweighed. So few numbers explain all layers, where a move of each channel would take other frequencies for its own.
The model is taken as linear around the last fit (Gauss-Newton); what may be true instead is drawn from the posterior,
and columns are put back only where that is expected to be right of more records.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy import special
from torch import Tensor

from dpswd.public_client.linear_evidence import LinearModel
from dpswd.public_client.normalisation.inference import Observed
from dpswd.public_client.normalisation.probes import Probed
from dpswd.public_client.normalisation.reference import Reference, Values, clipped

MOST = 100
"""Columns, at most: each is moved for itself, twice in every step."""
_WIDTHS = list(itertools.product((0.0, 0.1, 0.2, 0.4, 0.8), (0.1, 0.3, 1.0)))  # of frequencies, and of columns
_LEFT = (0.0, 0.02, 0.05, 0.1, 0.2)  # of a statistic, that neither explains
_STEPS, _DIFFERENCE, _LONGEST, _DRAWS, _RAREST = 8, 0.02, 1.0, 24, 1e-3


@dataclass(frozen=True, eq=False)
class MovedColumns:
    """What the columns and the frequencies are thought to be.

    Attributes:
        evidence: log of the marginal likelihood, nats.
        frequencies: (C,) of the classes.
        offset: (c,) of the columns, in the source's deviations.
        gain: (c,) of the columns.
        better: expected share of records by which more are right with the columns put back.
    """

    evidence: float
    frequencies: Values
    offset: Values
    gain: Values
    better: float


class Columns:
    """Public records whose columns can be moved.

    Args:
        probed: their network, whose first probe is of the records.
        records: (m, c), or (m, ..., c) as that probe has it.
        labels: (m,) their classes.
    """

    def __init__(self, probed: Probed, records: Tensor, labels: npt.NDArray[np.int64]) -> None:
        self._probed, self._records, self._labels = probed, records, labels
        self._count = probed.probes[0].place.channels

    def explained(self, observed: Observed, reference: Reference, likely: Values) -> MovedColumns:
        """The more probable of two fits: one begun at the source's frequencies, and one at others (C,) as likely."""
        fits = (self._fitted(observed, reference, start) for start in (reference.shares, likely))
        return max(fits, key=lambda fit: fit.evidence)

    def _fitted(self, observed: Observed, reference: Reference, p: Values) -> MovedColumns:
        by, roots, moves = 1.0 / observed.records + 1.0 / reference.records, np.sqrt(reference.shares), 2 * self._count
        sampling, noise = reference.along * math.sqrt(by), torch.from_numpy(by * reference.own + observed.noise**2)
        groups, now = (sampling.shape[1], len(p), moves), np.zeros(moves)
        widths = torch.tensor([(1.0, *each) for each in _WIDTHS], dtype=torch.float64)
        for _ in range(_STEPS):
            classes = self._class_means(now, reference)
            steps = _DIFFERENCE * np.eye(moves)
            slopes = [p @ (self._class_means(now + step, reference) - classes) / _DIFFERENCE for step in steps]
            jacobian = np.concatenate([sampling, (classes * roots[:, None]).T, np.stack(slopes, axis=1)], axis=1)
            around = np.concatenate([np.zeros(groups[0]), (p - reference.shares) / roots, now])
            both = torch.from_numpy(np.column_stack([jacobian, observed.moved - p @ classes + jacobian @ around]))
            models = [LinearModel(both[:, :-1], both[:, -1], groups, noise=noise + left**2) for left in _LEFT]
            laws = [model.under(widths) for model in models]
            logs = torch.cat([law.log_evidence for law in laws]).numpy()
            weights = special.softmax(logs)
            mean = weights @ torch.cat([law.mean for law in laws]).numpy()
            change = mean[-moves:] - now
            now = now + change * min(1.0, _LONGEST / max(float(np.abs(change).max()), _LONGEST))
            p = _shares(reference, mean[groups[0] : -moves])
        one = int(weights.argmax())
        spread = laws[one // len(_WIDTHS)].spread[one % len(_WIDTHS)].numpy()
        draws = mean + np.random.default_rng(0).normal(size=(_DRAWS, len(mean))) @ spread.T
        gains = [
            self._better(_shares(reference, draw[groups[0] : -moves]), draw[-moves:], p, now, reference)
            for draw in draws
        ]
        evidence = float(special.logsumexp(logs)) - math.log(logs.size) - 0.5 * len(both) * math.log(2.0 * math.pi)
        return MovedColumns(evidence, p, now[: self._count], np.exp(now[self._count :]), float(np.mean(gains)))

    def _better(self, p: Values, moves: Values, fit: Values, undone: Values, reference: Reference) -> float:
        """By how many of the records more are right where a fit is undone and another one is true."""
        offset, gain, center, spread = self._affine(undone)
        records, kinds = self._moved(moves), torch.from_numpy(reference.kinds)
        with torch.no_grad():
            back = center + (records - center - spread * offset) / gain
            before, after = (self._probed.model(each)[:, kinds] for each in (records, back))
        after = after + torch.from_numpy(np.log(fit / reference.shares)).to(after)
        right = [kinds[scores.argmax(dim=1)].numpy() == self._labels for scores in (before, after)]
        weights = (p / reference.shares)[np.searchsorted(reference.kinds, self._labels)]
        return float(weights @ (right[1].astype(float) - right[0]) / len(weights))

    def _class_means(self, moves: Values, reference: Reference) -> Values:
        """(C, d) of clipped statistics of records whose columns have moved, about the source's mean."""
        with torch.no_grad():
            vectors = self._probed(self._moved(moves)).double().numpy()
        rows = clipped((vectors - reference.center) * reference.scale, reference.radius) / reference.scale
        return np.stack([rows[self._labels == kind].mean(axis=0) for kind in reference.kinds]) - reference.mean

    def _moved(self, moves: Values) -> Tensor:
        offset, gain, center, spread = self._affine(moves)
        return center + spread * offset + gain * (self._records - center)

    def _affine(self, moves: Values) -> list[Tensor]:
        """Offsets, gains, centers and spreads in the shape of records, of offsets and logs of gains (2 c,)."""
        place = self._probed.probes[0].place
        sides = (1, -1) if place.single else (1, 1, -1) if place.last else (1, -1, 1)
        offset, logs = torch.from_numpy(moves).float().reshape(2, -1)
        return [each.reshape(sides) for each in (offset, logs.exp(), place.center, place.spread)]


def _shares(reference: Reference, changes: Values) -> Values:
    """(C,) frequencies from changes in roots of the source's."""
    shares = np.maximum(reference.shares + np.sqrt(reference.shares) * changes, _RAREST)
    return np.asarray(shares / shares.sum())
