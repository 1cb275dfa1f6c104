"""What a hospital is asked, question by question, and what is made of its answers. Pure: it knows no curator.

First the statistics of all layers under the source's network, which say what has changed; then, if channels have
moved, one layer after the other, each under a network whose earlier layers are adapted already. Everything is a
function of the answers and the public source, so that a conversation can be taken up again by giving it the answers so
far.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpswd.public_client.normalisation.inference import BOTH, Observed, moved
from dpswd.public_client.normalisation.probes import Place, Probed
from dpswd.public_client.normalisation.reference import Reference, Values, spread
from dpswd.public_client.normalisation.verdict import LayerMove, Verdict, layer_moves, weighed
from dpswd.shared.core.noise.clipping import RECORD_NORM
from dpswd.shared.core.noise.feature_map import FeatureMap

_OFF = 1e-12
"""What statistics that are not asked for are multiplied with: nothing of them is left after rounding."""


@dataclass(frozen=True)
class Asked:
    """What is asked, and of how many records.

    Attributes:
        first: how often all layers together; 0 for not at all.
        groups: of neighbouring layers, each asked by itself where the first answers give reason to.
        clip: radius of the clip, in units of the distance that source records and the move have together.
        moves: (L,) how far each layer is thought to have moved, where the first pass was a run of its own; empty for
            unknown.
        records: n.
        sigma: deviation of the noise on each number of a sum.
    """

    first: int
    groups: int
    clip: float
    moves: tuple[float, ...]
    records: int
    sigma: float


class Conversation:
    """See the file.

    Args:
        probed: the network; its probes are moved as the answers say.
        vectors: (m, d) statistics of public records under the source's network.
        labels: (m,) their classes.
        asked: what is asked.

    Attributes:
        verdict: of the first pass; None before, or without one.
        layers: how far each layer that was asked had moved.
    """

    def __init__(self, probed: Probed, vectors: Values, labels: npt.NDArray[np.int64], asked: Asked) -> None:
        self._probed, self._vectors, self._labels, self._asked = probed, vectors, labels, asked
        self.verdict: Verdict | None = None
        self.layers: tuple[LayerMove, ...] = ()

    def questions(self) -> Generator[FeatureMap, Values, None]:
        """The public map of each question; the answer (d,), a noised sum, is to be sent.

        Before a question the probes hold what the curator is to evaluate.
        """
        everything = np.ones(self._vectors.shape[1], dtype=bool)
        if self._asked.first:
            reference = self._reference(everything, 0.0)
            total = np.zeros(self._vectors.shape[1])
            for _ in range(self._asked.first):
                total += yield self._map(reference, everything)
            observed = self._observed(total / self._asked.first, reference, everything, times=self._asked.first)
            sizes = {place.path: place.channels for place in self._places}
            self.verdict = weighed(observed, reference, _deviations(self._places), sizes)
        if self._asked.groups and (self.verdict is None or self.verdict.channels):
            yield from self._by_layer()

    @property
    def moves(self) -> tuple[float, ...]:
        """(L,) how far each layer is thought to have moved before it is asked for by itself."""
        if self.verdict is None:
            return self._asked.moves or (0.0,) * len(self._places)
        return tuple(float(np.linalg.norm(self.verdict.move[own])) for own in self._own_parts())

    def _by_layer(self) -> Generator[FeatureMap, Values, None]:
        frequencies = self.verdict is not None and self.verdict.outcome == BOTH
        found: list[LayerMove] = []
        parts, moves = self._own_parts(), self.moves
        for group in np.array_split(np.arange(len(parts)), self._asked.groups):
            chosen = np.zeros(self._vectors.shape[1], dtype=bool)
            chosen[parts[group[0]].start : parts[group[-1]].stop] = True
            reference = self._reference(chosen, float(np.linalg.norm([moves[layer] for layer in group])))
            answer = yield self._map(reference, chosen)
            observed = self._observed(answer, reference, chosen)
            places = tuple(self._places[layer] for layer in group)
            move = moved(observed, reference, _deviations(places), frequencies=frequencies)
            found += layer_moves(move, {place.path: place.channels for place in places})
            self.layers = tuple(found)
            for layer in group:
                own = slice(parts[layer].start - parts[group[0]].start, parts[layer].stop - parts[group[0]].start)
                before = self._vectors[:, parts[layer]].mean(axis=0)
                self._probed.probes[layer].move(*_offset_and_ratio(self._places[layer], move[own], before))

    @property
    def _places(self) -> tuple[Place, ...]:
        return tuple(probe.place for probe in self._probed.probes)

    def _own_parts(self) -> list[slice]:
        """Of each layer in the statistics."""
        ends = np.cumsum([2 * place.channels for place in self._places])
        return [slice(int(end) - 2 * place.channels, int(end)) for end, place in zip(ends, self._places, strict=True)]

    def _reference(self, chosen: npt.NDArray[np.bool_], distance: float) -> Reference:
        vectors = self._vectors[:, chosen]
        return Reference.of(vectors, self._labels, radius=self._asked.clip * float(np.hypot(spread(vectors), distance)))

    def _map(self, reference: Reference, chosen: npt.NDArray[np.bool_]) -> FeatureMap:
        center, scale = np.zeros(len(chosen)), np.full(len(chosen), _OFF)
        center[chosen], scale[chosen] = reference.center, RECORD_NORM / reference.radius
        return FeatureMap(torch.from_numpy(center).float(), torch.from_numpy(scale).float())

    def _observed(
        self, total: Values, reference: Reference, chosen: npt.NDArray[np.bool_], *, times: int = 1
    ) -> Observed:
        unit = reference.radius / RECORD_NORM / self._asked.records
        noise = np.full(len(reference.mean), self._asked.sigma * unit / np.sqrt(times))
        return Observed(total[chosen] * unit - reference.mean, noise, self._asked.records)


def _deviations(places: tuple[Place, ...]) -> Values:
    """(d,) 1 for deviations, 0 for means."""
    return np.concatenate([np.repeat([0.0, 1.0], place.channels) for place in places])


def _offset_and_ratio(place: Place, move: Values, before: Values) -> tuple[Tensor, Tensor]:
    """Where channels lie and their variances, in units of the source's, from how far their statistics have moved.

    Within places the variance is taken to change by as much as between records.

    Args:
        place: of the layer.
        move: (2 c,) of the statistics.
        before: (2 c,) the source's statistics.
    """
    c = place.channels
    offset = move[:c]
    if place.single:  # of squares
        ratio = before[c:] - before[:c] ** 2 + move[c:] - 2.0 * before[:c] * offset - offset**2
        ratio = ratio / np.maximum(before[c:] - before[:c] ** 2, 1e-6)
    else:
        ratio = (np.maximum(before[c:] + move[c:], 0.0) / before[c:]) ** 2
    return torch.from_numpy(offset).float(), torch.from_numpy(ratio).float()
