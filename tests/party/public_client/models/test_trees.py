"""Tabular models of other libraries give their own probabilities as a graph that travels, missing values too."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from dpswd.public_client.experiments.own_model import own_model
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.public_client.models.packing import threshold
from dpswd.public_client.models.trees import as_module
from dpswd.shared.core.errors import ExtractorUnsupported, InvalidValue
from dpswd.shared.sandbox.building import Extractor, check_row_independence
from dpswd.shared.sandbox.graph import ExtractorGraph
from dpswd.shared.sandbox.weights import weights_from_bytes

PAGE = Path(__file__).parents[4] / "docs" / "ml-team" / "extractors.md"
N, D = 500, 6
NUMBERS, WORDS = [0, 1, 2, 3], [4, 5]
Hist = HistGradientBoostingClassifier


def table(*, gaps):
    """(n, 6): three numbers, one of few values, two categories; labels of two and of three classes."""
    drawn = np.random.default_rng(1)
    x = drawn.standard_normal((N, D)).astype(np.float32)
    x[:, 3] = np.round(2.0 * x[:, 3]) / 4.0
    x[:, 4], x[:, 5] = drawn.integers(0, 6, N), drawn.integers(0, 3, N)
    score = x[:, 0] + x[:, 1] * x[:, 2] + 2 * (x[:, 4] == 2) - (x[:, 5] == 1) + drawn.standard_normal(N)
    if gaps:
        x[drawn.random(x.shape) < 0.15] = np.nan
    return x, (score > 0).astype(int), np.digitize(score, [-0.7, 0.7])


def ready(**options):
    """What is usual in front of a linear model or a network."""
    return make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()), NUMBERS),
        (
            make_pipeline(
                SimpleImputer(strategy="most_frequent"), OneHotEncoder(**{"handle_unknown": "ignore", **options})
            ),
            WORDS,
        ),
    )


def codes(unknown=np.nan):
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=unknown)
    return make_column_transformer((encoder, WORDS), remainder="passthrough")


WITH_GAPS = {
    "hist": lambda: Hist(max_iter=20),
    "hist, categories": lambda: Hist(max_iter=20, categorical_features=WORDS),
    "hist, scaled": lambda: make_pipeline(StandardScaler(), Hist(max_iter=20)),
    "hist, of codes": lambda: make_pipeline(codes(), Hist(max_iter=20, categorical_features=[0, 1])),
    "hist, codes as numbers": lambda: make_pipeline(codes(-1), Hist(max_iter=20)),
    "forest": lambda: RandomForestClassifier(20, max_leaf_nodes=70, random_state=0),
    "tree": lambda: DecisionTreeClassifier(random_state=0),
    "imputed forest": lambda: make_pipeline(ready(), RandomForestClassifier(10, max_leaf_nodes=30, random_state=0)),
    "logistic": lambda: make_pipeline(ready(), LogisticRegression()),
    "logistic, rare": lambda: make_pipeline(ready(min_frequency=90, drop="first"), LogisticRegression()),
    "network": lambda: make_pipeline(ready(), MLPClassifier((12, 8), max_iter=40, random_state=0)),
    "network, tanh": lambda: make_pipeline(ready(), MLPClassifier(5, activation="tanh", max_iter=40, random_state=0)),
}
COMPLETE = {
    "boosting": lambda: GradientBoostingClassifier(n_estimators=10),
    "extremely random": lambda: ExtraTreesClassifier(15, max_depth=6, random_state=0),
    "projected": lambda: make_pipeline(RobustScaler(), PCA(3), GradientBoostingClassifier(n_estimators=10)),
    "selected": lambda: make_pipeline(SelectKBest(k=3), LinearDiscriminantAnalysis()),
    "stochastic": lambda: make_pipeline(MinMaxScaler(), SGDClassifier(loss="log_loss", random_state=0)),
    "plain": LogisticRegression,
}


def features(module, records):
    """As a curator computes them: from bytes, record by record."""
    traced = trace(module, tuple(records.shape[1:]))
    graph = ExtractorGraph.from_bytes(traced.to_bytes())
    weights = weights_from_bytes(weights_to_bytes(module_weights(module, traced)), graph)
    extractor = Extractor(graph, weights)
    check_row_independence(extractor)
    return extractor.features(records)


def hospital(x, missing):
    """Records as a hospital holds them."""
    values, gone = torch.from_numpy(x), torch.from_numpy(np.isnan(x))
    if missing == "flags":
        return torch.cat([values.nan_to_num(7.0), gone.float()], dim=1)
    return values if missing is None else torch.where(gone, torch.tensor(missing), values)


BOTH_WAYS = ("hist", "forest", "logistic", "network", "boosting")
"""Each library's ways to two classes and to more; what is around them is tried with one of the two."""


def _estimators():
    for number, (name, classes) in enumerate(itertools.product([*WITH_GAPS, *COMPLETE], (2, 3))):
        usual = name in BOTH_WAYS or number % 4 in (0, 3)
        yield pytest.param(name, classes, marks=() if usual else pytest.mark.exhaustive)


@pytest.mark.parametrize(("name", "classes"), list(_estimators()))
def test_the_softmax_of_its_scores_is_the_estimators_probability(name, classes):
    x, *labels = table(gaps=name in WITH_GAPS)
    estimator = (WITH_GAPS | COMPLETE)[name]().fit(x, labels[classes - 2])
    for missing in (None, -99.0, "flags") if name in WITH_GAPS else (None,):
        scores = features(as_module(estimator, missing=missing), hospital(x, missing))
        seen = torch.softmax(scores.double(), dim=1).numpy()
        np.testing.assert_allclose(seen, estimator.predict_proba(x), atol=1e-5, rtol=0)


def test_scores_of_models_without_probabilities_are_their_decisions():
    x, two, three = table(gaps=False)
    for model in (LinearSVC, RidgeClassifier):
        scores = features(as_module(model().fit(x, two)), torch.from_numpy(x))
        np.testing.assert_allclose(scores[:, 1], model().fit(x, two).decision_function(x), atol=1e-5)
        assert not scores[:, 0].any()
        scores = features(as_module(model().fit(x, three)), torch.from_numpy(x))
        np.testing.assert_allclose(scores, model().fit(x, three).decision_function(x), atol=1e-5)


def test_categories_looked_up_by_the_mean_of_their_labels():
    x, y, _ = table(gaps=False)
    encoder = make_column_transformer((TargetEncoder(random_state=0), WORDS), remainder="passthrough")
    estimator = make_pipeline(encoder, LogisticRegression()).fit(x, y)
    unseen = x.copy()
    unseen[:9, 4] = 17.0  # no category: the mean of all labels
    scores = features(as_module(estimator), torch.from_numpy(unseen)).double()
    np.testing.assert_allclose(torch.softmax(scores, 1), estimator.predict_proba(unseen), atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"boosting_type": "rf", "bagging_fraction": 0.5, "bagging_freq": 1},
        {"told": WORDS, "min_data_per_group": 5, "cat_smooth": 1.0, "max_cat_to_onehot": 2},
        {"objective": "multiclassova"},
    ],
)
def test_lightgbm(options):
    lightgbm = pytest.importorskip("lightgbm")
    for gaps in (False, True):
        x, *labels = table(gaps=gaps)
        for y in labels[1:] if "objective" in options else labels:
            own = {name: value for name, value in options.items() if name != "told"}
            estimator = lightgbm.LGBMClassifier(n_estimators=12, verbose=-1, n_jobs=1, **own)
            estimator.fit(x, y, categorical_feature=options.get("told", "auto"))
            assert ('"decision_type": "=="' in json.dumps(estimator.booster_.dump_model())) == ("told" in options)
            for model in (estimator, estimator.booster_):
                scores = features(
                    as_module(model, missing=-99.0 if gaps else None), hospital(x, -99.0 if gaps else None)
                )
                seen = torch.softmax(scores.double(), dim=1).numpy()
                expected = estimator.predict_proba(x)  # of one against the rest they do not add up to one
                np.testing.assert_allclose(seen, expected / expected.sum(1, keepdims=True), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"booster": "dart", "rate_drop": 0.3},
        {"num_parallel_tree": 3, "subsample": 0.5},
        {"enable_categorical": True, "feature_types": ["q"] * 4 + ["c"] * 2},
    ],
)
def test_xgboost(options):
    xgboost = pytest.importorskip("xgboost")
    x, *labels = table(gaps=True)
    for y in labels:
        estimator = xgboost.XGBClassifier(n_estimators=12, n_jobs=1, **options).fit(x, y)
        for model in (estimator, estimator.get_booster()):
            scores = features(as_module(model, missing=-99.0), hospital(x, -99.0))
            seen = torch.softmax(scores.double(), dim=1).numpy()
            np.testing.assert_allclose(seen, estimator.predict_proba(x), atol=1e-5, rtol=0)


def test_xgboost_that_stopped_early_gives_its_best_rounds():
    xgboost = pytest.importorskip("xgboost")
    x, y, _ = table(gaps=True)
    estimator = xgboost.XGBClassifier(n_estimators=200, n_jobs=1, learning_rate=1.0, early_stopping_rounds=3)
    estimator.fit(x[:300], y[:300], eval_set=[(x[300:], y[300:])], verbose=False)
    scores = features(as_module(estimator), torch.from_numpy(x)).double()
    np.testing.assert_allclose(torch.softmax(scores, 1), estimator.predict_proba(x), atol=1e-5, rtol=0)


def test_columns_are_matched_by_name():
    """A hospital's records stand in another order, and hold a column that the model does not read."""
    lightgbm = pytest.importorskip("lightgbm")
    x, y, _ = table(gaps=False)
    names = [f"column {place}" for place in range(D)]
    data = lightgbm.Dataset(x, y, feature_name=names)
    booster = lightgbm.train({"objective": "binary", "verbose": -1}, data, 10)
    records = torch.from_numpy(np.concatenate([x[:, ::-1], x[:, :1] * 0 + 5.0], axis=1))
    stored = booster.feature_name()
    scores = features(as_module(booster, [*stored[::-1], "other"]), records)
    np.testing.assert_allclose(torch.sigmoid(scores[:, 1]), booster.predict(x), atol=1e-5)
    with pytest.raises(InvalidValue, match="which feature_names does not hold"):
        as_module(booster, stored[1:])


def test_a_threshold_splits_the_float32_numbers_that_it_splits():
    drawn = np.random.default_rng(0)
    for number in (
        0.1,
        -3.0,
        1e-42,
        1e300,
        -np.inf,
        *drawn.standard_normal(50),
        *drawn.standard_normal(50).astype(np.float32),
    ):
        near = np.float32(np.clip(number, -1e38, 1e38))
        for x in (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))):
            x = x if abs(x) > 2.0**-126 else np.float32(0.0)  # as where records are evaluated
            assert (x < np.float32(threshold(number, strict=True))) == (float(x) < number)
            assert (x < np.float32(threshold(number, strict=False))) == (float(x) <= number)


def test_a_threshold_at_training_s_own_number_keeps_records_of_it_left():
    """0.1 as float32 is above 0.1: a table read as float64 and served as float32 would move to the right."""
    x = np.round(np.random.default_rng(0).random((4000, 1)), 3)
    estimator = Hist(max_iter=5).fit(x, x[:, 0] > 0.5)
    scores = features(as_module(estimator), torch.from_numpy(x.astype(np.float32))).double()
    np.testing.assert_allclose(torch.softmax(scores, 1), estimator.predict_proba(x), atol=1e-6)


def test_a_model_of_float32_numbers_is_exact_at_numbers_between_them():
    """The middle of 0.1 and 0.2 in float32 is not 0.15 in float32, which a hospital may hold."""
    x = np.round(np.random.default_rng(0).random((4000, 1)), 1).astype(np.float32)
    estimator = Hist(max_iter=5).fit(x, x[:, 0] > 0.5)
    between = np.round(np.random.default_rng(1).random((4000, 1)), 2).astype(np.float32)
    scores = features(as_module(estimator), torch.from_numpy(between)).double()
    np.testing.assert_allclose(torch.softmax(scores, 1), estimator.predict_proba(between), atol=1e-6)


def test_what_is_too_large_is_refused_by_its_size_in_words():
    x = np.random.default_rng(0).standard_normal((3000, D)).astype(np.float32)
    forest = RandomForestClassifier(60, random_state=0).fit(x, np.random.default_rng(1).integers(0, 2, 3000))
    with pytest.raises(ExtractorUnsupported, match=r"60 trees have .* leaves, .*\(at most 65,536\).*max_leaf_nodes=31"):
        as_module(forest)


class HistGradientBoostingClassifierOfOtherVersion(Hist):
    def predict_proba(self, x):
        return super().predict_proba(x)[:, ::-1]


HistGradientBoostingClassifierOfOtherVersion.__name__ = "HistGradientBoostingClassifier"


@pytest.mark.parametrize(
    ("estimator", "options", "words"),
    [
        (HistGradientBoostingClassifierOfOtherVersion(max_iter=5), {}, "gives other probabilities"),
        (make_pipeline(FunctionTransformer(np.abs), LogisticRegression()), {}, "runs a function"),
        (make_pipeline(StandardScaler(), PCA(2, whiten=True), LogisticRegression()), {}, "StandardScaler behind it"),
        (CalibratedClassifierCV(LogisticRegression(), ensemble=False), {}, "records embed"),
        (LogisticRegression(), {"missing": -1.0}, "put a SimpleImputer in front"),
        (make_pipeline(StandardScaler(), OneHotEncoder(handle_unknown="ignore"), LogisticRegression()), {}, "scaled"),
    ],
)
def test_what_has_no_word_is_refused_with_what_to_use(estimator, options, words):
    x, y, _ = table(gaps=False)
    estimator.fit(x[:, :4], y)
    with pytest.raises(ExtractorUnsupported, match=words):
        as_module(estimator, **options)


def test_the_page_s_program_runs_and_what_it_saves_is_the_commands_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y, _ = table(gaps=True)
    program = (
        PAGE.read_text(encoding="utf-8").split("## Trees and scikit-learn")[1].split("```python\n")[1].split("```")[0]
    )
    named = {"estimator": Hist(max_iter=3).fit(x, y)}
    exec(compile(program, str(PAGE), "exec"), named)
    records = hospital(x, -999.0)
    seen = features(named["module"], records)
    assert seen.shape == (N, 2)
    read = own_model(None, Path("model.joblib"), torch.as_tensor(records[:2]))
    torch.testing.assert_close(features(read.extractor, records), seen)


def test_codes_of_missing_values_may_differ_by_column_and_must_fit():
    x, y, _ = table(gaps=False)
    x[:50, 0] = np.nan
    imputed = make_pipeline(SimpleImputer(), LogisticRegression()).fit(x, y)
    nowhere = [np.nan] * (D - 1)
    scores = features(as_module(imputed, missing=[-5.0, *nowhere]), hospital(x, -5.0)).double()
    np.testing.assert_allclose(torch.softmax(scores, 1), imputed.predict_proba(x), atol=1e-6)
    with pytest.raises(InvalidValue, match="allowed: a number"):
        as_module(imputed, missing="gaps")
    with pytest.raises(InvalidValue, match="one for each of the 6 columns"):
        as_module(imputed, missing=[-5.0, -5.0])
