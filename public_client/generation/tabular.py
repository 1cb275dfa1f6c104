"""Tables: one release of all low-order marginals, and one law after another that has them.

Every column becomes bins by a public schema (`schema`), so that a record is a one in each of m columns among d bins.
What is released are departures from expected shares, public ones: 1/k of k bins, or those of a usual value. So a record
is shorter, m - sum_i p_i^2 in the place of m, and noise is less by that. Class statistics of it are marginals: counts
of the classes, each class with each bin, and each bin with each bin of another column. One bounded sum, one charge.
A record that departs from more usual values than are expected is shrunk to the bound, by the curator.

What is fitted draws one column after another, each by a logistic law of the bins that were drawn before it, and the
label last (`laws`). Whatever is drawn of it is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.data.progress import reporting
from dpswd.public_client.generation.generator import Generator, traced
from dpswd.public_client.generation.laws import LEAST, Drawing, Law, root_of, solved
from dpswd.public_client.generation.method import Fitting
from dpswd.public_client.generation.schema import Schema
from dpswd.public_client.generation.statistics import StatisticsGeneration
from dpswd.public_client.methods.statistics_head import ClassSums, shares_of
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import not_counts, not_positive
from dpswd.public_client.training.run import Release
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.clipping import RECORD_NORM
from dpswd.shared.protocol.contract import DataContract

_LOST = ((1e-3, "1 to 2"), (5e-3, "1 to 7"), (0.03, "1 to 21"), (float("inf"), "12 to 40"))
"""Points of AUC at so much noise on a pair of bins, as norm^2 / (records epsilon), on the tables of benchmarks."""


@dataclass(frozen=True, kw_only=True)
class Tabular(StatisticsGeneration):
    """Tables by a public schema: numeric, categorical and missing values; all pairs of columns from one release.

    Attributes:
        schema: of the records; see `schema.Schema`, as plain values. Required.
        fitted_rows: drawn while the laws are fitted: what a law expects is expected over them.
        updates: of each law's fit, at most; they cost nothing.
        deviation: how far a bin that was drawn moves the logarithm of another's chance, before anything is known.
        label_deviation: the same of the label's.
    """

    name = "tabular"

    schema: Schema | None = None
    fitted_rows: int = 10_000
    updates: int = 80
    deviation: float = 0.5
    label_deviation: float = 1.0

    def problems(self) -> list[str]:
        return [
            *super().problems(),
            *not_counts(self, "fitted_rows", "updates"),
            *not_positive(self, "deviation", "label_deviation"),
        ]

    def to_json(self) -> dict[str, object]:
        return super().to_json() | {"schema": None if self.schema is None else self.schema.to_json()}

    @classmethod
    def from_json(cls, values: dict[str, object]) -> Tabular:
        given = values.get("schema")
        schema = Schema.from_json(given) if isinstance(given, dict) else given
        return super().from_json(values | {"schema": schema})

    def notes(self, plan: Plan) -> list[tuple[str, str]]:
        noise = self._schema().norm ** 2 / (plan.records * plan.epsilon)
        lost = next(points for most, points in _LOST if noise < most)
        return [*super().notes(plan), ("", f"at such noise on tables as many rows taught {lost} points of AUC less")]

    def disagreements(self, description: Description) -> list[str]:
        """See `GenerationMethod`: columns of other names, or in another order."""
        own = DataContract(column_names=tuple(column.name for column in self._schema().columns))
        return description.contract.disagreements(own)

    def features(self, description: Description) -> nn.Module:
        """See `GenerationMethod`: the bins of every column."""
        schema = self._schema()
        if description.record_shape != (len(schema.columns),):
            raise InvalidValue(
                f"records have shape {description.record_shape}, and the schema has {len(schema.columns)} columns: "
                "give one for each value of a record, in their order, without the labels. Nothing was spent"
            )
        return Bins(schema).eval()

    def fit(self, run: Release[Any], features: nn.Module, fitting: Fitting) -> Generator:
        released, schema = self.read(run, fitting), self._schema()
        laws, of_label = self._laws(released, schema, fitting)
        scores = nn.Linear(schema.width, len(released.counts))
        with torch.no_grad():
            scores.weight.copy_(of_label.weight * (schema.norm / RECORD_NORM))
            scores.bias.copy_(of_label.bias + of_label.weight @ torch.from_numpy(schema.expected).float())
        decoder, m = Drawing(schema, laws, classes=len(released.counts)), len(schema.columns)
        return Generator(
            traced(decoder, 2 * m + len(released.counts)), (m,), tuple(shares_of(released).tolist()),
            labeller=traced(nn.Sequential(Bins(schema), scores), m), schema=schema, chosen_labels=False,
        )  # fmt: skip

    def _schema(self) -> Schema:
        if self.schema is None:
            raise InvalidValue(f"{self.name} needs the public schema of the records: --schema FILE. Nothing was spent")
        return self.schema

    def _laws(self, released: ClassSums, schema: Schema, fitting: Fitting) -> tuple[dict[int, Law], Law]:
        """Of the columns, in the order that they are drawn in, and of the label."""
        n, columns = released.records, schema.columns
        classes, shares, unit = len(released.counts), shares_of(released), schema.norm / n
        assert released.moments is not None, "this method asks for them"
        departures = released.total * unit  # (d,) of the bins' shares from the expected ones
        bins, bins_noise = departures + schema.expected, released.total_variance * unit**2
        pairs = released.moments * unit * schema.norm - np.outer(departures, departures)  # (d, d): covariances
        pairs_noise, chance = released.moment_variance * unit**2 * schema.norm**2, bins.clip(LEAST, 1.0)
        apart = 1.0 / classes - shares[:, None]
        labels = released.features * unit + apart * departures  # (C, d): covariances of class and bin
        label_noise = (released.feature_variance + released.total_variance * apart**2) * unit**2
        spans = [slice(at, at + len(one.bounds)) for at, one in zip(schema.starts, columns, strict=True)]
        roots = torch.block_diag(*map(root_of, columns))  # type: ignore[no-untyped-call]
        rows = torch.zeros((self.fitted_rows, schema.width), device=fitting.device)
        own, laws = torch.Generator().manual_seed(fitting.seed), dict[int, Law]()
        # Many bins first: what is known of them is least, and least of it is asked before anything else is drawn.
        order = sorted(range(len(columns)), key=lambda column: -len(columns[column].bounds))
        with reporting(f"{self.name}: fitting", len(columns) + 1, shown=fitting.progress) as bar:
            for column in order:
                here = spans[column]
                before = [place for earlier in laws for place in range(schema.width)[spans[earlier]]]
                spread = pairs_noise + np.outer(chance[here], chance[before]) / n
                target = (bins[here], bins_noise + chance[here] / n, pairs[here][:, before], spread)
                priors = (roots[here, here], self.deviation * roots[before][:, before])
                laws[column], chances = solved(target, rows[:, before], priors, updates=self.updates)
                drawn = torch.multinomial(chances, 1, generator=own)[:, 0].to(rows.device)
                rows[torch.arange(len(rows), device=rows.device), schema.starts[column] + drawn] = 1.0
                bar.advance(f"column {columns[column].name}")
            # The classes' covariances add up to 0: each says what another has said in part.
            spread = (label_noise + np.outer(shares * (1.0 - shares), chance) / n) * (classes / max(1, classes - 1))
            target = (shares, (released.count_variance / n + shares) / n, labels, spread)
            priors = (torch.eye(classes), self.label_deviation * roots)
            of_label, _ = solved(target, rows, priors, updates=self.updates)
            bar.advance("label")
        return laws, of_label


class Bins(nn.Module):
    """Records (b, columns) to their bins (b, d) less the expected shares, of norm 1/2 where nothing is usual."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        total, at = sum(len(column.cuts) for column in schema.columns), 0
        ones, matrix = torch.zeros(schema.width), torch.zeros((schema.width, max(1, total)))
        rises, falls = torch.zeros((max(1, total), len(schema.columns))), torch.zeros(max(1, total))
        for place, (start, column) in enumerate(zip(schema.starts, schema.columns, strict=True)):
            bounds = column.bounds
            gaps = [b[0] - a[1] for a, b in pairwise(bounds)]
            widths = [high - low for low, high in bounds if high > low]
            # A hundred-thousandth of the smallest distance that matters: float32 resolves that of any sane column.
            scale = 1e5 / min([*(gap for gap in gaps if gap > 0.0), *widths, 1e30])
            ones[start] = 1.0  # of the first bin: 1 less the first step
            for number, cut in enumerate(column.cuts):
                rises[at, place], falls[at] = scale, -scale * cut
                matrix[start + number, at] -= 1.0
                matrix[start + number + 1, at] += 1.0
                at += 1
        self.flat = nn.Flatten()
        self.steps = nn.Linear(len(schema.columns), max(1, total))
        self.bins = nn.Linear(max(1, total), schema.width)
        norm, expected = RECORD_NORM / schema.norm, torch.from_numpy(schema.expected).float()
        with torch.no_grad():
            self.steps.weight.copy_(rises)
            self.steps.bias.copy_(falls)
            self.bins.weight.copy_(matrix * norm)
            self.bins.bias.copy_((ones - expected) * norm)
        self.step = nn.Hardtanh(0.0, 1.0)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """(b, columns) to (b, d)."""
        bins: Tensor = self.bins(self.step(self.steps(self.flat(x))))
        return bins
