"""Tables with gaps: which of the target's columns are missing, and how often, by its releases.

A column of a table has a unit, so two hospitals rarely see it through different gains, as two scanners would. Their
means and deviations differ because their patients do, and a classifier need not follow that. What it should follow is
that a hospital did not take a measurement: a classifier that leans on a column that is not there loses what other
columns could tell. A record is (c values, c flags): each gap holds one public value (say the source's median), and its
flag is 1. The flags are what makes gaps cheap to see under privacy: their means say it, values hardly do.

The fit compares patterns of gaps by their evidence, the releases' marginal likelihood (`linear_evidence`): population
shift (a gain and a bias for each column, the classes' frequencies) is integrated over, with widths that the releases
choose for each pattern anew, and not applied. A column counts as one with gaps only if that raises the log evidence by
more than its prior costs. If none does, the view stays the identity, and the model as it was.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpswd.public_client.data.datasets import Labelled
from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.linear_evidence import LinearModel, Widths
from dpswd.public_client.replay.residuals import Residuals
from dpswd.public_client.replay.verdict import Fitted
from dpswd.public_client.replay.views import CLASS_WIDTH, View, moved_features
from dpswd.shared.core.errors import InvalidValue

_LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of gaps that are tried
_FINER = 0.125
_GAP_COST = math.log(19.0) + math.log(len(_LEVELS) - 1.0)
"""Nats for a column with gaps: one in twenty has some, each share is as probable as the others."""
_STEP = 0.05  # usual widths, of the slopes
_REPEATED = 768  # source records, repeated with other gaps, that a pattern is judged by
_REFITTED = 2  # patterns of a round whose widths are found anew
_ROUNDS = 30


class TableView(View):
    """Some values of the target's records are missing: a public value stands for each, and a flag tells.

    Records are (m, 2 c), as the extractor sees them: values, then flags of 0 (there) or 1 (missing).

    Args:
        fill: (c,) what stands for a missing value of each column, in the records' own units.

    Attributes:
        rates: (c,) shares of records without a value, beyond what the source lacks itself.
        together: whether gaps fall on the same records (an examination that was not made lacks all its columns) or
            on each column by itself.

    Raises:
        InvalidValue: fill is not one finite number for each column.
    """

    tunes_extractor = False
    keeps_scores = True
    fill: Tensor
    rates: Tensor

    def __init__(self, fill: Tensor) -> None:
        super().__init__()
        if fill.dim() != 1 or not bool(torch.isfinite(fill).all()):
            raise InvalidValue(
                f"fill has shape {tuple(fill.shape)}; allowed: one finite number for each column, shape (c,). Give the "
                "values that the hospital writes in place of missing ones"
            )
        self.register_buffer("fill", fill.detach().clone().float())
        self.register_buffer("rates", torch.zeros_like(self.fill))
        self.together = True

    def forward(self, extractor: nn.Module, records: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Looks at records with gaps.

        Args:
            extractor: records to features.
            records: (m, 2 c), values and then flags.
            generator: of the gaps; the same gaps each time without one.

        Returns:
            Features (m, d).
        """
        drawn = generator if generator is not None else torch.Generator().manual_seed(0)
        width = 1 if self.together else len(self.fill)
        uniforms = torch.rand(len(records), width, generator=drawn, device=drawn.device).to(records.device)
        with torch.no_grad():
            features: Tensor = extractor(self.with_gaps(records, uniforms))
        return features

    def with_gaps(self, records: Tensor, uniforms: Tensor) -> Tensor:
        """Leaves values out where a number is below the column's rate.

        Args:
            records: (m, 2 c).
            uniforms: (m, c), or (m, 1) for gaps that fall together.

        Returns:
            (m, 2 c).
        """
        c = len(self.fill)
        values, flags, missing = records[:, :c], records[:, c:], uniforms < self.rates
        return torch.cat((torch.where(missing, self.fill, values), torch.where(missing, 1.0, flags)), dim=1)

    def check(self, records: Tensor, features: Tensor) -> None:
        c = len(self.fill)
        if records.dim() != 2 or records.shape[1] != 2 * c:
            raise InvalidValue(
                f"fill has {c} columns, records have shape {tuple(records.shape[1:])}; allowed: ({2 * c},), values and "
                "then flags of gaps. Append the flags, or leave the view out"
            )
        flags = records[:, c:]
        if not bool(((flags == 0.0) | (flags == 1.0)).all()):
            raise InvalidValue(
                f"the last {c} of a record's {2 * c} columns hold other numbers than 0 (there) and 1 (missing), so "
                "they are no flags of gaps; append one flag for each column, and do not scale them with the values"
            )

    def penalty(self) -> Tensor:
        return _GAP_COST * (self.rates > 0).sum()


@dataclass(frozen=True)
class _State:
    """A pattern and what the releases say of it."""

    view: TableView
    model: LinearModel
    widths: Widths
    log_posterior: float


def find_gaps(
    view: TableView,
    extractor: nn.Module,
    source: Labelled,
    residuals: Residuals,
    *,
    generator: torch.Generator,
    bar: Reporter,
) -> Fitted:
    """Searches greedily, one column at a time, for gaps that fall together and for gaps that do not.

    Args:
        view: holds what fills a gap; not changed.
        extractor: frozen, records to features, differentiable.
        source: labelled public records (m, 2 c).
        residuals: from the releases.
        generator: of the gaps.
        bar: told of each round.

    Returns:
        The most probable pattern; the identity, not convinced, if the releases speak for none. What is left is what is
        left when population shift is fitted as well.

    Raises:
        InvalidValue: records are not values and flags (0 or 1) of as many columns as fill has.
    """
    view.check(source.images, source.images)
    search = _Search(extractor, source, residuals, generator)
    begin = search.state(_with(view, torch.zeros_like(view.fill), together=True))
    ends = [search.climb(begin, together, bar) for together in (True, False)]
    best = max(ends, key=lambda state: state.log_posterior)
    mode = best.model.under(best.widths.factors, best.widths.variance).mean.to(source.images)
    with torch.no_grad():
        left = residuals.distance(search.residuals(best.view, mode))
    weights = torch.exp(CLASS_WIDTH * mode[2 * len(view.fill) :])
    gained = best.log_posterior - begin.log_posterior
    if gained > 0.0:
        reason = f"columns with gaps make the release {gained:.1f} nats more probable"
        return Fitted(
            best.view, weights, left, "adapted by a view", "columns are missing from its records", evidence=reason
        )
    return Fitted(best.view, weights, left, "kept", "the release speaks for no gaps")


class _Search:
    def __init__(
        self, extractor: nn.Module, source: Labelled, residuals: Residuals, generator: torch.Generator
    ) -> None:
        self._extractor, self._residuals = extractor, residuals
        chosen = torch.randperm(len(source), generator=generator)[:_REPEATED].to(source.images.device)
        copies = -(-_REPEATED // len(chosen))
        records = source.images[chosen]
        values = records[:, : records.shape[1] // 2]
        self._middle = values.mean(dim=0)
        self._spread = values.std(dim=0).nan_to_num().clamp(min=1e-6)
        self._records = records.repeat(copies, 1)
        self._labels = source.labels[chosen].repeat(copies)
        self._classes = int(source.labels.max()) + 1
        # Each record's copies have their uniform numbers in different parts of [0, 1]: less chance in the gaps.
        m, c = values.shape
        parts = torch.stack([torch.rand(m, c, generator=generator).argsort(dim=0) for _ in range(copies)])
        order = torch.rand(copies, m, c, generator=generator).argsort(dim=0)
        self._uniforms = ((order + (parts + 0.5) / m) / copies).reshape(copies * m, c).to(records)

    def residuals(self, view: TableView, parameters: Tensor) -> Tensor:
        """Residuals (r, L, k) of source records with shifted columns (gains, biases), classes' weights and gaps."""
        c = len(self._middle)
        gain, bias, log_weights = parameters[:c], parameters[c : 2 * c], CLASS_WIDTH * parameters[2 * c :]
        values = self._middle + moved_features(self._records[:, :c] - self._middle, gain, bias, self._spread)
        shifted = torch.cat((values, self._records[:, c:]), dim=1)
        uniforms = self._uniforms[:, :1] if view.together else self._uniforms
        features = self._extractor(view.with_gaps(shifted, uniforms))
        return self._residuals.of_all(features, torch.exp(log_weights)[self._labels])

    def state(self, view: TableView) -> _State:
        c = len(self._middle)
        groups = (c, c, self._classes)
        with torch.no_grad():
            model = LinearModel.at_identity(
                lambda shift: self.residuals(view, shift).flatten(), groups, self._records, step=_STEP
            )
        widths = model.widths(caution=0.0)  # a wide population shift does no harm: it is not applied
        return _State(view, model, widths, widths.log_posterior - float(view.penalty()))

    def climb(self, begin: _State, together: bool, bar: Reporter) -> _State:
        """Changes one column's rate at a time for as long as that makes the pattern more probable."""
        best = begin
        levels: list[tuple[float, ...]] = [_LEVELS] * len(self._middle)
        for fine in (False, True):
            for _ in range(_ROUNDS):
                if fine:
                    levels = [_near(float(rate)) for rate in best.view.rates]
                proposals = self._proposals(best, together, levels)
                states = [self.state(view) for view in proposals[:_REFITTED]]
                better = max(states, key=lambda state: state.log_posterior, default=best)
                bar.advance(f"gaps more probable by {best.log_posterior - begin.log_posterior:.1f} nats")
                if better.log_posterior <= best.log_posterior:
                    break
                best = better
        return best

    @torch.no_grad()
    def _proposals(self, state: _State, together: bool, levels: list[tuple[float, ...]]) -> list[TableView]:
        """Patterns with another rate in one column, most probable first while slopes and widths stay as they are."""
        c = len(self._middle)
        origin = torch.zeros(2 * c + self._classes).to(self._records)
        scored: list[tuple[float, TableView]] = []
        for column in range(c):
            for level in levels[column]:
                if level == float(state.view.rates[column]):
                    continue
                rates = state.view.rates.clone()
                rates[column] = level
                view = _with(state.view, rates, together)
                model = state.model.explaining(-self.residuals(view, origin).flatten())
                evidence = model.under(state.widths.factors, state.widths.variance).log_evidence
                scored.append((float(evidence - view.penalty()), view))
        scored.sort(key=lambda pair: pair[0], reverse=True)
        return [view for _, view in scored]


def _near(rate: float) -> tuple[float, ...]:
    """Finer levels around a rate; a column without gaps stays as it is."""
    return () if rate == 0.0 else (max(rate - _FINER, _FINER), min(rate + _FINER, 1.0))


def _with(view: TableView, rates: Tensor, together: bool) -> TableView:
    other = copy.deepcopy(view)
    other.rates.copy_(rates)
    other.together = together
    return other
