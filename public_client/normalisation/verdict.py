"""What was found, for people and for the code that goes on by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import special

from dpswd.public_client.normalisation.columns import Columns, MovedColumns, composed
from dpswd.public_client.normalisation.inference import AS_IT_IS, BOTH, CHANNELS, FREQUENCIES, Observed, explained
from dpswd.public_client.normalisation.reference import Labels, Reference, Values

LEAST_LEAD = 3.0
"""Nats by which an explanation must lead its rivals to be named: odds of twenty to one."""
CLEAR = 30.0  # nats over explanations without moved channels that end the asking of all layers
UNDECIDED, COLUMNS, PEOPLE = "undecided", "columns moved", "other people"


class LayerMove(NamedTuple):
    """How far one layer's channels have moved: roots of mean squares, in units of the source's deviations."""

    path: str
    mean: float  # of the channels' means
    deviation: float  # of their deviations


@dataclass(frozen=True, eq=False)
class Verdict:
    """What one release of all layers' statistics says.

    Attributes:
        outcome: an explanation, `COLUMNS`, `UNDECIDED`, or `PEOPLE`: others come, which explains as much as any.
        evidence: nats of each explanation over "as it is".
        frequencies: (C,) of the classes, where they alone explain the release, or with columns that are put back.
        kinds: (C,) those classes' numbers.
        before: (C,) their frequencies in the source.
        move: (d,) of all statistics.
        layers: how far each layer has moved.
        columns: how the records' columns have moved, where that explains the release best.
    """

    outcome: str
    evidence: Mapping[str, float]
    frequencies: Values | None
    kinds: Labels
    before: Values
    move: Values
    layers: tuple[LayerMove, ...]
    columns: MovedColumns | None = None

    @property
    def clear(self) -> bool:
        """Whether channels have moved beyond doubt: no further release of all layers would tell more."""
        rival = max(self.evidence[AS_IT_IS], self.evidence[FREQUENCIES])
        return self.channels and max(self.evidence[CHANNELS], self.evidence[BOTH]) >= rival + CLEAR

    @property
    def channels(self) -> bool:
        """Whether it pays to ask layer by layer."""
        return self.outcome in (CHANNELS, BOTH)

    def __str__(self) -> str:
        """One plain sentence."""
        if self.outcome == AS_IT_IS:
            return "what its layers see is what they saw of the source, so far as the release tells"
        if self.outcome == UNDECIDED:
            return "something may have changed, and the release does not tell what: more records or epsilon may tell"
        if self.outcome == PEOPLE:
            return "people who come are others than in the source, which explains as much as anything"
        if self.columns is not None:
            done = "they are put back" if self.frequencies is not None else "to put them back is not expected to help"
            return f"its columns lie elsewhere ({self.columns.said()}), and classes may be rarer; {done}"
        if self.outcome == FREQUENCIES:
            assert self.frequencies is not None, "set with the outcome"
            shares = ", ".join(f"{share:.0%}" for share in self.frequencies[:20])
            return f"the classes are not as frequent as in the source ({shares}); the scores are corrected for it"
        return f"its layers see other means and contrasts than they saw of the source: {moves_in_words(self.layers)}"


def moves_in_words(layers: tuple[LayerMove, ...]) -> str:
    """The layer that moved furthest."""
    most = max(layers, key=lambda layer: layer.mean + layer.deviation)
    return f"by {most.mean:.2f} and {most.deviation:.2f} deviations at {most.path}, the furthest of {len(layers)}"


def weighed(
    observed: Observed, reference: Reference, deviations: Values, sizes: Mapping[str, int],
    columns: Columns | None = None, far: Values | None = None,
) -> Verdict:  # fmt: skip
    """The verdict of a release of all layers.

    Args:
        observed: the release.
        reference: the source's moments.
        deviations: (d,) 1 for deviations, 0 for means.
        sizes: channels of each layer, in the order of the statistics.
        columns: of the records, where they can be moved for themselves.
        far: (2, c) offsets and gains by which they were put back before: then columns have moved, beyond doubt.
    """
    explanations, moved, frequencies = explained(observed, reference, deviations), None, None
    over = {name: one.evidence - explanations[AS_IT_IS].evidence for name, one in explanations.items()}
    nats, outcome = np.array(list(over.values())), UNDECIDED
    if nats.max() <= 0.0:
        outcome = AS_IT_IS
    elif over[FREQUENCIES] >= max(over[CHANNELS] + LEAST_LEAD, over[BOTH], LEAST_LEAD):
        outcome = FREQUENCIES
    elif max(over[CHANNELS], over[BOTH]) >= max(over[FREQUENCIES], 0.0) + LEAST_LEAD:
        outcome = BOTH if over[BOTH] >= over[CHANNELS] + LEAST_LEAD else CHANNELS
    move = special.softmax(nats) @ np.stack([one.move for one in explanations.values()])
    move = reference.undone(move, observed.noise, observed.records)
    sure = np.maximum(explanations[FREQUENCIES].frequencies, 1e-4)
    if outcome == FREQUENCIES:
        frequencies = sure / sure.sum()
    elif columns is not None and outcome != AS_IT_IS:
        moved = columns.explained(observed, reference, sure / sure.sum())
        over[COLUMNS] = moved.evidence - explanations[AS_IT_IS].evidence
        if over[COLUMNS] >= (max(nats.max(), 0.0) + LEAST_LEAD if far is None else max(over[FREQUENCIES], 0.0)):
            outcome, frequencies = COLUMNS, moved.frequencies if moved.better > 0.0 or far is not None else None
        else:
            moved = None
    if far is None and columns is not None and not columns.are_signals and outcome != AS_IT_IS:
        over[PEOPLE] = columns.weigh_people(observed, reference) - explanations[AS_IT_IS].evidence
        if over.get(outcome, nats.max()) < over[PEOPLE] + LEAST_LEAD:
            outcome, frequencies = PEOPLE if over[PEOPLE] >= LEAST_LEAD else UNDECIDED, None
    if far is not None:
        moves = far if moved is None or frequencies is None else composed(far, moved.moves)
        outcome, frequencies = COLUMNS, reference.shares if frequencies is None else frequencies
        moved = MovedColumns(0.0, frequencies, moves, [])
    return Verdict(outcome, over, frequencies, reference.kinds, reference.shares, move, layer_moves(move, sizes), moved)


def layer_moves(move: Values, sizes: Mapping[str, int]) -> tuple[LayerMove, ...]:
    """How far each layer has moved: of all statistics (d,), means before deviations, and each layer's channels."""
    parts = np.split(move, np.cumsum([2 * channels for channels in sizes.values()])[:-1])
    roots = (np.sqrt((part.reshape(2, -1) ** 2).mean(axis=1)).tolist() for part in parts)
    return tuple(LayerMove(path, *own) for path, own in zip(sizes, roots, strict=True))
