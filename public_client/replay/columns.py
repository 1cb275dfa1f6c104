"""Tables in other units: which of the target's columns were rescaled before the extractor saw them.

A column in other units is a x + b: pounds for kilograms, mmol for mg/dl, Fahrenheit for Celsius. Behind an MLP that
moves many features at once, and no gain or bias of features can follow it. Few columns are in other units, and those
that are differ by a clear factor: so the prior on the logarithm of each factor is a spike at 0 with heavy tails
(Cauchy), and a column is moved only where the release speaks for it by many nats. A smaller factor than `LEAST` counts
as none, because hospitals' patients differ as well as their units. Columns are added one at a time, each by the
likelihood of the release with other class frequencies integrated over (`class_frequencies`), and all that were added
are fitted anew by Gauss-Newton steps.

What is found is undone exactly, in front of the source-trained extractor: no weight is tuned.
"""

from __future__ import annotations

import copy
import math
from functools import partial

import torch
from torch import Tensor, nn

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.extractor.adapter_layers import FeatureAffine
from dpswd.public_client.linear_evidence import LinearModel, shortened
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.view_search import Judged, ViewSearch
from dpswd.public_client.replay.views import View
from dpswd.shared.core.errors import InvalidValue

MOST_COLUMNS = 64
"""Of a record; with more, a search takes minutes and a release hardly tells columns apart."""
LEAST = 0.2
"""Logarithm of the least factor that is a change of units."""
_MOST_CHANGED = 4  # columns; a shift that asks for more is another one, and a search costs what each costs
_TRIED = 0.9  # logarithm of the factor, up and down, by which a column is tried
_SPIKE = 0.02  # of the Cauchy prior: a factor of 2.5 costs 7.6 nats
_ZERO = 0.3  # the same for where a column's zero lies beside the records' own, in deviations of the column
_CLEAR = math.log(100.0)  # nats by which a column that shrank must not be one that holds a single value
_DIFFERENCE = 0.05  # for slopes
_NEWTON_STEPS = 4
_SETTLED = 2.0  # nats, below which a Gauss-Newton step is the last
_SCANNED = 8  # of the views with one column more, those that are tried again after the first round
_SHARES = (1.0, 0.3, 0.09)  # of a step, until it gains
_LONGEST = 1.0  # of such a step, in logarithms of factors and deviations


class ColumnView(View):
    """A gain for each column of a record, about a zero of its own: zero + gain (x - zero).

    Args:
        spread: (c,), positive: the source's deviation of each column.

    Attributes:
        log_gain: (c,).
        zero: (c,), in deviations of the column; without a meaning where the gain is 1.
    """

    tunes_extractor = False
    spread: Tensor

    def __init__(self, spread: Tensor) -> None:
        super().__init__()
        self.register_buffer("spread", spread.detach().clone())
        self.log_gain = nn.Parameter(torch.zeros_like(self.spread))
        self.zero = nn.Parameter(torch.zeros_like(self.spread))

    def forward(self, extractor: nn.Module, records: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Features (m, d) of records (m, c); they are not varied."""
        gain = torch.exp(self.log_gain)
        features: Tensor = extractor(records * gain + (1.0 - gain) * self.zero * self.spread)
        return features

    def penalty(self) -> Tensor:
        return torch.log1p((self.log_gain / _SPIKE).square()).sum() + torch.log1p((self.zero / _ZERO).square()).sum()

    def check(self, records: Tensor, features: Tensor) -> None:
        if records.dim() != 2 or records.shape[1] != len(self.spread):
            raise InvalidValue(
                f"the view has one gain for each of {len(self.spread)} columns, records have shape "
                f"{tuple(records.shape[1:])}; make it with the deviation of each column, shape ({records.shape[-1]},)"
            )

    def undone(self) -> nn.Module:
        affine = FeatureAffine(len(self.spread)).to(self.spread)
        with torch.no_grad():
            affine.gain.copy_(torch.exp(-self.log_gain))
            affine.bias.copy_((1.0 - affine.gain) * self.zero * self.spread)
        return affine.requires_grad_(False)

    def words(self) -> str:
        return f"in other units ({self})"

    def __str__(self) -> str:
        gains = [(number, float(gain)) for number, gain in enumerate(self.log_gain.detach().exp()) if gain != 1.0]
        return ", ".join(f"column {number} (from 0) times {gain:.3g}" for number, gain in gains)


def column_view(records: Tensor) -> ColumnView:
    """The identity for source records (m, c)."""
    return ColumnView(records.std(dim=0).nan_to_num().clamp(min=1e-6)).to(records.device)


def find_units(view: ColumnView, extractor: nn.Module, source: Labelled, residuals: Residuals) -> ColumnView:
    """Adds columns in other units for as long as each pays for itself and leaves less unexplained.

    Args:
        view: the identity; not changed.
        extractor: frozen, records to features.
        source: labelled public records that it is judged by.
        residuals: from the releases.

    Returns:
        The most probable view that was met; the identity if no column pays, or if one that does may as well be missing.
    """
    search = _Search(extractor, source, residuals)
    best = search.judged(copy.deepcopy(view))
    cost = math.log(2.0 * len(view.spread))
    moves = [(column, size) for column in range(len(view.spread)) for size in (_TRIED, -_TRIED)]
    while moves and int((best.view.log_gain != 0.0).sum()) < _MOST_CHANGED:
        moves = search.ordered(moves, best.view)
        proposed = search.refined(_tried(best.view, *moves[0]))
        if proposed.log_posterior <= best.log_posterior + cost or proposed.unexplained >= best.unexplained:
            break
        best = proposed
        moves = [move for move in moves[:_SCANNED] if not bool(best.view.log_gain[move[0]])]
    return view if search.says_nothing(best) else best.view


class _Search(ViewSearch[ColumnView]):
    def ordered(self, moves: list[tuple[int, float]], view: ColumnView) -> list[tuple[int, float]]:
        """Columns and logarithms of factors, the most probable one more of them first."""
        squares = [float(self._noise.square(self.left(_tried(view, *move)), 0.0)) for move in moves]
        return [moves[i] for i in sorted(range(len(moves)), key=squares.__getitem__)]

    def refined(self, view: ColumnView) -> Judged[ColumnView]:
        """All columns that are moved, fitted anew; those that come back to their units are let go.

        Nothing counts as unexplained at first: what a column leaves would be taken for that, and the fit end early.
        """
        view = self._descended(view, 0.0)
        view = self._descended(view, self._noise.most_probable(self.left(view)))
        with torch.no_grad():
            small = view.log_gain.abs() < LEAST
            view.log_gain[small] = 0.0
            view.zero[small] = 0.0
        return self.judged(view)

    def says_nothing(self, state: Judged[ColumnView]) -> bool:
        """Whether the release is about as probable if a column that shrank holds one value: that is no unit."""
        middle, likely = self._records.mean(dim=0) / state.view.spread, self._noise.log_likelihood
        for column in (state.view.log_gain < 0.0).nonzero()[:, 0].tolist():
            gain = float(state.view.log_gain[column].detach().exp())
            other = _tried(state.view, column, -math.inf)
            with torch.no_grad():
                other.zero[column] = gain * middle[column] + (1.0 - gain) * state.view.zero[column]
            v = state.unexplained
            if float(likely(state.left, v) - likely(self.left(other), v)) < _CLEAR:
                return True
        return False

    def _descended(self, view: ColumnView, v: float) -> ColumnView:
        """Gauss-Newton steps on the columns that are moved."""
        active = (view.log_gain != 0.0).nonzero()[:, 0]
        for _ in range(_NEWTON_STEPS):
            moved = partial(_moved, view, active, self._step(view, active, v))
            other, gained = shortened(partial(self.energy, v=v), self.energy(view, v), moved, _SHARES)
            view = other or view
            if gained < _SETTLED:
                break
        return view

    def _step(self, view: ColumnView, active: Tensor, v: float) -> Tensor:
        """(2, a): of the gains and of the zeros of the active columns."""
        a, left = len(active), self.left(view)
        units = torch.eye(2 * a).to(view.log_gain).reshape(2 * a, 2, a)
        slopes = [(left - self.left(_moved(view, active, unit, _DIFFERENCE))) / _DIFFERENCE for unit in units]
        jacobian = self._noise.scaled(torch.stack(slopes, dim=1), v)  # (N, 2 a)
        at = torch.cat((view.log_gain[active], view.zero[active])).detach().double()
        # The Cauchy priors as the normal ones of the same slope here.
        scales = torch.tensor([_SPIKE, _ZERO]).to(at).repeat_interleave(a)
        widths = ((scales.square() + at.square()) / 2.0).sqrt()
        model = LinearModel(jacobian, self._noise.scaled(left, v) + jacobian @ at, [1] * 2 * a)
        return (model.under(widths).mean - at).clamp(-_LONGEST, _LONGEST).reshape(2, a).to(view.log_gain)


def _tried(view: ColumnView, column: int, size: float) -> ColumnView:
    other = copy.deepcopy(view)
    with torch.no_grad():
        other.log_gain[column] = size
    return other


def _moved(view: ColumnView, active: Tensor, step: Tensor, share: float) -> ColumnView:
    other = copy.deepcopy(view)
    with torch.no_grad():
        other.log_gain[active] += share * step[0]
        other.zero[active] += share * step[1]
    return other
