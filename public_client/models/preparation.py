"""What fitted transformers of scikit-learn do to a table's columns: pipelines, scalers, imputers, encoders."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dpswd.public_client.models.columns import Column, Form, Table, combined, total, unsupported


def is_missing(value: object) -> bool:
    """Whether a category, or a code of missing values, stands for a missing one."""
    return value is None or (isinstance(value, (float, np.floating)) and math.isnan(value))


def prepared(step: Any, table: Table, names: Sequence[str] | None = None) -> Table:
    """The columns that a fitted transformer makes of others.

    Args:
        step: a transformer of scikit-learn, "passthrough", "drop" or None.
        table: its input.
        names: of the input's columns, where the transformer chooses by name.

    Raises:
        ExtractorUnsupported: the vocabulary has no word for what it does.
    """
    if step is None or (isinstance(step, str) and step == "passthrough"):
        return table
    name = type(step).__name__
    if name == "ColumnTransformer":
        return _column_transformer(step, table, names)
    if name == "Pipeline":
        for _, inner in step.steps:
            table = prepared(inner, table, names)
        return table
    if name == "FeatureUnion":
        return [column for _, inner in step.transformer_list for column in prepared(inner, table, names)]
    if name in _PREPARED:
        return _PREPARED[name](step, table)
    if hasattr(step, "get_support"):  # selectors
        return [table[place] for place in step.get_support(indices=True)]
    raise unsupported(f"the transformer {name} is not known", f"use one of {', '.join(sorted(_PREPARED))}")


def _column_transformer(step: Any, table: Table, names: Sequence[str] | None) -> Table:
    fitted = getattr(step, "feature_names_in_", names)
    own = list(fitted) if fitted is not None else None
    made: list[Column] = []
    for _, inner, chosen in step.transformers_:
        if isinstance(inner, str) and inner == "drop":
            continue
        places = _places(chosen, own, len(table))
        part = [table[place] for place in places]
        made += prepared(inner, part, [own[place] for place in places] if own else None)
    return made


def _places(chosen: Any, names: Sequence[str] | None, count: int) -> list[int]:
    """The columns that a ColumnTransformer names: by place, name, slice or mask."""
    if isinstance(chosen, slice):
        if isinstance(chosen.start, str) or isinstance(chosen.stop, str):
            labels = list(names or ())
            begin = labels.index(chosen.start) if chosen.start is not None else 0
            end = labels.index(chosen.stop) + 1 if chosen.stop is not None else len(labels)
            return list(range(begin, end))
        return list(range(count))[chosen]
    entries = [chosen] if isinstance(chosen, (str, int)) else list(chosen)
    if entries and all(isinstance(entry, (bool, np.bool_)) for entry in entries):
        return [place for place, entry in enumerate(entries) if entry]
    if any(isinstance(entry, str) for entry in entries):
        return [list(names or ()).index(str(entry)) for entry in entries]
    return [int(entry) % count for entry in entries]


def _scaled(gains: Any, shifts: Any) -> Callable[[Table], Table]:
    def apply(table: Table) -> Table:
        given = np.broadcast_to(gains, len(table)), np.broadcast_to(shifts, len(table))
        return [column.times(float(g), float(s)) for column, g, s in zip(table, *given, strict=True)]

    return apply


def _standard(step: Any, table: Table) -> Table:
    scale = np.ones(len(table)) if step.scale_ is None else np.asarray(step.scale_, dtype=np.float64)
    mean = (
        np.zeros(len(table)) if step.mean_ is None or not step.with_mean else np.asarray(step.mean_, dtype=np.float64)
    )
    return _scaled(1.0 / scale, -mean / scale)(table)


def _min_max(step: Any, table: Table) -> Table:
    if step.clip:
        raise unsupported("MinMaxScaler(clip=True) is not linear", "fit it with clip=False")
    return _scaled(step.scale_, step.min_)(table)


def _robust(step: Any, table: Table) -> Table:
    scale = 1.0 if step.scale_ is None else np.asarray(step.scale_)
    center = 0.0 if step.center_ is None else np.asarray(step.center_)
    return _scaled(1.0 / scale, -center / scale)(table)


def _imputed(step: Any, table: Table) -> Table:
    if not is_missing(step.missing_values):
        code = float(step.missing_values)
        table = [Column(c.form, c.equals(code) + (c.missing or Form()), code, c.cases) for c in table]
    present = [j for j, value in enumerate(step.statistics_) if not is_missing(value)]
    made = [table[j].filled(float(step.statistics_[j])) for j in present]
    if step.indicator_ is not None:
        made += [_flag(table[j].missing) for j in step.indicator_.features_]
    return made


def _indicator(step: Any, table: Table) -> Table:
    if not is_missing(step.missing_values):
        raise unsupported("MissingIndicator with a code of missing values", "mark missing values with NaN")
    return [_flag(table[j].missing) for j in step.features_]


def _flag(when: Form | None) -> Column:
    """A column of 0 and 1."""
    when = when or Form()
    return Column(when, cases=((1.0, when), (0.0, when.times(-1.0, 1.0))))


def _categories(step: Any, place: int) -> list[float]:
    """The categories of one column; NaN stands for a missing value."""
    categories = []
    for category in step.categories_[place]:
        if isinstance(category, (str, bytes)):
            raise unsupported(
                f"the encoder has the category {category!r}, and a record holds numbers",
                "fit it on the numbers that the hospital's records hold in the place of words",
            )
        categories.append(math.nan if is_missing(category) else float(category))
    return categories


def _when(column: Column, category: float) -> Form:
    """1 where a column is this category."""
    return (column.missing or Form()) if math.isnan(category) else column.equals(category)


def _one_hot(step: Any, table: Table) -> Table:
    made: list[Column] = []
    for place, column in enumerate(table):
        categories = _categories(step, place)
        when = [_when(column, category) for category in categories]
        rare = (getattr(step, "infrequent_categories_", None) or [None] * len(table))[place]
        if rare is not None:
            few = {math.nan if is_missing(value) else float(value) for value in rare}
            frequent = [w for c, w in zip(categories, when, strict=True) if c not in few]
            kind = step.handle_unknown in ("infrequent_if_exist", "warn")
            others = (w for c, w in zip(categories, when, strict=True) if c in few)
            when = [*frequent, total(frequent).times(-1.0, 1.0) if kind else total(others)]
        dropped = None if step.drop_idx_ is None else step.drop_idx_[place]
        made += [_flag(form) for number, form in enumerate(when) if dropped is None or number != dropped]
    return made


def _ordinal(step: Any, table: Table) -> Table:
    if getattr(step, "infrequent_categories_", None) and any(x is not None for x in step.infrequent_categories_):
        raise unsupported("OrdinalEncoder with rare categories", "leave min_frequency and max_categories out")
    unknown = step.unknown_value if step.handle_unknown == "use_encoded_value" else -1.0
    blank = step.encoded_missing_value
    made = []
    for place, column in enumerate(table):
        numbers = [(float(k), c) for k, c in enumerate(c for c in _categories(step, place) if not math.isnan(c))]
        made.append(_looked_up(column, numbers, float(unknown), float(blank)))
    return made


def _looked_up(column: Column, numbers: Sequence[tuple[float, float]], unknown: float, blank: float) -> Column:
    """A column of (number, category) pairs: the number of the category that it is.

    Args:
        column: that is looked up.
        numbers: pairs.
        unknown: for other categories; NaN for missing.
        blank: where it is missing; NaN for missing.
    """
    when = [(number, column.equals(category)) for number, category in numbers]
    gone = column.missing or Form()
    other = total([form for _, form in when] + [gone]).times(-1.0, 1.0)
    cases = (
        [*when] + ([] if math.isnan(unknown) else [(unknown, other)]) + ([] if math.isnan(blank) else [(blank, gone)])
    )
    missing = total(([other] if math.isnan(unknown) else []) + ([gone] if math.isnan(blank) else []))
    form = total(case.times(number) for number, case in cases)
    some = missing if missing.weights or missing.bias else None
    return Column(form, some, 0.0, tuple(cases), declared=column.declared and math.isnan(blank))


def _target(step: Any, table: Table) -> Table:
    if step.target_type_ == "multiclass":
        raise unsupported("TargetEncoder of several classes", "use OneHotEncoder")
    made = []
    for place, column in enumerate(table):
        pairs = list(zip(step.encodings_[place].tolist(), _categories(step, place), strict=True))
        blank = next((number for number, category in pairs if math.isnan(category)), float(step.target_mean_))
        finite = [(number, category) for number, category in pairs if not math.isnan(category)]
        made.append(_looked_up(column, finite, float(step.target_mean_), blank))
    return made


def _projected(step: Any, table: Table) -> Table:
    """PCA and truncated SVD."""
    if getattr(step, "whiten", False):
        raise unsupported("PCA(whiten=True)", "use PCA and a StandardScaler behind it")
    mean = getattr(step, "mean_", None)
    shifts = np.zeros(len(step.components_)) if mean is None else -(step.components_ @ mean)
    return [Column(combined(table, row, shift)) for row, shift in zip(step.components_, shifts, strict=True)]


def _function(step: Any, table: Table) -> Table:
    if step.func is not None:
        raise unsupported("FunctionTransformer runs a function", "apply it to the records before, at both sides")
    return table


_PREPARED: dict[str, Callable[[Any, Table], Table]] = {
    "StandardScaler": _standard,
    "MinMaxScaler": _min_max,
    "MaxAbsScaler": lambda step, table: _scaled(1.0 / np.asarray(step.scale_), 0.0)(table),
    "RobustScaler": _robust,
    "SimpleImputer": _imputed,
    "MissingIndicator": _indicator,
    "OneHotEncoder": _one_hot,
    "OrdinalEncoder": _ordinal,
    "TargetEncoder": _target,
    "PCA": _projected,
    "TruncatedSVD": _projected,
    "FunctionTransformer": _function,
}
