"""What a table's columns are made of, while a fitted pipeline is read: linear forms of three kinds of numbers.

A record's own values (0 where missing), whether each is missing, and whether each equals one of a model's categories:
whatever the usual preparation of tables makes is linear in these. So a whole preparation becomes one matrix, found
here in float64, which what stands behind it takes up: a linear model, a network's first layer, the splits of trees.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dpswd.shared.core.errors import ExtractorUnsupported

Kind = Literal["value", "missing", "case"]


@dataclass(frozen=True, order=True)
class Atom:
    """A number that is read off one value of a record.

    Attributes:
        kind: "value": itself, 0 where missing; "missing": 1 where missing; "case": 1 where it is `number`.
        place: of the value in the record.
        number: of a case.
    """

    kind: Kind
    place: int
    number: float = 0.0


@dataclass(frozen=True)
class Form:
    """A linear form of atoms.

    Attributes:
        weights: of the atoms, none of them 0.
        bias: added.
    """

    weights: Mapping[Atom, float] = field(default_factory=dict)
    bias: float = 0.0

    def __add__(self, other: Form) -> Form:
        return total((self, other))

    def times(self, gain: float, shift: float = 0.0) -> Form:
        """Gain times the form, plus a shift."""
        weights = {atom: gain * weight for atom, weight in self.weights.items() if gain * weight}
        return Form(weights, gain * self.bias + shift)


def total(forms: Iterable[Form]) -> Form:
    """The sum of forms."""
    weights: dict[Atom, float] = {}
    bias = 0.0
    for form in forms:
        bias += form.bias
        for atom, weight in form.weights.items():
            weights[atom] = weights.get(atom, 0.0) + weight
    return Form({atom: weight for atom, weight in weights.items() if weight}, bias)


def unsupported(what: str, instead: str) -> ExtractorUnsupported:
    """The refusal of a model, in words."""
    return ExtractorUnsupported(f"the model cannot travel as data: {what}; {instead}")


@dataclass(frozen=True)
class Column:
    """A column of the table at one stage of a preparation.

    Attributes:
        form: its number; `blank` where it is missing.
        missing: 1 where it is missing, else 0; None where it never is.
        blank: what `form` is where it is missing.
        cases: all values that it can have where it is not missing, each with when; None where it is not known.
        declared: whether the caller said that values of it are missing.
        filling: (what stands where it was missing, when that is), of a record's own column that was imputed.
    """

    form: Form
    missing: Form | None = None
    blank: float = 0.0
    cases: tuple[tuple[float, Form], ...] | None = None
    declared: bool = False
    filling: tuple[float, Form] | None = None

    def times(self, gain: float, shift: float = 0.0) -> Column:
        """Gain times the column, plus a shift."""
        cases = None if self.cases is None else tuple((gain * value + shift, when) for value, when in self.cases)
        return replace(self, form=self.form.times(gain, shift), blank=gain * self.blank + shift, cases=cases)

    def filled(self, value: float) -> Column:
        """With a number where it is missing."""
        if self.missing is None:
            return self
        cases = None if self.cases is None else (*self.cases, (value, self.missing))
        return Column(self.form + self.missing.times(value - self.blank), cases=cases, filling=(value, self.missing))

    def equals(self, number: float) -> Form:
        """1 where the column is there and is this number.

        Raises:
            ExtractorUnsupported: the column is computed from several, or scaled.
        """
        if self.cases is not None:
            return total(when for value, when in self.cases if math.isclose(value, number, rel_tol=1e-9, abs_tol=1e-12))
        values = [atom for atom, weight in self.form.weights.items() if atom.kind == "value" and weight == 1.0]
        others = {atom for atom in self.form.weights if atom not in values}
        if len(values) != 1 or self.form.bias or others - {Atom("missing", values[0].place)}:
            raise unsupported(
                "categories are told of a column that was scaled or mixed before",
                "tell categories of columns as they are",
            )
        own = Form({Atom("case", values[0].place, number): 1.0})
        return own if self.filling is None or self.filling[0] != number else own + self.filling[1]

    def there(self) -> Form:
        """Its number, for a model that has no way for missing values.

        Raises:
            ExtractorUnsupported: the caller said that values are missing.
        """
        if self.declared and self.missing is not None:
            raise unsupported(
                "values of a column are declared to be missing and reach a part of the model that takes none",
                "put a SimpleImputer in front, or declare only columns that it fills (missing=[...], NaN for others)",
            )
        return self.form


Table = Sequence[Column]


def combined(table: Table, weights: Sequence[float], bias: float = 0.0) -> Form:
    """A weighted sum of columns that are never missing.

    Args:
        table: the columns.
        weights: one for each.
        bias: added.
    """
    forms = (column.there().times(float(weight)) for column, weight in zip(table, weights, strict=True) if weight)
    return total(forms).times(1.0, float(bias))
