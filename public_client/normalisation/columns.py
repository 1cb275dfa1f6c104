"""One explanation more, of tables and sequences: their columns lie elsewhere, beside other class frequencies.

What a column that moves does to every layer behind it, the network tells of the source's records, moved alike and
reweighed: few numbers explain all layers. The model is linear around the last fit (Gauss-Newton); what may be true
instead is drawn from the posterior, and columns are put back only where more records are expected to be right.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import special
from torch import Tensor

from dpswd.public_client.linear_evidence import LinearModel, Normal
from dpswd.public_client.normalisation.inference import FREQUENCY_WIDTHS, Observed, Simplex
from dpswd.public_client.normalisation.reference import Labels, Reference, Values, clipped
from dpswd.public_client.probes.probes import Probed, statistics_of

MOST = 100, 32, 12
"""Columns of a table, of one whose network is slow, or channels of a sequence, that are moved each by itself."""
STILL = np.array([[0.0], [1.0]])  # offset and gain of what has not moved
_EACH = (0.03, 0.1, 0.3, 1.0)
_WIDTHS = [(1.0, *each) for each in itertools.product((0.0, *FREQUENCY_WIDTHS), _EACH)]  # noise, classes, moves
_TILTS = [(1.0, *each) for each in itertools.product((0.0, *_EACH), (0.0, *_EACH)) if any(each)]  # no codes, codes
_LEFT = (0.0, 0.02, 0.05, 0.1, 0.2)  # of a statistic, that neither explains
_STEPS, _DIFFERENCE, _LONGEST, _SETTLED, _DRAWS, _RAREST = 8, 0.02, 1.0, 1e-3, 24, 1e-3
_FACTORS = (0.4, 0.9, 1.6, 2.8)  # logarithms of other units that are tried in one column, up and down
_OFFSETS = (0.5, 1.2, 2.5, 5.0)  # the same of other places, in deviations
_SHOWN, _CLEAR, _FAR_COLUMNS, _NEAR = 600, 10.0, 4, 3.0  # records that try, nats, columns, deviations
_CODES, LEAST_SAID, _MOST_SAID = 16, 0.15, 3  # values of what is no measurement; least deviations in words; columns
_FITTED, SLOW = 1024, 300_000  # about as many records fit the moves where one takes more operations, or is a sequence


def record_passes(channels: int) -> int:
    """Records that are evaluated to see how their columns have moved, at most, where one takes long."""
    tries = (_FAR_COLUMNS + 1) * channels * 2 * len(_FACTORS + _OFFSETS)
    return 3 * (_FITTED * (_STEPS * (2 * channels + 1) + 2 * _DRAWS) + tries * _SHOWN)


def composed(far: Values | None, rest: Values) -> Values:
    """(2, c) offsets and gains of what moved by `rest` before it moved by `far`."""
    return rest if far is None else np.stack([far[0] + far[1] * rest[0], far[1] * rest[1]])


@dataclass(frozen=True, eq=False)
class MovedColumns:
    """What the columns and the frequencies are thought to be.

    Attributes:
        evidence: log of the marginal likelihood, nats, up to what the release's size adds.
        frequencies: (C,) of the classes.
        moves: (2, c) offsets of the columns, in the source's deviations, and gains; below 0 where they are inverted.
        draws: frequencies (C,) and moves (2, c) that may be true instead.
        better: expected share of records by which more are right with the columns put back.
    """

    evidence: float
    frequencies: Values
    moves: Values
    draws: list[tuple[Values, Values]]
    better: float = 0.0

    def said(self, names: Sequence[str] = ()) -> str:
        """The columns that moved furthest, by name where there are names."""
        offset, gain = self.moves
        if len(gain) > MOST[2] and np.ptp(gain) == 0.0:
            return f"all of them by {offset.mean().round(1) + 0.0:+.1f} deviations and times {gain[0]:.2g}"
        sizes = np.stack([np.abs(offset), np.where(gain > 0.0, np.abs(np.log(np.abs(gain))), math.inf)])
        said = [k for k in np.argsort(-sizes.sum(axis=0)) if sizes[:, k].max() > LEAST_SAID][:_MOST_SAID]
        of = [names[k] if names else f"column {k}, counted from 0," for k in said]
        by = [f"by {offset[k].round(1) + 0.0:+.1f} deviations and times {gain[k]:.2g}" for k in said]
        return "; ".join(map(" ".join, zip(of, by, strict=True))) or "none by much"


class Columns:
    """Public records whose columns can be moved, each by itself or, where there are many, all alike (signals).

    Moves are (3 q,) offsets, logs of gains and signs, of q columns; all alike they are one, about the values' zero.

    Args:
        probed: their network, whose first probe is of the records.
        records: (m, c), or (m, ..., c) as that probe has it.
        labels: (m,) their classes.
        work: floating point operations of one record.

    Attributes:
        are_signals: whether they may be inverted.
    """

    def __init__(self, probed: Probed, records: Tensor, labels: Labels, work: int = 0) -> None:
        self._probed, self._records, self._labels = probed, records, labels
        place, self._lacking = probed.probes[0].place, np.zeros(())
        self._place, self._slow = place, work > SLOW or not place.single
        values = [len(np.unique(column)) if place.single else 0 for column in records.numpy().T[: place.channels]]
        free = np.flatnonzero([not 1 < count <= _CODES for count in values])  # flags, codes, grades have no unit
        self._alike = len(free) > MOST[work > SLOW if place.single else 2]
        self._free = np.zeros(1, dtype=int) if self._alike else free
        # How far below the center a value's zero lies, about which signals are inverted.
        self._zeros = np.zeros(1) if self._alike else (place.center / place.spread).double().numpy()
        self._count, none = len(self._zeros), 0.0 * self._zeros
        self._still = np.stack([none, none, none + 1.0])
        self._inverted = np.stack([-2.0 * self._zeros, none, none - 1.0])
        self.are_signals = self._alike or not place.single

    def explained(self, observed: Observed, reference: Reference, likely: Values) -> MovedColumns:
        """The most probable of some fits: begun at the source's frequencies, at others (C,) as likely, or far away."""
        p, still, (far, picks) = reference.shares, self._still, self._far(observed, reference)
        starts = [(p, still, 0), (likely, still, 0), (p, self._inverted, 1)][: 2 + self.are_signals]
        starts += [(p, far, picks)] * bool(picks)
        some = self._few(slice(None, None, -(-len(self._labels) // _FITTED)), reference) if self._slow else self
        fits = [some._fitted(observed, reference, *start) for start in starts]
        *_, best = fits = sorted(fits, key=lambda fit: fit.evidence)
        ends = {str(np.round(fit.moves, 1)): fit for fit in fits}.values()
        gains = [np.mean([some._better(*draw, best, reference) for draw in fit.draws]) for fit in ends]
        return replace(best, better=float(special.softmax([fit.evidence for fit in ends]) @ gains))

    def hidden(self, observed: Observed, reference: Reference) -> Values | None:
        """Offsets and gains (2, c) of columns that moved so far that the clip may hide how far, if there are some."""
        there = STILL if self._alike else self._affine(self._far(observed, reference)[0])
        far = (np.abs(there[0]) > _NEAR) | (there[1] > math.e)
        return np.where(far, there, STILL) if far.any() else None

    def _few(self, part: slice, reference: Reference) -> Columns:
        """This part of each class, with what its means lack of all records' where no column has moved."""
        shown = np.concatenate([np.flatnonzero(self._labels == kind)[part] for kind in reference.kinds])
        some = copy.copy(self)
        some._records, some._labels = self._records[shown], self._labels[shown]
        some._lacking = reference.classes - some._class_means(self._affine(self._still), reference)
        return some

    def _far(self, observed: Observed, reference: Reference) -> tuple[Values, int]:
        """Few columns in other units, or inverted, and how many: steps from the source's own do not come so far."""
        now, picks, some = self._still, 0, self._few(slice(-(-_SHOWN // len(reference.kinds))), reference)
        none = 0.0 * self._zeros
        logs, offsets = ((*each, *(-one for one in each)) for each in (_FACTORS, _OFFSETS))
        sizes = [np.stack([self._zeros * math.expm1(log), none + log, none + 1.0]) for log in logs]
        sizes += [np.stack([none + offset, none, none + 1.0]) for offset in offsets]
        sizes += [self._inverted] if self.are_signals else []
        tried = [(np.arange(self._count) == k, size) for k in self._free for size in sizes]

        def nats(moves: Values) -> float:
            classes = some._class_means(self._affine(moves), reference)
            rest, parts = observed.moved - reference.shares @ classes, [_frequencies(reference, classes)]
            return max(float(law.log_evidence) for law in _laws(observed, reference, rest, parts, [(1.0, 0.4)]))

        best = nats(now)
        while picks < min(_FAR_COLUMNS, len(self._free)):
            moves = [np.where(column, size, now) for column, size in tried]
            scores = [nats(move) for move in moves]
            if max(scores) < best + _CLEAR:
                break
            best, now, picks = max(scores), moves[int(np.argmax(scores))], picks + 1
        return now, picks

    def _fitted(self, observed: Observed, reference: Reference, p: Values, start: Values, picks: int) -> MovedColumns:
        """From a start (3 q,) that picks so many sizes of columns."""
        free, simplex = np.concatenate([self._free, self._count + self._free]), Simplex(reference.shares)
        start = start.reshape(-1)
        now, middle = start.copy(), start[free]
        ends = np.cumsum([reference.along.shape[1], len(p)])
        frequencies, own = slice(*ends), slice(ends[1], None)
        for _ in range(_STEPS):
            classes = self._class_means(self._affine(now), reference)
            steps = (self._affine(now + step) for step in _DIFFERENCE * np.eye(len(now))[free])
            slopes = [p @ (self._class_means(each, reference) - classes) / _DIFFERENCE for each in steps]
            jacobian = np.reshape(slopes, (len(free), len(classes.T))).T
            about = (p - reference.shares) @ classes + jacobian @ (now[free] - middle)
            parts = [_frequencies(reference, classes), jacobian]
            laws = _laws(observed, reference, observed.moved - p @ classes + about, parts, _WIDTHS)
            logs, means = map(np.concatenate, zip(*(_cut(law, simplex, frequencies) for law in laws), strict=True))
            mean = special.softmax(logs) @ means
            change = middle + mean[own] - now[free]
            now[free] += change * min(1.0, _LONGEST / np.abs(change).max(initial=_LONGEST))
            p = _shares(reference, mean[frequencies])
            if np.abs(change).max(initial=0.0) < _SETTLED:
                break
        spreads, rng = np.concatenate([law.spread.numpy() for law in laws]), np.random.default_rng(0)
        picked = rng.choice(len(logs), _DRAWS, p=special.softmax(logs))
        draws = [means[one] + spreads[one] @ rng.normal(size=len(mean)) for one in picked]
        moves = np.tile(start, (_DRAWS, 1))
        moves[:, free] = middle + np.stack(draws)[:, own]
        true = [(_shares(reference, draw[frequencies]), self._affine(m)) for draw, m in zip(draws, moves, strict=True)]
        evidence = float(special.logsumexp(logs)) - math.log(logs.size)
        evidence -= picks * math.log(1 + len(free) * len(_FACTORS + _OFFSETS))
        return MovedColumns(evidence, p, self._affine(now), true)

    def weigh_people(self, observed: Observed, reference: Reference) -> float:
        """The evidence, in nats, that who comes was chosen by columns u (m, c): records weigh exp(u tilt).

        That is a covariate shift (Shimodaira 2000, Journal of Statistical Planning and Inference 90): what a class is
        given its columns stays, and the best model is the team's. The tilt's prior has a width for codes of its own.
        """
        u = ((self._records - self._place.center) / self._place.spread).double().numpy()
        order = np.concatenate([self._free, np.setdiff1d(np.arange(u.shape[1]), self._free)])
        u, tilt = np.clip(u, -_NEAR, _NEAR)[:, order], np.zeros(len(order))
        rows = clipped(reference.rows * reference.scale, reference.radius) / reference.scale - reference.mean
        for _ in range(_STEPS):
            weights = special.softmax(u @ tilt)
            jacobian = (rows * weights[:, None]).T @ (u - weights @ u)
            rest = observed.moved - weights @ rows + jacobian @ tilt
            laws = _laws(observed, reference, rest, np.split(jacobian, [len(self._free)], axis=1), _TILTS)
            logs = np.concatenate([law.log_evidence.numpy() for law in laws])
            mean = special.softmax(logs) @ np.concatenate([law.mean.numpy() for law in laws])
            change = mean[-len(tilt) :] - tilt
            tilt += change * min(1.0, _LONGEST / np.abs(change).max(initial=_LONGEST))
            if np.abs(change).max() < _SETTLED:
                break
        return float(special.logsumexp(logs)) - math.log(logs.size)

    def _better(self, p: Values, moves: Values, fit: MovedColumns, reference: Reference) -> float:
        """By how many of the records more are right where a fit is undone and another one is true."""
        kinds, back = torch.from_numpy(reference.kinds), np.stack([moves[0] - fit.moves[0], moves[1]]) / fit.moves[1]
        with torch.no_grad():
            before, after = (self._probed.model(self._moved(each))[:, kinds] for each in (moves, back))
        after = after + torch.from_numpy(np.log(fit.frequencies / reference.shares)).to(after)
        right = [kinds[scores.argmax(dim=1)].numpy() == self._labels for scores in (before, after)]
        weights = (p / reference.shares)[np.searchsorted(reference.kinds, self._labels)]
        return float(weights @ (right[1].astype(float) - right[0]) / len(weights))

    def _class_means(self, moves: Values, reference: Reference) -> Values:
        """(C, d) of clipped statistics of records whose columns have moved, about the source's mean."""
        rows = statistics_of(self._probed, self._moved(moves))[:, : len(reference.center)].double().numpy()
        rows = (rows - reference.center) * reference.scale
        rows = clipped(rows, reference.radius) / reference.scale - reference.mean
        return np.stack([rows[self._labels == kind].mean(axis=0) for kind in reference.kinds]) + self._lacking

    def _moved(self, moves: Values) -> Tensor:
        """The records, moved by offsets and gains (2, c)."""
        place, of = self._place, torch.from_numpy(moves).float()
        sides = (1, -1) if place.single else (1, 1, -1) if place.last else (1, -1, 1)
        offset, gain, center, spread = (each.reshape(sides) for each in (*of, place.center, place.spread))
        moved: Tensor = center + spread * offset + gain * (self._records - center)
        return moved

    def _affine(self, moves: Values) -> Values:
        """Offsets and gains (2, c) of moves (3 q,); see the class."""
        offset, logs, signs = moves.reshape(3, -1)
        gain = signs * np.exp(logs)
        if self._alike:
            center, spread = self._place.center.double().numpy(), self._place.spread.double().numpy()
            offset = ((gain - 1.0) * center + offset * math.hypot(np.sqrt(np.mean(spread**2)), center.std())) / spread
        return np.stack([offset, gain + 0.0 * offset])


def _frequencies(reference: Reference, classes: Values) -> Values:
    """(d, C) what changes of frequencies do, in roots of the source's, to classes of these means (C, d)."""
    return np.asarray(((classes - reference.shares @ classes) * np.sqrt(reference.shares)[:, None]).T)


def _laws(
    observed: Observed, reference: Reference, rest: Values, parts: Sequence[Values], widths: Sequence[tuple[float, ...]]
) -> list[Normal]:
    """Of what is left (d,): of noise and parts (d, ...), under each of their widths, for each part of `_LEFT`."""
    by = 1.0 / observed.records + 1.0 / reference.records
    every = [reference.along * math.sqrt(by), *parts]
    groups = [part.shape[1] for part in every]
    both = torch.from_numpy(np.concatenate([*every, rest[:, None]], axis=1))
    noise, tried = torch.from_numpy(by * reference.own + observed.noise**2), torch.tensor(widths, dtype=torch.float64)
    return [LinearModel(both[:, :-1], both[:, -1], groups, noise=noise + left**2).under(tried) for left in _LEFT]


def _cut(law: Normal, simplex: Simplex, at: slice) -> tuple[Values, Values]:
    """Evidence (W,) of a law under each of `_WIDTHS`, and means (W, p), of frequencies that can be."""
    logs, means, widths = law.log_evidence.numpy(), law.mean.numpy(), [own[1] for own in _WIDTHS]
    free = np.flatnonzero(widths)
    more, means[free] = simplex.cut(means[free], law.covariance.numpy()[free], at, [widths[one] for one in free])
    logs[free] += more
    return logs, means


def _shares(reference: Reference, changes: Values) -> Values:
    """(C,) frequencies from changes in roots of the source's."""
    shares = np.maximum(reference.shares + np.sqrt(reference.shares) * changes, _RAREST)
    return np.asarray(shares / shares.sum())
