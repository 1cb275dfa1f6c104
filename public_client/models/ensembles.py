"""Ensembles of trees as their libraries hold them, read into one form: scikit-learn, LightGBM, XGBoost."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpswd.public_client.models.columns import unsupported

Vector = npt.NDArray[np.float64]
Outputs = Literal["log-odds", "logits", "probabilities", "one against the rest"]


@dataclass(frozen=True)
class Split:
    """A condition on one column; where it holds, a record goes left.

    Attributes:
        column: of the table that the trees see.
        threshold: the column is at most that, or below it.
        strict: below it.
        missing_left: whether a record without the value goes left.
        at_data: whether the threshold may be a training record's own number, of which float32 is all that is kept.
        categories: instead of a threshold: the column is one of these.
        vocabulary: categories beside which a value counts as missing; None: any other is just none of them.
    """

    column: int
    threshold: float = 0.0
    strict: bool = False
    missing_left: bool = False
    at_data: bool = False
    categories: frozenset[float] | None = None
    vocabulary: frozenset[float] | None = None


@dataclass(frozen=True)
class Leaf:
    """Where a tree ends.

    Attributes:
        path: the tree's splits on the way, each with whether it was left.
        value: what it adds to the outputs, (k,).
    """

    path: tuple[tuple[int, bool], ...]
    value: Vector


@dataclass(frozen=True)
class Tree:
    """A tree; its leaves stand in order, from left to right.

    Attributes:
        splits: its conditions.
        leaves: its ends.
    """

    splits: tuple[Split, ...]
    leaves: tuple[Leaf, ...]


@dataclass(frozen=True)
class Ensemble:
    """The sum of trees.

    Attributes:
        trees: they add up.
        bias: (k,) added to their sum.
        outputs: what the sum is.
    """

    trees: tuple[Tree, ...]
    bias: Vector
    outputs: Outputs


Expand = Callable[[Any], tuple[Split, Any, Any] | Vector]
"""A node's split and children, or a leaf's value."""


def _tree(root: Any, expand: Expand) -> Tree:
    splits: list[Split] = []
    leaves: list[Leaf] = []
    waiting: list[tuple[Any, tuple[tuple[int, bool], ...]]] = [(root, ())]
    while waiting:
        node, path = waiting.pop()
        expanded = expand(node)
        if isinstance(expanded, np.ndarray):
            leaves.append(Leaf(path, expanded))
            continue
        split, left, right = expanded
        waiting += [(right, (*path, (len(splits), False))), (left, (*path, (len(splits), True)))]
        splits.append(split)
    return Tree(tuple(splits), tuple(leaves))


def _one(value: float, place: int, count: int) -> Vector:
    """(count,) of zeros with one number."""
    made = np.zeros(count)
    made[place] = value
    return made


def _plain_tree(tree: Any, value: Callable[[int], Vector]) -> Tree:
    """A `sklearn.tree._tree.Tree`, whose thresholds are met by float32 numbers."""

    def expand(node: int) -> tuple[Split, int, int] | Vector:
        left, right = int(tree.children_left[node]), int(tree.children_right[node])
        if left < 0:
            return value(node)
        gone = bool(tree.missing_go_to_left[node]) if hasattr(tree, "missing_go_to_left") else False
        return Split(int(tree.feature[node]), float(tree.threshold[node]), missing_left=gone), left, right

    return _tree(0, expand)


def forest(estimator: Any) -> Ensemble:
    """Random forests, extremely randomised and single trees of scikit-learn: means of the leaves' class shares."""
    trees = getattr(estimator, "estimators_", None) or [estimator]
    if estimator.n_outputs_ != 1:
        raise unsupported("it predicts several things at once", "train one model for each")

    def shares(tree: Any) -> Callable[[int], Vector]:
        return lambda node: tree.value[node, 0] / tree.value[node, 0].sum() / len(trees)

    made = tuple(_plain_tree(one.tree_, shares(one.tree_)) for one in trees)
    return Ensemble(made, np.zeros(estimator.n_classes_), "probabilities")


def gradient_boosting(estimator: Any) -> Ensemble:
    """`GradientBoostingClassifier`."""
    if estimator.init_ != "zero" and type(estimator.init_).__name__ != "DummyClassifier":
        raise unsupported("GradientBoostingClassifier begins with another model (init)", "leave init out")
    bias = np.asarray(estimator._raw_predict_init(np.zeros((1, estimator.n_features_in_))), dtype=np.float64)[0]
    gain = 2.0 if estimator.loss == "exponential" else 1.0  # its probability is the sigmoid of twice the score

    def value(tree: Any, place: int) -> Callable[[int], Vector]:
        factor = gain * estimator.learning_rate
        return lambda node: _one(factor * float(tree.value[node, 0, 0]), place, len(bias))

    made = tuple(
        _plain_tree(one.tree_, value(one.tree_, k)) for row in estimator.estimators_ for k, one in enumerate(row)
    )
    return Ensemble(made, gain * bias, "log-odds" if len(bias) == 1 else "logits")


def _members(words: Any) -> frozenset[float]:
    """Members of a bit set of eight words of 32 bits."""
    return frozenset(float(32 * w + bit) for w, word in enumerate(words) for bit in range(32) if int(word) >> bit & 1)


def _of_float32(number: float) -> bool:
    """Whether a number is one of float32, or in the middle of two: its last bits are then zeros."""
    return int(np.float64(number).view(np.uint64)) & 0xFFFF == 0


def hist_gradient_boosting(estimator: Any) -> Ensemble:
    """`HistGradientBoostingClassifier`, categorical columns too."""
    bias = np.asarray(estimator._baseline_prediction, dtype=np.float64).reshape(-1)
    bit_sets, place_of = estimator._bin_mapper.make_known_categories_bitsets()

    def one(predictor: Any, k: int) -> Tree:
        nodes, left_sets = predictor.nodes, predictor.raw_left_cat_bitsets

        def expand(number: int) -> tuple[Split, int, int] | Vector:
            node = nodes[number]
            if node["is_leaf"]:
                return _one(float(node["value"]), k, len(bias))
            column, gone = int(node["feature_idx"]), bool(node["missing_go_to_left"])
            if node["is_categorical"]:
                left, vocabulary = _members(left_sets[node["bitset_idx"]]), _members(bit_sets[place_of[column]])
                split = Split(column, missing_left=gone, categories=left, vocabulary=vocabulary)
            else:
                bound = float(node["num_threshold"])
                split = Split(column, bound, missing_left=gone, at_data=not _of_float32(bound))
            return split, int(node["left"]), int(node["right"])

        return _tree(0, expand)

    made = tuple(one(predictor, k) for row in estimator._predictors for k, predictor in enumerate(row))
    return Ensemble(made, bias, "log-odds" if len(bias) == 1 else "logits")


def lightgbm(booster: Any) -> Ensemble:
    """A LightGBM `Booster`, by `dump_model()`."""
    model = booster.dump_model()
    words = str(model.get("objective", "")).split()
    options = dict(word.split(":", 1) for word in words[1:] if ":" in word)
    name, k = words[0] if words else "none", int(model["num_tree_per_iteration"])
    kinds: dict[str, Outputs] = {"binary": "log-odds", "cross_entropy": "log-odds", "multiclass": "logits"}
    outputs = kinds.get(name, "one against the rest" if name == "multiclassova" else None)
    if outputs is None:
        raise unsupported(f"LightGBM's objective {name!r} has no class scores", "train with binary or multiclass")
    if model.get("pandas_categorical") and any(isinstance(c, str) for own in model["pandas_categorical"] for c in own):
        raise unsupported("LightGBM learned categories that are text", "train on the numbers that records hold")
    gain = float(options.get("sigmoid", 1.0)) if name in ("binary", "multiclassova") else 1.0
    trees = model["tree_info"]
    if model.get("average_output"):
        gain *= k / max(1, len(trees))

    def one(number: int, info: Any) -> Tree:
        def expand(node: Any) -> tuple[Split, Any, Any] | Vector:
            if "split_feature" not in node:
                if "leaf_coeff" in node:
                    raise unsupported("LightGBM's leaves are linear models", "train with linear_tree=False")
                return _one(gain * float(node["leaf_value"]), number % k, k)
            return _lightgbm_split(node), node["left_child"], node["right_child"]

        return _tree(info["tree_structure"], expand)

    return Ensemble(tuple(one(i, info) for i, info in enumerate(trees)), np.zeros(k), outputs)


def _lightgbm_split(node: Any) -> Split:
    column, kind = int(node["split_feature"]), node["missing_type"]
    if kind == "Zero":
        raise unsupported("LightGBM takes zeros for missing values", "train with zero_as_missing=False")
    if node["decision_type"] == "==":
        return Split(column, categories=frozenset(float(c) for c in str(node["threshold"]).split("||")))
    threshold = float(node["threshold"])
    # Where it met no missing value in training, one counts as 0.
    gone = bool(node["default_left"]) if kind == "NaN" else threshold >= 0.0
    return Split(column, threshold, missing_left=gone)


def xgboost(booster: Any, rounds: int | None = None) -> Ensemble:
    """An XGBoost `Booster`, by its JSON.

    Args:
        booster: of gbtree or dart.
        rounds: of trees that count, where training stopped early.
    """
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    objective = learner["objective"]["name"]
    gradient = learner["gradient_booster"]
    drops: Sequence[float] | None = gradient.get("weight_drop")
    model = gradient.get("gbtree", gradient).get("model")
    if model is None:
        raise unsupported(f"XGBoost's booster {gradient.get('name')!r} is no ensemble of trees", "train with gbtree")
    if objective not in ("binary:logistic", "binary:logitraw", "reg:logistic", "multi:softprob", "multi:softmax"):
        raise unsupported(
            f"XGBoost's objective {objective!r} has no class scores", "train with binary:logistic or multi:softprob"
        )
    if any(part.get("enc") for part in (learner.get("cats") or model.get("cats") or {},)):
        raise unsupported("XGBoost learned categories of a data frame", "train on the numbers that records hold")
    parameters = learner["learner_model_param"]
    k = max(1, int(parameters["num_class"]))
    stored = json.loads(parameters["base_score"])
    base = np.broadcast_to(np.asarray(stored, dtype=np.float64), (k,))
    if objective in ("binary:logistic", "reg:logistic"):
        base = np.log(base) - np.log1p(-base)
    chosen = (
        len(model["trees"]) if rounds is None else rounds * k * int(model["gbtree_model_param"]["num_parallel_tree"])
    )
    made = []
    for number, tree in enumerate(model["trees"][:chosen]):
        if int(tree["tree_param"].get("size_leaf_vector", "1")) > 1:
            raise unsupported("XGBoost's leaves hold vectors", "train with multi_strategy='one_output_per_tree'")
        made.append(_xgboost_tree(tree, model["tree_info"][number], k, drops[number] if drops else 1.0))
    return Ensemble(tuple(made), np.array(base), "log-odds" if k == 1 else "logits")


def _xgboost_tree(tree: Any, place: int, k: int, gain: float) -> Tree:
    of_node = {
        node: frozenset(float(c) for c in tree["categories"][begin : begin + size])
        for node, begin, size in zip(
            tree["categories_nodes"], tree["categories_segments"], tree["categories_sizes"], strict=True
        )
    }

    def expand(node: int) -> tuple[Split, int, int] | Vector:
        left, right = tree["left_children"][node], tree["right_children"][node]
        number = float(np.float32(tree["split_conditions"][node]))
        if left < 0:
            return _one(gain * number, place, k)
        column, gone = tree["split_indices"][node], bool(tree["default_left"][node])
        if node in of_node:  # its categories go right
            return Split(column, missing_left=not gone, categories=of_node[node]), right, left
        return Split(column, number, strict=True, missing_left=gone), left, right

    return _tree(0, expand)
