"""What a hospital is asked, question by question, and what is made of its answers. Pure: it knows no curator.

First the statistics of all layers under the source's network, which say what has changed; then, if channels have
moved, one layer after the other, each under a network whose earlier layers are adapted already. Everything is a
function of the answers and the public source, so that a conversation can be taken up again.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpswd.public_client.normalisation.columns import STILL, Columns, composed
from dpswd.public_client.normalisation.inference import BOTH, CHANNELS, FREQUENCIES, Observed, log_variances, moved
from dpswd.public_client.normalisation.reference import Labels, Mask, Reference, Values, scales
from dpswd.public_client.normalisation.verdict import COLUMNS, UNDECIDED, LayerMove, Verdict, layer_moves, weighed
from dpswd.public_client.probes.probes import Place, Probed
from dpswd.shared.core.noise.clipping import RECORD_NORM
from dpswd.shared.core.noise.feature_map import FeatureMap

_OFF = 1e-12  # what statistics that are not asked for are multiplied with: nothing is left after rounding
_FAR = 0.6  # part of the clip's radius beyond which an answer says little of a move's length
DRAWS, _SURE = 8, 2.0  # of all layers' moves, and standard errors by which undoing them must gain
BACK = 2  # questions by which is looked back
_REACH, _HIDDEN, _SHOWN, _OWN_ZERO = (30.0, 300.0), 6.5, 4.0, 0.5
"""Deviations within which hidden columns' means are asked, the wider from so many on; of noise; of a zero."""
_LEAST = 1e-6  # of a variance or a deviation that is divided by
_MOST_LOG = math.log(50.0)  # of a variance to the source's: beyond it is what a layer does not stand
_LEFT = 0.25  # part of a layer's move under the source's network that is expected where earlier ones are adapted


@dataclass(frozen=True)
class Asked:
    """What is asked, and of how many records.

    Attributes:
        first: how often all layers together; 0 for not at all.
        groups: of neighbouring layers, each asked by itself where the first answers give reason to.
        spare: questions beside them, for what lies near the clip.
        back: `BACK` or 0 questions whether what was made is nearer to the source.
        moves: (L,) how far each layer is thought to have moved, by a first pass of its own; empty for unknown.
        records: n.
        sigma: deviation of the noise on each number of a sum.
    """

    first: int
    groups: int
    spare: int
    back: int
    moves: tuple[float, ...]
    records: int
    sigma: float


class Conversation:
    """See the file.

    Args:
        probed: the network; its probes are moved as the answers say.
        vectors: (m, d) statistics of public records under the source's network.
        labels: (m,) their classes.
        tried: public records (k, ...) and their classes (k,), by which is tried whether moves are better undone.
        asked: what is asked.
        columns: of the records, where they can be moved for themselves.

    Attributes:
        verdict: of the first pass; None before, or without one.
        layers: how far each layer that was asked had moved.
        helps: whether undoing that is expected to.
    """

    def __init__(
        self, probed: Probed, vectors: Values, labels: Labels, tried: tuple[Tensor, Labels], asked: Asked,
        columns: Columns | None = None,
    ) -> None:  # fmt: skip
        self._probed, self._vectors, self._labels, self._asked, self._columns = probed, vectors, labels, asked, columns
        self._tried, self.helps = tried, False
        self._draws: list[Tensor] = []  # of each layer that was asked, (draws, 2, c) offsets and logs that may be true
        self._places, self._generator = tuple(one.place for one in probed.probes), torch.Generator().manual_seed(0)
        ends = np.cumsum([0, *(2 * place.channels for place in self._places)]).tolist()
        self._parts, self._end = list(map(slice, ends, ends[1:])), ends[-1]  # of layers; probabilities follow
        self.verdict: Verdict | None = None
        self.layers: tuple[LayerMove, ...] = ()

    def questions(self) -> Generator[FeatureMap, Values, None]:
        """The public map of each question; the answer (d,), a noised sum, is to be sent.

        Before a question the probes hold what the curator is to evaluate.
        """
        spare = self._asked.spare + ((yield from self._of_all()) if self._asked.first else 0)
        if self._asked.groups and (self.verdict is None or self.verdict.outcome in (CHANNELS, BOTH, UNDECIDED)):
            nats = yield from self._by_layer(spare)
            self.helps = self._expected_to_help() and (yield from self._is_nearer(*nats))

    def _of_all(self) -> Generator[FeatureMap, Values, int]:
        """The same question until it is clear what has happened; how many questions that leaves over."""
        everything = np.arange(self._vectors.shape[1]) < self._end
        sizes = {place.path: place.channels for place in self._places}
        reference, total, times = self._reference(everything, 0.0), np.zeros(self._vectors.shape[1]), 0
        far, left, table = None, self._asked.first, self._columns if self._places[0].single else None
        while left:
            total, times, left = total + (yield self._map(reference, everything)), times + 1, left - 1
            observed = self._observed(total / times, reference, everything, times=times)
            if table and times == 1 and left > 1 and (there := table.hidden(observed, reference)) is not None:
                there, left = (yield from self._located(there)), left - 1
                if (there != STILL).any():
                    self._move(far := composed(far, there))  # behind that all is asked anew
                    total, times = np.zeros_like(total), 0
                    continue
            if left and (far is not None or not self._asked.groups):
                continue  # what is paid for is asked
            self.verdict = weighed(observed, reference, _deviations(self._places), sizes, self._columns, far)
            if self.verdict.clear:
                break
        if (own := self.verdict) and own.columns is not None and own.frequencies is not None:
            self._move(own.columns.moves)
            if not (yield from self._is_nearer(max(own.evidence[FREQUENCIES], 0.0), own.evidence[COLUMNS])):
                self.verdict = replace(own, outcome=CHANNELS, columns=None, frequencies=None)
        return left

    def _is_nearer(self, by_frequencies: float, by_moves: float) -> Generator[FeatureMap, Values, bool]:
        """Whether the probes lead to confidence and classes nearer to the source's than still ones; else these remain.

        Lost confidence tells of errors (Guillory et al. 2021, ICCV); so do classes, by the nats left to moves alone.
        """
        if not self._asked.back:
            return True
        scale = np.where(np.arange(self._vectors.shape[1]) < self._end, _OFF, RECORD_NORM / math.sqrt(2.0))
        moved, errors = copy.deepcopy(self._probed.state_dict()), list[float]()
        unexplained = max(1.0 - by_frequencies / max(by_moves, _LEAST), 0.0)
        for still in (False, True):
            for probe in self._probed.probes if still else ():
                probe.move(torch.zeros(1), torch.ones(1))
            answer = yield FeatureMap(torch.zeros(len(scale)), torch.from_numpy(scale).float())
            away = (answer / scale / self._asked.records - self._vectors.mean(axis=0))[self._end :]
            errors.append(0.5 * unexplained**2 * np.abs(away[:-1]).sum() + max(-away[-1], 0.0))
        if errors[0] < errors[1]:
            self._probed.load_state_dict(moved)
        return bool(errors[0] < errors[1])

    def _move(self, columns: Values) -> None:
        self._probed.probes[0].move(*torch.from_numpy(columns).float())

    def _located(self, there: Values) -> Generator[FeatureMap, Values, Values]:
        """Offsets and gains (2, c) of columns that the clip hides: their means are asked; units have the same zero."""
        place, far = self._places[0], (there[0] != 0.0) | (there[1] != 1.0)
        reach = _REACH[bool((np.abs(there[0]) + 2.0 * there[1]).max() > _HIDDEN)]
        unit, zero = reach * math.sqrt(far.sum()) / RECORD_NORM, (place.center / place.spread).double().numpy()
        scale = np.pad(far / unit, (0, self._vectors.shape[1] - len(far))) + _OFF
        answer = yield FeatureMap(torch.zeros(len(scale)), torch.from_numpy(scale).float())
        mean = answer[: len(far)] * unit / self._asked.records
        ratio = np.where(np.abs(zero) > _OWN_ZERO, 1.0 + mean / np.where(zero == 0.0, 1.0, zero), 0.0)
        sure = far & (np.abs(mean) > _SHOWN * self._asked.sigma * unit / self._asked.records)
        return np.where(sure, [mean, np.where(ratio > 0.0, np.maximum(ratio, _LEAST), there[1])], STILL)

    @property
    def moves(self) -> tuple[float, ...]:
        """(L,) how far each layer is thought to have moved before it is asked for by itself."""
        if self.verdict is None:
            return self._asked.moves or (0.0,) * len(self._places)
        move = self.verdict.move * scales(self._vectors[:, : self._end])
        return tuple(float(np.linalg.norm(move[own])) for own in self._parts)

    def _by_layer(self, spare: int) -> Generator[FeatureMap, Values, Values]:
        """Each layer, again near the clip if one is spare; nats (2,) for frequencies alone, and for moved channels."""
        before = {CHANNELS: 0.0, BOTH: 0.0} if self.verdict is None else self.verdict.evidence  # or both
        parts, moves, total = self._parts, self.moves, np.zeros(2)
        for group in np.array_split(np.arange(self._probed.layers), self._asked.groups):
            chosen = np.zeros(self._vectors.shape[1], dtype=bool)
            chosen[parts[group[0]].start : parts[group[-1]].stop] = True
            places = tuple(self._places[layer] for layer in group)
            deviations, move = _deviations(places), np.zeros(int(chosen.sum()))
            if not self.layers and self.verdict is not None and self.verdict.clear:
                move = self.verdict.move[chosen[: self._end]]  # of later ones the first have changed it
            distance = float(np.linalg.norm([moves[layer] for layer in group])) * (_LEFT if self.layers else 1.0)
            while True:
                reference = self._reference(chosen, distance)
                answer = yield self._map(reference, chosen, move)
                observed = self._observed(answer, reference, chosen)
                shift, doubt, nats = moved(observed, reference, deviations, before)
                undone = reference.undone(shift, observed.noise, observed.records)
                move = move + undone
                if not spare or np.linalg.norm(shift * reference.scale) < _FAR * reference.radius:
                    break
                spare, distance = spare - 1, float(np.linalg.norm(undone * reference.scale))
            total += nats
            self.layers += layer_moves(move, {place.path: place.channels for place in places})
            for layer in group:
                own = slice(parts[layer].start - parts[group[0]].start, parts[layer].stop - parts[group[0]].start)
                source = self._vectors[:, parts[layer]].mean(axis=0)
                law, about = _offset_and_log(self._places[layer], move[own], doubt[own], source)
                self._probed.probes[layer].move(law[0], (0.5 * law[1].clamp(-_MOST_LOG, _MOST_LOG)).exp())
                normal = torch.randn(DRAWS, *law.shape, generator=self._generator)
                self._draws.append(law + about * normal)
        return total

    def _expected_to_help(self) -> bool:
        """Whether more public records, moved layer by layer by draws from the posterior, are right with that undone."""
        records, labels = self._tried
        gains, classes = [], torch.from_numpy(labels)
        for moves in zip(*self._draws, strict=True):
            with torch.no_grad():
                scores = [self._probed.where(moves, undone=each)(records) for each in (True, False)]
            after, before = ((each.argmax(dim=1) == classes).double().mean() for each in scores)
            gains.append(float(after - before))
        return float(np.mean(gains)) > _SURE * float(np.std(gains, ddof=1)) / math.sqrt(DRAWS)

    def _reference(self, chosen: Mask, distance: float) -> Reference:
        return Reference.of(self._vectors[:, chosen], self._labels, distance=distance)

    def _map(self, reference: Reference, chosen: Mask, move: Values | float = 0.0) -> FeatureMap:
        center, scale = np.zeros(len(chosen)), np.full(len(chosen), _OFF)
        center[chosen], scale[chosen] = reference.center + move, reference.scale * RECORD_NORM / reference.radius
        return FeatureMap(torch.from_numpy(center).float(), torch.from_numpy(scale).float())

    def _observed(self, total: Values, reference: Reference, chosen: Mask, *, times: int = 1) -> Observed:
        unit = reference.radius / RECORD_NORM / self._asked.records
        noise = self._asked.sigma * unit / np.sqrt(times) / reference.scale
        return Observed(total[chosen] * unit / reference.scale - reference.mean, noise, self._asked.records)


def _deviations(places: tuple[Place, ...]) -> Values:
    """(d,) 1 for deviations, 0 for means."""
    return np.concatenate([np.repeat([0.0, 1.0], place.channels) for place in places])


def _offset_and_log(place: Place, move: Values, doubt: Values, before: Values) -> tuple[Tensor, Tensor]:
    """Offsets and logarithms of variances (2, c) of channels, in units of the source's, and deviations of both (2, c).

    Of the statistics (2 c,): their move, the deviation of that, and the source's. Within places the variance is taken
    to change by as much as between records.
    """
    (offset, other), (of_offset, of_other), (mean, own) = (each.reshape(2, -1) for each in (move, doubt, before))
    if place.single:  # of squares
        one = np.maximum(own - mean**2, _LEAST)
        variance = (own + other - (mean + offset) ** 2) / one
        logs, about = log_variances(variance, np.hypot(of_other, 2.0 * (mean + offset) * of_offset) / one + _LEAST)
    else:
        there = np.maximum(own + other, _LEAST * own)
        logs, about = 2.0 * np.log(there / own), 2.0 * of_other / there
    return torch.from_numpy(np.stack([offset, logs])).float(), torch.from_numpy(np.stack([of_offset, about])).float()
