"""An ensemble of trees as matrix products and comparisons, so that it is a network of the closed vocabulary.

The GEMM strategy of Hummingbird (Nakandala et al., OSDI 2020): s = [x A < t] holds every split's answer, 1 for left; a
leaf's row of C has +1 for each split that is left on its way, -1 for each that is right, and D counts the first, so
relu(C s - D + 1) is 1 at the one leaf of each tree where a record ends and 0 at all others; E adds their values up.
Every record meets every split, so the time says nothing of it. Trees are cut into groups of leaves, each with the
splits on their ways alone: what a product with all splits of a large tree would cost is never spent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpswd.public_client.extractor.adapter_layers import filled_linear
from dpswd.public_client.models.columns import Atom, Column, Form, Table, total, unsupported
from dpswd.public_client.models.ensembles import Ensemble, Leaf, Outputs, Split, Tree
from dpswd.shared.sandbox.attributes import MAX_EXTENT
from dpswd.shared.sandbox.graph import MAX_PARAMETERS

LEAVES = 32
"""Most leaves of a group: beyond, products with splits that are on no leaf's way outweigh splits asked twice."""
LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = 2.0**-126  # normal number of float32; smaller ones are flushed to zero where records are evaluated
_ROUNDED = 2.0**-22  # of a float32 number, after two roundings
SMALLEST_SHARE = 1e-6
"""Least class share of a forest whose logarithm is taken: no leaf's records make a class impossible."""


def threshold(number: float, *, strict: bool, at_data: bool = False) -> float:
    """The float32 t for which x < t holds for the same float32 x as x < number, or x <= number.

    Args:
        number: float64.
        strict: whether it is x < number.
        at_data: the number is some training record's own, which is float32 at a hospital, so it is rounded as that is.
    """
    bound = min(max(number, -LARGEST), LARGEST)
    nearest = np.float32(bound)
    bound = float(nearest) if at_data else bound
    if float(nearest) < bound or (float(nearest) == bound and not strict):
        nearest = np.nextafter(nearest, np.float32(LARGEST))
    value = float(nearest)
    if abs(value) < _SMALLEST and value:
        return _SMALLEST if value > 0.0 else 0.0
    return value


def condition(split: Split, column: Column) -> tuple[Form, float]:
    """A split as `form < t`.

    Args:
        split: of a tree.
        column: that it is of.

    Returns:
        A form without a bias, and t, a float32 number.
    """
    if split.categories is not None:
        return _among(_members(split, column))
    if column.cases is not None:  # of known values
        left = [
            when
            for value, when in column.cases
            if value < split.threshold or (value == split.threshold and not split.strict)
        ]
        gone = [column.missing] if column.missing is not None and split.missing_left else []
        return _among(total([*left, *gone]))
    form = column.form
    values = [atom for atom in form.weights if atom.kind == "value"]
    if len(values) == 1 and all(atom in (values[0], Atom("missing", values[0].place)) for atom in form.weights):
        return _of_one_value(split, column, values[0])
    if column.missing is not None:
        raise unsupported("a tree splits a column that is mixed from others and may be missing", "impute before mixing")
    return Form(form.weights), threshold(split.threshold - form.bias, strict=split.strict)


def _of_one_value(split: Split, column: Column, value: Atom) -> tuple[Form, float]:
    """Of a record's own value, scaled or imputed: told of the value itself, so that no rounding stands between."""
    form, gone = column.form, Atom("missing", value.place)
    gain = form.weights[value]
    weights = {value: math.copysign(1.0, gain)}
    if column.missing is not None or gone in form.weights:
        filling = form.bias + form.weights.get(gone, 0.0)
        below = filling < split.threshold or (filling == split.threshold and not split.strict)
        left = split.missing_left if column.missing is not None else below
        weights[gone] = -LARGEST if left else LARGEST
    bound = split.threshold - form.bias
    if (gain, form.bias) != (1.0, 0.0) and float(np.float32(split.threshold)) == split.threshold:
        # The threshold may be a scaled float32 number of training: what scaling rounded stays on its side.
        bound += (-1.0 if split.strict else 1.0) * _ROUNDED * (abs(split.threshold) + abs(form.bias))
    return Form(weights), threshold(bound / abs(gain), strict=split.strict, at_data=split.at_data)


def _members(split: Split, column: Column) -> Form:
    """1 where a column is one of the split's categories."""
    assert split.categories is not None, "a split of categories"
    left = total(column.equals(category) for category in sorted(split.categories))
    if not split.missing_left:
        return left
    if split.vocabulary is None:
        return left if column.missing is None else left + column.missing
    return left + total(column.equals(category) for category in sorted(split.vocabulary)).times(-1.0, 1.0)


def _among(when: Form) -> tuple[Form, float]:
    """A form of 0 and 1 as a condition that holds at 1."""
    return Form({atom: -weight for atom, weight in when.weights.items()}), threshold(when.bias - 0.5, strict=True)


@dataclass(frozen=True)
class _Group:
    """Leaves of one tree, and the splits on their ways."""

    tree: Tree
    leaves: Sequence[Leaf]
    splits: Sequence[int]


def _grouped(tree: Tree) -> list[_Group]:
    count = -(-len(tree.leaves) // LEAVES)
    ends = [round(len(tree.leaves) * (i + 1) / count) for i in range(count)]
    made = []
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        leaves = tree.leaves[begin:end]
        made.append(_Group(tree, leaves, sorted({split for leaf in leaves for split, _ in leaf.path})))
    return made


class _Paths(nn.Conv1d):
    """Of one place, as products of matrices: torch's own takes four times as long."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        assert bias is not None, "of every leaf"
        own = weight.reshape(self.groups, -1, weight.shape[1]).transpose(1, 2)
        sums = x.reshape(len(x), self.groups, -1).transpose(0, 1) @ own
        return sums.transpose(0, 1).reshape(len(x), -1, 1) + bias[:, None]


class Leaves(nn.Module):
    """From splits' numbers to class scores: `docs/ml-team/extractors.md`.

    Args:
        thresholds: (groups * splits,) that the numbers are compared with.
        paths: (groups * leaves, splits), C.
        bounds: (groups * leaves,), 1 - D.
        values: (k, groups * leaves), E.
        bias: (k,) added.
        outputs: what the k sums are.
    """

    thresholds: Tensor

    def __init__(
        self, *, thresholds: Tensor, paths: Tensor, bounds: Tensor, values: Tensor, bias: Tensor, outputs: Outputs
    ) -> None:
        super().__init__()
        groups = len(thresholds) // paths.shape[1]
        self.register_buffer("thresholds", thresholds)
        self.paths = _Paths(len(thresholds), len(paths), 1, groups=groups, device="meta")
        self.paths.weight, self.paths.bias = nn.Parameter(paths.unsqueeze(-1)), nn.Parameter(bounds)
        self.values = filled_linear(values, bias)
        self.outputs = outputs

    def forward(self, numbers: Tensor) -> Tensor:
        """Class scores (b, k) of splits' numbers (b, groups * splits)."""
        left = (numbers < self.thresholds).float()
        ends = functional.relu(self.paths(left.unsqueeze(-1))).flatten(1)
        return finished(self.values(ends), self.outputs)


def finished(sums: Tensor, outputs: Outputs) -> Tensor:
    """Sums (b, k) as class scores, whose softmax is the library's probability."""
    if outputs == "probabilities":
        return torch.log(torch.clamp(sums, SMALLEST_SHARE, 1.0))
    if outputs == "one against the rest":
        return -functional.softplus(-sums)
    return sums


def with_two_classes(weight: Tensor, bias: Tensor, outputs: Outputs) -> tuple[Tensor, Tensor]:
    """A single row of log-odds as the scores of two classes, (0, log-odds); others as they are."""
    if outputs != "log-odds":
        return weight, bias
    return torch.cat([torch.zeros_like(weight), weight]), torch.cat([torch.zeros_like(bias), bias])


def packed(ensemble: Ensemble, table: Table) -> tuple[list[Form], Leaves]:
    """The numbers that splits compare, as forms, and what computes scores of them.

    Args:
        ensemble: of trees.
        table: the columns that they see.

    Raises:
        ExtractorUnsupported: the ensemble is larger than a graph may be.
    """
    groups = [group for tree in ensemble.trees for group in _grouped(tree)]
    if not groups:
        raise unsupported("the ensemble has no trees", "train it")
    splits, leaves = max(1, *(len(g.splits) for g in groups), 1), max(len(g.leaves) for g in groups)
    _refuse_size(ensemble, len(groups), splits, leaves, len(table))
    thresholds = torch.zeros(len(groups), splits)
    paths, bounds = torch.zeros(len(groups), leaves, splits), torch.zeros(len(groups), leaves)
    values = torch.zeros(len(groups), leaves, len(ensemble.bias), dtype=torch.float64)
    forms = [Form()] * (len(groups) * splits)
    conditions: dict[Split, tuple[Form, float]] = {}
    for g, group in enumerate(groups):
        at = {split: place for place, split in enumerate(group.splits)}
        for number, place in at.items():
            split = group.tree.splits[number]
            if split not in conditions:
                conditions[split] = condition(split, table[split.column])
            forms[g * splits + place], bound = conditions[split]
            thresholds[g, place] = bound
        for row, leaf in enumerate(group.leaves):
            for number, went_left in leaf.path:
                paths[g, row, at[number]] = 1.0 if went_left else -1.0
            bounds[g, row] = 1.0 - sum(went_left for _, went_left in leaf.path)
            values[g, row] = torch.from_numpy(leaf.value)
    weight, bias = with_two_classes(values.flatten(0, 1).T, torch.from_numpy(ensemble.bias), ensemble.outputs)
    return forms, Leaves(
        thresholds=thresholds.flatten(),
        paths=paths.flatten(0, 1),
        bounds=bounds.flatten(),
        values=weight,
        bias=bias,
        outputs=ensemble.outputs,
    )


def _refuse_size(ensemble: Ensemble, groups: int, splits: int, leaves: int, columns: int) -> None:
    """In words, before anything is allocated."""
    numbers = groups * splits * (2 * columns + leaves)
    if groups * max(splits, leaves) <= MAX_EXTENT and numbers <= MAX_PARAMETERS:
        return
    ends = sum(len(tree.leaves) for tree in ensemble.trees)
    raise unsupported(
        f"{len(ensemble.trees):,} trees have {ends:,} leaves, which take {groups * max(splits, leaves):,} splits side "
        f"by side (at most {MAX_EXTENT:,}) and {numbers:,} weights (at most {MAX_PARAMETERS:,})",
        "train fewer or smaller trees (max_leaf_nodes=31, min_samples_leaf, max_depth, n_estimators)",
    )


def matrix(forms: Sequence[Form], atoms: Mapping[Atom, int], width: int) -> tuple[Tensor, Tensor]:
    """Forms as weights (n, width) and biases (n,), float64.

    Args:
        forms: n of them.
        atoms: where each atom stands.
        width: number of atoms.
    """
    weight = torch.zeros(len(forms), width, dtype=torch.float64)
    for row, form in enumerate(forms):
        for atom, value in form.weights.items():
            weight[row, atoms[atom]] = value
    return weight, torch.tensor([form.bias for form in forms], dtype=torch.float64)
