"""What was found, for people and for the code that goes on by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import special

from dpswd.public_client.normalisation import inference
from dpswd.public_client.normalisation.columns import Columns, MovedColumns, composed
from dpswd.public_client.normalisation.inference import AS_IT_IS, BOTH, CHANNELS, FREQUENCIES, Observed, explained
from dpswd.public_client.normalisation.reference import Labels, Mask, Reference, Values

LEAST_LEAD = 3.0
"""Nats by which an explanation must lead its rivals to be named: odds of twenty to one."""
CLEAR = 30.0  # nats over explanations without moved channels that end the asking of all layers
_UNREAD, _AMONG_CODES = 1e6, 10.0  # noise on what is not looked at; nats, where a table tells of people as well
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
        outcome: an explanation, `COLUMNS`, `UNDECIDED`, or `PEOPLE`: columns of codes moved, as by no instrument.
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

    def behind(self, far: Values) -> Verdict:
        """The same of records whose columns were put back by these offsets and gains (2, c) before."""
        own = self.columns if self.columns is not None and self.frequencies is not None else None
        moves = far if own is None else composed(far, own.moves)
        p = self.before if self.frequencies is None else self.frequencies
        return replace(self, outcome=COLUMNS, frequencies=p, columns=MovedColumns(0.0, p, moves, []))

    def __str__(self) -> str:
        """One plain sentence."""
        if self.outcome == AS_IT_IS:
            return "what its layers see is what they saw of the source, so far as the release tells"
        if self.outcome == UNDECIDED:
            return "something may have changed, and the release does not tell what: more records or epsilon may tell"
        if self.outcome == PEOPLE:
            return "columns of few values have other shares than in the source, whatever the classes' are"
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
    observed: Observed, reference: Reference, deviations: Values, sizes: Mapping[str, int], coded: Mask,
    columns: Columns | None = None, far: Values | None = None,
) -> Verdict:  # fmt: skip
    """The verdict of a release of all layers.

    Args:
        observed: the release.
        reference: the source's moments.
        deviations: (d,) 1 for deviations, 0 for means.
        sizes: channels of each layer, in the order of the statistics.
        coded: (d,) statistics of columns of codes; what moves them are not instruments but other people.
        columns: of the records, where they can be moved for themselves.
        far: (2, c) offsets and gains by which they were put back before: then columns have moved, beyond doubt.
    """
    over, outcome = _leading(explanations := explained(observed, reference, deviations))
    moved = None
    if coded.any() and outcome not in (AS_IT_IS, FREQUENCIES):
        alone = replace(observed, noise=np.where(coded, observed.noise, _UNREAD))
        if _leading(explained(alone, reference, deviations))[1] in (CHANNELS, BOTH):
            outcome = PEOPLE
    nats = np.array(list(over.values()))
    move = special.softmax(nats) @ np.stack([one.move for one in explanations.values()])
    move = reference.undone(move, observed.noise, observed.records)
    sure = np.maximum(explanations[FREQUENCIES].frequencies, 1e-4)
    frequencies = sure / sure.sum() if outcome == FREQUENCIES else None
    if columns is not None and outcome not in (AS_IT_IS, FREQUENCIES, PEOPLE):
        moved = columns.explained(observed, reference, sure / sure.sum())
        over[COLUMNS] = moved.evidence - explanations[AS_IT_IS].evidence
        lead = max(nats.max(), 0.0) + (_AMONG_CODES if coded.any() else LEAST_LEAD)
        if over[COLUMNS] >= (lead if far is None else max(over[FREQUENCIES], 0.0)):
            outcome, frequencies = COLUMNS, moved.frequencies if moved.better > 0.0 or far is not None else None
        else:
            moved = None
    made = Verdict(outcome, over, frequencies, reference.kinds, reference.shares, move, layer_moves(move, sizes), moved)
    return made if far is None else made.behind(far)


def _leading(explanations: Mapping[str, inference.Explanation]) -> tuple[dict[str, float], str]:
    """Nats of each explanation over "as it is", and the outcome by them."""
    over = {name: one.evidence - explanations[AS_IT_IS].evidence for name, one in explanations.items()}
    moved = max(over[CHANNELS], over[BOTH])
    if max(moved, over[FREQUENCIES]) < 0.0:
        return over, AS_IT_IS
    if over[FREQUENCIES] >= max(over[CHANNELS] + LEAST_LEAD, over[BOTH], LEAST_LEAD):
        return over, FREQUENCIES
    if moved >= max(over[FREQUENCIES], 0.0) + LEAST_LEAD:
        return over, BOTH if over[BOTH] >= over[CHANNELS] + LEAST_LEAD else CHANNELS
    return over, UNDECIDED


def layer_moves(move: Values, sizes: Mapping[str, int]) -> tuple[LayerMove, ...]:
    """How far each layer has moved: of all statistics (d,), means before deviations, and each layer's channels."""
    parts = np.split(move, np.cumsum([2 * channels for channels in sizes.values()])[:-1])
    roots = (np.sqrt((part.reshape(2, -1) ** 2).mean(axis=1)).tolist() for part in parts)
    return tuple(LayerMove(path, *own) for path, own in zip(sizes, roots, strict=True))
