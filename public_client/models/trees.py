"""Tabular models of other libraries as an `nn.Module` that travels as data: `as_module`.

Trees and forests, linear models and small networks of scikit-learn, LightGBM and XGBoost, with the usual preparation in
front. None of these libraries is needed to import this; what the estimator holds is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.public_client.extractor.adapter_layers import filled_linear
from dpswd.public_client.models import ensembles
from dpswd.public_client.models.agreement import compare, made_records
from dpswd.public_client.models.columns import Atom, Column, Form, Table, combined, unsupported
from dpswd.public_client.models.ensembles import Ensemble, Outputs
from dpswd.public_client.models.packing import LARGEST, Leaves, finished, matrix, packed, with_two_classes
from dpswd.public_client.models.preparation import prepared
from dpswd.shared.core.errors import InvalidValue

Missing = float | Sequence[float] | Literal["flags"] | None

_FORESTS = ("RandomForestClassifier", "ExtraTreesClassifier", "DecisionTreeClassifier", "ExtraTreeClassifier")
_TREES: dict[str, Callable[[Any], Ensemble]] = {
    **dict.fromkeys(_FORESTS, ensembles.forest),
    "GradientBoostingClassifier": ensembles.gradient_boosting,
    "HistGradientBoostingClassifier": ensembles.hist_gradient_boosting,
    "LGBMClassifier": lambda estimator: ensembles.lightgbm(estimator.booster_),
    "XGBClassifier": lambda estimator: ensembles.xgboost(estimator.get_booster(), _rounds(estimator)),
    "XGBRFClassifier": lambda estimator: ensembles.xgboost(estimator.get_booster(), _rounds(estimator)),
}
_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "logistic": nn.Sigmoid, "identity": nn.Identity}


class ReadRecords(nn.Module):
    """From records to the numbers that a model is made of: values (0 where missing), missing, categories.

    Args:
        columns: of the table.
        codes: (columns,) what stands for a missing value; None for NaN.
        flags: instead, each record is (values, 1 where missing).
        cases: each place and number that is told.
    """

    codes: Tensor | None
    numbers: Tensor

    def __init__(self, columns: int, codes: Tensor | None, *, flags: bool, cases: Sequence[Atom]) -> None:
        super().__init__()
        self.columns, self.flags = columns, flags
        self.register_buffer("codes", codes)
        self.chosen: nn.Linear | None = None
        if cases:
            rows = torch.arange(len(cases))
            places = torch.tensor([case.place for case in cases])
            weight = torch.zeros(len(cases), 2 * columns)
            weight[rows, places], weight[rows, columns + places] = 1.0, LARGEST  # a missing value is no category
            self.chosen = filled_linear(weight, None)
            self.register_buffer("numbers", torch.tensor([case.number for case in cases]))

    def forward(self, records: Tensor) -> Tensor:
        """(b, columns), or (b, 2 columns) with flags, as (b, 2 columns + cases)."""
        if self.flags:
            missing = records[:, self.columns :]
            values = records[:, : self.columns] * (1.0 - missing)
        elif self.codes is None:
            missing, values = torch.isnan(records).float(), torch.nan_to_num(records)
        else:
            missing = (records == self.codes).float()
            values = records * (1.0 - missing)
        inputs = torch.cat([values, missing], dim=1)
        if self.chosen is not None:
            inputs = torch.cat([inputs, (self.chosen(inputs) == self.numbers).float()], dim=1)
        return inputs


class LinearScores(nn.Module):
    """Sums (b, k) as class scores; see `finished`."""

    def __init__(self, outputs: Outputs) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, sums: Tensor) -> Tensor:
        """(b, k) to (b, k)."""
        return finished(sums, self.outputs)


class OfEstimator(nn.Sequential):
    """Records to scores; no layer of it is a head of its own."""

    @property
    def has_codes(self) -> bool:
        """Whether numbers of its records stand for missing ones."""
        return any(getattr(part, "codes", None) is not None for part in self)


def as_module(
    estimator: Any, feature_names: Sequence[str] | None = None, *, missing: Missing = None, check: bool = True
) -> nn.Module:
    """A fitted classifier as an `nn.Module` whose graph travels: records to class scores.

    Args:
        estimator: of scikit-learn (HistGradientBoosting, GradientBoosting, forests, single trees; linear
            models; MLPClassifier; a Pipeline of one behind ColumnTransformer, scalers, encoders, imputers), LightGBM
            or XGBoost (classifier or `Booster`).
        feature_names: the columns of a record, in their order, where the estimator was fitted on named ones; others
            than its own are passed over.
        missing: what stands for a missing value in a record: a number, one for each column (NaN: none is missing), or
            "flags" where a record is (values, 1 where missing). None: NaN, which a curator's records cannot hold.
        check: compare module and estimator on made records.

    Returns:
        In eval mode; (b, columns) float32 to (b, k) scores, whose softmax is the estimator's `predict_proba` where it
        has one (scaled to add up to one). Two classes have the scores (0, log-odds). The classes stand in the order of
        `estimator.classes_`.

    Raises:
        ExtractorUnsupported: the vocabulary has no word for a part of it, it is too large, or computes something else.
        InvalidValue: names or codes of missing values do not fit.
    """
    steps, final = _parts(estimator)
    own, count = _features(estimator, steps, final)
    places = _places(own, feature_names, count)
    width = count if feature_names is None else len(feature_names)
    codes, flags = _codes(missing, width)
    declared = missing is not None
    source = [_column(place, codes, declared=declared) for place in places]
    table: Table = source
    for step in steps:
        table = prepared(step, table, own)
    forms, head = _headed(final, table)
    module = _assembled(forms, head, width, codes, flags=flags).eval().requires_grad_(False)
    if check:
        made = made_records(forms, head, codes, width)
        compare(estimator, module, made, own=own, places=places, codes=codes, flags=flags)
    return module


def _parts(estimator: Any) -> tuple[list[Any], Any]:
    """What prepares, and the model behind it."""
    if type(estimator).__name__ != "Pipeline":
        return [], estimator
    steps, final = _parts(estimator.steps[-1][1])
    return [*(step for _, step in estimator.steps[:-1]), *steps], final


def _features(estimator: Any, steps: Sequence[Any], final: Any) -> tuple[list[str] | None, int]:
    """Names of the columns that it was fitted on, if any, and their number."""
    first = steps[0] if steps else final
    if type(final).__name__ == "Booster":
        given = getattr(final, "feature_name", None)
        names = getattr(final, "feature_names", None) or (given() if callable(given) else None)
        count = int(final.num_features() if hasattr(final, "num_features") else final.num_feature())
        return list(names) if names and not _numbered(names) else None, count
    for part in (estimator, first, final):
        if hasattr(part, "n_features_in_"):
            names = getattr(part, "feature_names_in_", None)
            own = None if names is None or _numbered(names) else [str(name) for name in names]
            return own, int(part.n_features_in_)
    raise unsupported(f"{type(final).__name__} is not fitted or not known", "fit it first, or look into extractors.md")


def _numbered(names: Sequence[str]) -> bool:
    """Whether names are made up by a library that was given an array."""
    return all(str(name) in (f"Column_{i}", f"f{i}", f"x{i}") for i, name in enumerate(names))


def _places(own: Sequence[str] | None, given: Sequence[str] | None, count: int) -> list[int]:
    if given is None or own is None:
        if given is not None and len(given) != count:
            raise InvalidValue(f"feature_names has {len(given)} names, the model has {count} columns without names")
        return list(range(count))
    if lacking := [name for name in own if name not in given]:
        raise InvalidValue(
            f"the model was fitted on {lacking[:5]}, which feature_names does not hold; add them or refit"
        )
    return [list(given).index(name) for name in own]


def _codes(missing: Missing, width: int) -> tuple[Tensor | None, bool]:
    """(width,) codes, or None for NaN; and whether records have flags."""
    if missing is None or isinstance(missing, str):
        if missing not in (None, "flags"):
            raise InvalidValue(f"missing is {missing!r}; allowed: a number, one for each column, 'flags', None for NaN")
        return None, missing == "flags"
    given = np.asarray(missing, dtype=np.float32)
    if given.shape not in ((), (width,)):
        raise InvalidValue(f"missing has {given.size} numbers; allowed: one, or one for each of the {width} columns")
    codes = torch.from_numpy(np.broadcast_to(given, (width,)).copy())
    # A number that no record holds stands where nothing is missing: NaN cannot travel.
    return torch.where(codes.isnan(), torch.tensor(-LARGEST), codes), False


def _column(place: int, codes: Tensor | None, *, declared: bool) -> Column:
    never = codes is not None and float(codes[place]) == -LARGEST
    value, gone = Form({Atom("value", place): 1.0}), Form({Atom("missing", place): 1.0})
    return Column(value) if never else Column(value, gone, declared=declared)


def _headed(final: Any, table: Table) -> tuple[list[Form], nn.Module]:
    """The first layer's numbers, as forms of atoms, and what follows."""
    name = type(final).__name__
    if name == "Booster":
        read = ensembles.lightgbm if type(final).__module__.startswith("lightgbm") else ensembles.xgboost
        return packed(read(final), table)
    if name in _TREES:
        return packed(_TREES[name](final), _own_preparation(final, table))
    if name == "MLPClassifier":
        return _network(final, table)
    if hasattr(final, "coef_") and hasattr(final, "classes_"):
        return _linear(final, table)
    raise unsupported(
        f"{name} is not known",
        "use trees, a linear model or MLPClassifier, or give its scores as ONNX (`dpswd-curator records embed`)",
    )


def _own_preparation(final: Any, table: Table) -> Table:
    """What a class does to its columns itself: HistGradientBoosting puts categories, as numbers, before the others."""
    if type(final).__name__ == "GradientBoostingClassifier":  # takes no missing values
        return [Column(column.there(), cases=column.cases) for column in table]
    inner = getattr(final, "_preprocessor", None)
    if inner is None:
        return table
    categorical = np.flatnonzero(final.is_categorical_).tolist()
    encoded = prepared(inner.named_transformers_["encoder"], [table[place] for place in categorical])
    return [*encoded, *(column for place, column in enumerate(table) if place not in categorical)]


def _rounds(estimator: Any) -> int | None:
    """Rounds of an XGBoost classifier that count: training may have stopped early."""
    try:
        return int(estimator.best_iteration) + 1
    except AttributeError:
        return None


def _outputs(final: Any, rows: int) -> Outputs:
    if rows == 1:
        return "log-odds"
    apart = type(final).__name__ == "SGDClassifier" and hasattr(final, "predict_proba")
    return "one against the rest" if apart else "logits"


def _linear(final: Any, table: Table) -> tuple[list[Form], nn.Module]:
    coefficients = np.atleast_2d(np.asarray(final.coef_, dtype=np.float64))
    biases = np.broadcast_to(np.asarray(final.intercept_, dtype=np.float64), (len(coefficients),))
    rows, classes = len(coefficients), len(final.classes_)
    if rows != (1 if classes == 2 else classes) or coefficients.shape[1] != len(table):
        raise unsupported(f"{type(final).__name__} compares classes in pairs", "use LogisticRegression or LinearSVC")
    forms = [combined(table, row, bias) for row, bias in zip(coefficients, biases, strict=True)]
    outputs = _outputs(final, rows)
    return ([Form(), *forms] if rows == 1 else forms), LinearScores(outputs)


def _network(final: Any, table: Table) -> tuple[list[Form], nn.Module]:
    if final.activation not in _ACTIVATIONS or final.out_activation_ not in ("logistic", "softmax"):
        raise unsupported("this MLPClassifier's activation is not known", "use relu, tanh, logistic or identity")
    if final.out_activation_ == "logistic" and final.n_outputs_ > 1:
        raise unsupported("MLPClassifier of several labels at once", "train one model for each")
    first, *others = zip(final.coefs_, final.intercepts_, strict=True)
    forms = [combined(table, row, bias) for row, bias in zip(first[0].T, first[1], strict=True)]
    layers: list[nn.Module] = []
    for number, (weight, bias) in enumerate(others):
        own, more = (torch.from_numpy(np.array(part, dtype=np.float64)) for part in (weight.T, bias))
        if number == len(others) - 1 and final.n_outputs_ == 1:
            own, more = with_two_classes(own, more, "log-odds")
        layers += [_ACTIVATIONS[final.activation](), filled_linear(own, more)]
    if not layers and final.n_outputs_ == 1:
        forms = [Form(), *forms]
    return forms, nn.Sequential(*layers)


def _assembled(forms: Sequence[Form], head: nn.Module, width: int, codes: Tensor | None, *, flags: bool) -> nn.Module:
    """Records, the atoms that are needed, one matrix, and the head."""
    used = {atom for form in forms for atom in form.weights}
    cases = sorted(atom for atom in used if atom.kind == "case")
    atoms = {Atom("value", place): place for place in range(width)}
    reading: list[nn.Module] = []
    size = width
    if flags or any(atom.kind != "value" for atom in used):
        atoms |= {Atom("missing", place): width + place for place in range(width)}
        atoms |= {case: 2 * width + place for place, case in enumerate(cases)}
        size = 2 * width + len(cases)
        reading = [ReadRecords(width, codes, flags=flags, cases=cases)]
    weight, bias = matrix(forms, atoms, size)
    own = None if isinstance(head, Leaves) else bias  # its thresholds hold the biases
    return OfEstimator(*reading, filled_linear(weight, own), head)
