"""A module that was read off an estimator, compared with it on made records: another version of a library tells."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpswd.public_client.models.columns import Form, unsupported
from dpswd.public_client.models.packing import LARGEST, Leaves

RECORDS = 256
LARGEST_DIFFERENCE = 1e-4
"""Of a probability, or of a score relative to the largest one: what is put down to rounding."""
_GAPS = 0.15  # share of missing values
_FLIPPED = 0.02
"""Most records that may differ by more: rounding before a tree's threshold sends one the other way."""


def made_records(forms: Sequence[Form], head: nn.Module, codes: Tensor | None, width: int) -> tuple[Tensor, Tensor]:
    """Made records: around thresholds, of the model's categories.

    Args:
        forms: what the model reads.
        head: what is behind; its thresholds.
        codes: of missing values.
        width: values of a record.

    Returns:
        (RECORDS, width) twice, NaN where missing: wherever values may be, and only where the model asks for it.
    """
    generator = np.random.default_rng(0)
    cases: list[set[float]] = [set() for _ in range(width)]
    bounds: list[list[float]] = [[] for _ in range(width)]
    missing = np.zeros(width, dtype=bool)
    thresholds = head.thresholds.tolist() if isinstance(head, Leaves) else [None] * len(forms)
    for form, bound in zip(forms, thresholds, strict=True):
        for atom, weight in form.weights.items():
            missing[atom.place] |= atom.kind == "missing"
            if atom.kind == "case":
                cases[atom.place].add(atom.number)
            elif atom.kind == "value" and bound is not None and abs(weight) == 1.0 and abs(bound) < 1e30:
                bounds[atom.place].append(weight * bound)
    made = generator.standard_normal((RECORDS, width))
    for place in range(width):
        if cases[place]:
            made[:, place] = generator.choice(sorted(cases[place]), RECORDS)
        elif bounds[place]:
            spread = float(np.std(bounds[place])) + 1e-3 * abs(bounds[place][0]) + 1e-3
            made[:, place] = generator.choice(bounds[place], RECORDS) + 0.1 * spread * made[:, place]
    some = made.astype(np.float32)
    gaps = generator.random(made.shape) < _GAPS
    may = np.ones(width, dtype=bool) if codes is None else (codes != -LARGEST).numpy()
    everywhere, asked = (
        torch.from_numpy(np.where(gaps & where, np.float32(math.nan), some)) for where in (may, missing)
    )
    return everywhere, asked


def compare(
    estimator: Any,
    module: nn.Module,
    made: Sequence[Tensor],
    *,
    own: Sequence[str] | None,
    places: Sequence[int],
    codes: Tensor | None,
    flags: bool,
) -> None:
    """Refuses a module that computes something else than its estimator.

    Args:
        estimator: as it was given.
        module: read off it.
        made: records (n, width), NaN where missing; the first that the estimator takes count.
        own: names of the estimator's columns, if it has any.
        places: of the estimator's columns in a record.
        codes: of missing values.
        flags: whether a record is (values, flags).

    Raises:
        ExtractorUnsupported: they differ, or the estimator cannot be evaluated.
    """
    failure: Exception | None = None
    for records in made:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected, probabilities = _expected(estimator, records[:, list(places)].numpy(), own)
            break
        except Exception as error:  # noqa: BLE001 - another library's code ran, and may fail in any way
            failure = error
    else:
        raise unsupported(
            f"it cannot be evaluated on made records ({type(failure).__name__}: {str(failure)[:200]})",
            "look whether it predicts numbers from numbers; check=False leaves the comparison out",
        ) from failure
    with torch.no_grad():
        scores = module(encoded(records, codes, flags=flags)).double()
    seen = torch.softmax(scores, dim=1).numpy() if probabilities else scores.numpy()
    if not probabilities and expected.shape[1] == 1:
        seen = seen[:, 1:] - seen[:, :1]
    scale = 1.0 if probabilities else float(np.abs(expected).max()) + 1e-12
    apart = np.abs(seen - expected).max(axis=1) / scale
    if not np.mean(~(apart <= LARGEST_DIFFERENCE)) <= _FLIPPED:
        raise unsupported(
            f"what was read off it gives other {'probabilities' if probabilities else 'scores'} than it does, by up to "
            f"{np.nanmax(apart):.2g} on made records",
            "a part of it, or its library's version, is not known here; use another estimator",
        )


def encoded(records: Tensor, codes: Tensor | None, *, flags: bool) -> Tensor:
    """Records with NaN as a hospital holds them: with codes, or flags, of missing values."""
    gone = records.isnan()
    if flags:
        return torch.cat([torch.where(gone, torch.tensor(0.0), records), gone.float()], dim=1)
    return records if codes is None else torch.where(gone, codes, records)


def _expected(
    estimator: Any, table: npt.NDArray[np.float32], own: Sequence[str] | None
) -> tuple[npt.NDArray[np.float64], bool]:
    """What the estimator gives, (n, k), and whether it is probabilities."""
    if type(estimator).__name__ == "Booster":
        given = importlib.import_module("xgboost").DMatrix if type(estimator).__module__.startswith("xgboost") else None
        own_types = (
            {"feature_names": estimator.feature_names, "feature_types": estimator.feature_types} if given else {}
        )
        expected = np.asarray(estimator.predict(given(table, **own_types) if given else table.astype(np.float64)))
        return _shares(expected if expected.ndim > 1 else np.stack([1.0 - expected, expected], axis=1)), True
    shown: Any = table if own is None else _framed(table, own)
    if hasattr(estimator, "predict_proba"):
        return _shares(np.asarray(estimator.predict_proba(shown), dtype=np.float64)), True
    expected = np.asarray(estimator.decision_function(shown), dtype=np.float64)
    return expected.reshape(len(table), -1), False


def _shares(probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """That add up to one: LightGBM's one against the rest do not."""
    shares: npt.NDArray[np.float64] = probabilities / probabilities.sum(axis=1, keepdims=True)
    return shares


def _framed(table: npt.NDArray[np.float32], names: Sequence[str]) -> Any:
    """With the names that it was fitted on, where pandas can hold them."""
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        return table
    return pandas.DataFrame(table, columns=list(names))
