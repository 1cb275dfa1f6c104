"""Tables: one release of all low-order marginals, and a mixture of categorical laws that has them.

Every column becomes bins by a public schema (`schema`), so that a record is one one in each of m columns: a vector of
d zeros and ones of norm sqrt(m), brought to norm 1. Class statistics of it are then marginals: counts of the classes,
each class with each bin, and each bin with each bin of another column. One bounded sum, one charge.

What is fitted has K components, each with its own shares of the classes and of every column's bins, independent within
a component. Its marginals are polynomials in these shares; descent brings them to the released ones, each residual in
units of its known noise. Few components leave out what is noise. Whatever is drawn of it is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from public_client.curator.description import Description
from public_client.data.progress import reporting
from public_client.generation.generator import Generator
from public_client.generation.method import Fitting
from public_client.generation.schema import Schema
from public_client.generation.statistics import StatisticsGeneration
from public_client.methods.statistics_head import Known, shares_of
from public_client.plans.recipe import not_counts, not_positive
from public_client.training.run import ChargedRun
from shared.errors import InvalidValue
from shared.kernels.clipping import RECORD_NORM
from shared.protocol.contract import DataContract

_STEEP = 1e6
"""Of a step from 0 to 1, in units of what it divides: one row in some ten thousand falls on it and is snapped."""
_FAR = 30.0
"""In deviations of a normal number: a cut that is never reached."""
_TOLD_EVERY = 100


@dataclass(frozen=True, kw_only=True)
class Tabular(StatisticsGeneration):
    """Tables by a public schema: numeric, categorical and missing values; all pairs of columns from one release.

    Attributes:
        schema: of the records; see `schema.Schema`, as plain values. Required.
        components: K.
        updates: of the fit; they cost nothing.
        learning_rate: of Adam at the start; it falls as a cosine.
    """

    name = "tabular"

    schema: Schema | None = None
    components: int = 20
    updates: int = 1500
    learning_rate: float = 0.05

    def problems(self) -> list[str]:
        """See `GenerationMethod`."""
        return [
            *super().problems(),
            *not_counts(self, "components", "updates"),
            *not_positive(self, "learning_rate"),
        ]

    def to_json(self) -> dict[str, object]:
        """See `Recipe`."""
        return super().to_json() | {"schema": None if self.schema is None else self.schema.to_json()}

    @classmethod
    def from_json(cls, values: dict[str, object]) -> Tabular:
        """See `Recipe`."""
        given = values.get("schema")
        schema = Schema.from_json(given) if isinstance(given, dict) else given
        return super().from_json(values | {"schema": schema})

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

    def fit(self, run: ChargedRun, features: nn.Module, fitting: Fitting) -> Generator:
        """See `GenerationMethod`."""
        return self.fitted(self.known(run, fitting), fitting)

    def fitted(self, known: Known, fitting: Fitting) -> Generator:
        """A generator of what was released; asks nobody.

        Args:
            known: the release, of `Bins`.
            fitting: how.
        """
        schema = self._schema()
        mixture = self._descended(known, schema, fitting)
        return Generator.of(
            Drawing(schema, mixture.double()),
            latent=1 + 2 * len(schema.columns),
            record_shape=(len(schema.columns),),
            shares=shares_of(known),
            schema=schema,
        )

    def _schema(self) -> Schema:
        if self.schema is None:
            raise InvalidValue(f"{self.name} needs the public schema of the records: --schema FILE. Nothing was spent")
        return self.schema

    def _descended(self, known: Known, schema: Schema, fitting: Fitting) -> Mixture:
        m, n, place = len(schema.columns), known.records, fitting.device
        shares = torch.from_numpy(shares_of(known)).float().to(place)
        sums = (known.features + known.total / len(shares)) * math.sqrt(m) / n  # (C, d): share of class and bin
        assert known.moments is not None, "this method asks for them"
        pairs = known.moments * m / n  # (d, d): share of bin and bin
        own = torch.zeros((schema.width, schema.width))
        for start, column in zip(schema.starts, schema.columns, strict=True):
            own[start : start + len(column.bounds), start : start + len(column.bounds)] = 1.0
        wanted = torch.from_numpy(sums).float().to(place), torch.from_numpy(pairs).float().to(place)
        of_class = known.feature_variance + known.total_variance / len(shares) ** 2
        # Noise, and sampling's own; a share p of n records has p / n of it at most.
        spread = (
            of_class * m / n**2 + wanted[0].clamp(0.0, 1.0) / n,
            known.moment_variance * m**2 / n**2 + wanted[1].clamp(0.0, 1.0) / n,
        )
        weight = (1.0 / spread[0], torch.triu(1.0 - own, 1).to(place) / spread[1])
        mixture = Mixture.around(wanted[0].sum(dim=0), shares, self.components, seed=fitting.seed)
        optimizer = torch.optim.Adam(mixture.logits, lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.updates)
        cells = float((weight[1] > 0.0).sum()) + weight[0].numel()
        with reporting(f"{self.name}: fitting", self.updates, shown=fitting.progress) as bar:
            for update in range(self.updates):
                optimizer.zero_grad()
                kinds, bins, parts = mixture.shares(schema)
                seen = (kinds * parts[:, None]).T @ bins, (bins * parts[:, None]).T @ bins
                loss = sum((w * (a - b).square()).sum() for w, a, b in zip(weight, seen, wanted, strict=True))
                assert isinstance(loss, Tensor)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                told = f"squared residual {float(loss.detach()) / cells:.2f} of the noise's"
                bar.advance(told if update % _TOLD_EVERY == 0 else "")
        return mixture


@dataclass(frozen=True, eq=False)
class Mixture:
    """K components, independent columns in each.

    Attributes:
        logits: (K,) of the components, (K, C) of their classes, (K, d) of their bins.
    """

    logits: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def around(cls, bins: Tensor, classes: Tensor, count: int, *, seed: int) -> Mixture:
        """Near to independent columns with these shares (d,) and classes (C,)."""
        own = torch.Generator().manual_seed(seed)
        least = 1e-4
        begun = (
            torch.zeros(count),
            classes.cpu().clamp(min=least).log().expand(count, -1)
            + 0.3 * torch.randn((count, len(classes)), generator=own),
            bins.cpu().clamp(min=least).log().expand(count, -1) + 0.3 * torch.randn((count, len(bins)), generator=own),
        )
        return cls(tuple(part.to(bins.device).requires_grad_() for part in begun))  # type: ignore[arg-type]

    def shares(self, schema: Schema) -> tuple[Tensor, Tensor, Tensor]:
        """Of classes (K, C) and bins (K, d) in each component, and of the components (K,)."""
        parts, kinds, bins = self.logits
        sizes = [len(column.bounds) for column in schema.columns]
        made = torch.cat([torch.softmax(one, dim=1) for one in torch.split(bins, sizes, dim=1)], dim=1)
        return torch.softmax(kinds, dim=1), made, torch.softmax(parts, dim=0)

    def double(self) -> Mixture:
        """Without gradients, in double precision, on the CPU."""
        return Mixture(tuple(part.detach().double().cpu() for part in self.logits))  # type: ignore[arg-type]


class Bins(nn.Module):
    """Records (b, columns) to their bins (b, d), of norm 1/2: a record of known values has a one in each column."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        rows, thresholds, spread = [], [], []
        total, at = sum(len(column.cuts) for column in schema.columns), 0
        ones = torch.zeros(schema.width)
        matrix = torch.zeros((schema.width, max(1, total)))
        for place, (start, column) in enumerate(zip(schema.starts, schema.columns, strict=True)):
            bounds = column.bounds
            gaps = [b[0] - a[1] for a, b in pairwise(bounds)]
            widths = [high - low for low, high in bounds if high > low]
            # A hundred-thousandth of the smallest distance that matters: float32 resolves that of any sane column.
            scale = 1e5 / min([*(gap for gap in gaps if gap > 0.0), *widths, 1e30])
            ones[start] = 1.0  # of the first bin: 1 less the first step
            for number, cut in enumerate(column.cuts):
                rows.append(place)
                thresholds.append(cut)
                spread.append(scale)
                matrix[start + number, at] -= 1.0
                matrix[start + number + 1, at] += 1.0
                at += 1
        self.flat = nn.Flatten()
        self.steps = nn.Linear(len(schema.columns), max(1, total))
        self.bins = nn.Linear(max(1, total), schema.width)
        norm = RECORD_NORM / math.sqrt(len(schema.columns))
        with torch.no_grad():
            self.steps.weight.zero_()
            self.steps.bias.zero_()
            for number, (row, cut, scale) in enumerate(zip(rows, thresholds, spread, strict=True)):
                self.steps.weight[number, row] = scale
                self.steps.bias[number] = -scale * cut
            self.bins.weight.copy_(matrix * norm)
            self.bins.bias.copy_(ones * norm)
        self.step = nn.Hardtanh(0.0, 1.0)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """(b, columns) to (b, d)."""
        found: Tensor = self.bins(self.step(self.steps(self.flat(x))))
        return found


class Drawing(nn.Module):
    """[z, e_c] to a record: z chooses the component of the class, then each column's bin, then the place in the bin.

    Args:
        schema: of the records.
        mixture: fitted, in double precision.
    """

    def __init__(self, schema: Schema, mixture: Mixture) -> None:
        super().__init__()
        kinds, bins, parts = mixture.shares(schema)
        components, classes = kinds.shape
        of_class = (kinds * parts[:, None]).T  # (C, K)
        of_class = of_class / of_class.sum(dim=1, keepdim=True)
        self.columns, sizes = len(schema.columns), [len(column.bounds) for column in schema.columns]
        self.sizes, self.components = sizes, components
        # Component k where z_0 lies between the k-th and the (k+1)-th cut of the class.
        self.component = nn.Linear(1 + 2 * self.columns + classes, max(1, components - 1))
        self.chosen = _differences(components)
        self.column = nn.Linear(components + self.columns, max(1, schema.width - self.columns))
        self.bin = nn.Linear(max(1, schema.width - self.columns), schema.width)
        self.low, self.reach = nn.Linear(schema.width, self.columns), nn.Linear(schema.width, self.columns)
        with torch.no_grad():
            for layer in (self.component, self.column, self.bin, self.low, self.reach):
                layer.weight.zero_()
                layer.bias.zero_()
            self.component.weight[:, 0] = _STEEP
            if components > 1:
                self.component.weight[:, 1 + 2 * self.columns :] = -_STEEP * _cuts(of_class).T.float()
            at = 0
            for place, (start, column) in enumerate(zip(schema.starts, schema.columns, strict=True)):
                size = sizes[place]
                self.bin.bias[start] = 1.0
                if size > 1:
                    rows = slice(at, at + size - 1)
                    self.column.weight[rows, components + place] = _STEEP
                    self.column.weight[rows, :components] = -_STEEP * _cuts(bins[:, start : start + size]).T.float()
                for number in range(size - 1):
                    self.bin.weight[start + number, at + number] -= 1.0
                    self.bin.weight[start + number + 1, at + number] += 1.0
                at += size - 1
                for number, (low, high) in enumerate(column.bounds):
                    self.low.weight[place, start + number] = low
                    self.reach.weight[place, start + number] = high - low
        self.step, self.uniform = nn.Hardtanh(0.0, 1.0), nn.Sigmoid()
        self.bins_of = nn.Linear(1 + 2 * self.columns + classes, self.columns)
        self.places_of = nn.Linear(1 + 2 * self.columns + classes, self.columns)
        with torch.no_grad():
            for layer, begun, gain in ((self.bins_of, 1, 1.0), (self.places_of, 1 + self.columns, 1.702)):
                layer.weight.zero_()
                layer.bias.zero_()
                for place in range(self.columns):
                    layer.weight[place, begun + place] = gain  # 1 / (1 + exp(-1.702 z)) is nearly uniform
        self.requires_grad_(False)

    def forward(self, z: Tensor) -> Tensor:
        """(b, 1 + 2 columns + C) to (b, columns)."""
        component = self.chosen(self.step(self.component(z)))
        bins = self.bin(self.step(self.column(torch.cat([component, self.bins_of(z)], dim=1))))
        made: Tensor = self.low(bins) + self.reach(bins) * self.uniform(self.places_of(z))
        return made


def _differences(count: int) -> nn.Linear:
    """From count - 1 falling steps to which of count places lies between the last 1 and the first 0."""
    made = nn.Linear(max(1, count - 1), count)
    with torch.no_grad():
        made.weight.zero_()
        made.bias.zero_()
        made.bias[0] = 1.0
        for number in range(count - 1):
            made.weight[number, number] -= 1.0
            made.weight[number + 1, number] += 1.0
    return made


def _cuts(shares: Tensor) -> Tensor:
    """(r, s) shares to the (r, s - 1) cuts of a standard normal number between them."""
    below = shares.cumsum(dim=1)[:, :-1].clamp(0.0, 1.0)
    found: Tensor = torch.special.ndtri(below).clamp(-_FAR, _FAR)
    return found
