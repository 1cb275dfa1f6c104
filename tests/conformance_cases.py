"""What the conformance suite needs to know of each mechanism: one frozen case or more for each of ALL_MECHANISMS.

A mechanism that is added gets a case here, and every test of the suite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from declarations import (
    Declared,
    class_statistics,
    evaluation,
    feature_sums,
    gradient,
    labelled,
    labelled_gradient,
    quantiles,
    rows,
    score_statistics,
    sinkhorn,
)
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from dpswd.shared.core.mechanisms.class_statistics.mechanism import (
    StatisticsDeclaration,
    StatisticsReply,
    StatisticsRequest,
)
from dpswd.shared.core.mechanisms.evaluation.counts import EvaluationReply
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration, EvaluationRequest
from dpswd.shared.core.mechanisms.feature_sums.mechanism import SumsDeclaration, SumsReply, SumsRequest
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.core.mechanisms.score_statistics.mechanism import ScoresDeclaration, ScoresReply, ScoresRequest
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedReply, SlicedRequest
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.noise.noise import GridArray
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.gradient.mechanism import GradientDeclaration, GradientReply, GradientRequest
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import (
    LabelledGradientDeclaration,
    LossGradientReply,
    LossGradientRequest,
)
from dpswd.shared.published_mechanisms.sinkhorn.mechanism import SinkhornDeclaration, SinkhornReply, SinkhornRequest

RECORDS, INPUTS, CLASSES, FEATURES = 24, 6, 3, 5
SOURCE = np.random.default_rng(3).normal(size=(9, FEATURES)).astype(np.float32)
MAP = FeatureMap(center=torch.full((FEATURES,), 0.1), scale=torch.full((FEATURES,), 0.6))
OWN_MAP = FeatureMap(center=torch.full((FEATURES,), -0.2), scale=torch.full((FEATURES,), 1.5))
OTHER_MAP = FeatureMap(center=torch.zeros(FEATURES + 1), scale=torch.ones(FEATURES + 1))
HUGE_MAP = FeatureMap(center=torch.zeros(FEATURES), scale=torch.full((FEATURES,), 1e30))


@dataclass(frozen=True)
class Case:
    """One declaration of one mechanism, with what a test must know of it.

    Attributes:
        name: of the case.
        declared: the mechanism's name, and a valid declaration.
        outputs: features of the linear extractor of which it is taken.
        request: a valid request of a step.
        batch: b.
        released: the integers that a reply holds, in the order of the mechanism's parts.
        seed: of the directions that a reply states; None where there are none.
        feature_map: of the step.
        hostile: declarations that must be refused, each with the field that must be named.
        hostile_requests: the same of requests.
        values: hypothesis strategies of declarations, requests and replies.
    """

    name: str
    declared: Declared
    outputs: int
    request: Payload
    batch: int
    released: Callable[[Any], tuple[GridArray, ...]]
    seed: Callable[[Any], bytes | None]
    feature_map: FeatureMap | None
    hostile: tuple[tuple[Payload, str], ...]
    hostile_requests: tuple[tuple[Payload | bytes, str], ...]
    values: tuple[st.SearchStrategy[Any], ...]

    @property
    def declaration(self) -> Any:
        """The mechanism's own declaration."""
        return self.declared[1]

    def module(self, factor: float = 1.0) -> nn.Module:
        """The extractor, with weights times a factor."""
        torch.manual_seed(8)
        made = nn.Linear(INPUTS, self.outputs)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.mul_(factor)
        return made


# ---- values for the encodings ----------------------------------------------------------------------------------------

NUMBERS = st.floats(allow_nan=False)
COUNTS = st.integers(0, 2**32 - 1)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def _floats(*, dims: int) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float32, hnp.array_shapes(min_dims=dims, max_dims=dims, max_side=4), elements=FINITE)


def _grids(*, dims: int, square: bool = False, first: int | None = None) -> st.SearchStrategy[GridArray]:
    def of(integer: str, bits: int) -> st.SearchStrategy[GridArray]:
        kind = np.int16 if bits == 16 else np.int32
        inside = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        side = st.integers(1, 4)
        shapes: st.SearchStrategy[tuple[int, ...]] = st.tuples(*[side] * dims)
        if square:
            shapes = side.map(lambda size: (size, size))
        if first is not None:
            shapes = st.tuples(st.just(first), *[side] * (dims - 1))
        steps = st.floats(min_value=1e-300, max_value=1e300)
        return st.builds(GridArray, hnp.arrays(kind, shapes, elements=inside), steps, st.just(integer))

    return of("int16", 16) | of("int24", 24) | of("int32", 32)


_MAPS = st.none() | st.integers(1, 4).flatmap(
    lambda size: st.builds(
        FeatureMap,
        center=hnp.arrays(np.float32, size, elements=FINITE).map(torch.from_numpy),
        scale=hnp.arrays(np.float32, size, elements=st.floats(2.0**-100, 2.0**100, width=32)).map(torch.from_numpy),
    )
)
_SLICED = st.builds(
    SlicedDeclaration, directions=COUNTS, sigma=NUMBERS, coefficients=COUNTS, feature_map=_MAPS, label_weight=NUMBERS
)
_SLICED_REPLIES = st.builds(SlicedReply, seed=st.binary(min_size=32, max_size=32), values=_grids(dims=2))
_SUMS = st.builds(ClippedSum, st.lists(st.text()).map(tuple), clip_norm=NUMBERS, sigma=NUMBERS)
_ADAPTED = st.none() | _floats(dims=1)
SLICED_VALUES = (_SLICED, st.builds(SlicedRequest, _MAPS), _SLICED_REPLIES)
GRADIENT_VALUES = (
    st.builds(GradientDeclaration, release=st.text(), sliced=_SLICED, sum=_SUMS, source_features=COUNTS),
    st.builds(GradientRequest, source=_floats(dims=2), adapted=_ADAPTED, feature_map=_MAPS),
    st.builds(GradientReply, sliced=_SLICED_REPLIES, gradient=_grids(dims=1), cotangent_scale=NUMBERS),
)
LABELLED_GRADIENT_VALUES = (
    st.builds(LabelledGradientDeclaration, COUNTS, _SUMS),
    st.builds(LossGradientRequest, _ADAPTED),
    st.builds(LossGradientReply, _grids(dims=1)),
)
EVALUATION_VALUES = (
    st.builds(EvaluationDeclaration, COUNTS, NUMBERS, NUMBERS, COUNTS, NUMBERS),
    st.just(EvaluationRequest()),
    st.builds(
        EvaluationReply,
        correct=_grids(dims=1, first=1),
        confusion=st.none() | _grids(dims=2, square=True),
        calibration=st.none() | _grids(dims=2, first=3),
    ),
)
STATISTICS_VALUES = (
    st.builds(StatisticsDeclaration, COUNTS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, _MAPS),
    st.just(StatisticsRequest()),
    st.builds(StatisticsReply, _grids(dims=1)),
)
FEATURE_SUMS_VALUES = (
    st.builds(SumsDeclaration, NUMBERS, st.lists(st.text()).map(tuple), _MAPS, _ADAPTED),
    st.builds(SumsRequest, _ADAPTED, _MAPS),
    st.builds(SumsReply, _grids(dims=1)),
)
SCORES_VALUES = (
    st.builds(ScoresDeclaration, COUNTS, *[NUMBERS] * 3, _floats(dims=1), correction=st.none() | _floats(dims=2)),
    st.builds(ScoresRequest, _floats(dims=2)),
    st.builds(ScoresReply, _grids(dims=1)),
)
SINKHORN_VALUES = (
    st.builds(
        SinkhornDeclaration,
        *[COUNTS] * 3,
        *[NUMBERS] * 3,
        COUNTS,
        clip_norm=NUMBERS,
        sigma=NUMBERS,
        clip_points=st.booleans(),
    ),
    st.builds(SinkhornRequest, _floats(dims=2), st.lists(COUNTS).map(tuple)),
    st.builds(SinkhornReply, _grids(dims=2)),
)


# ---- hostile declarations and requests -------------------------------------------------------------------------------

_NUMBERS = (float("nan"), float("inf"), -float("inf"), -1.0)


def _sliced_hostile(declared: SlicedDeclaration, *, coefficients: tuple[int, ...]) -> tuple[tuple[Payload, str], ...]:
    return (
        *((replace(declared, sigma=sigma), "declaration.sigma") for sigma in (*_NUMBERS, 0.0)),
        (replace(declared, sigma=1e-300), "parameters.declaration"),
        (replace(declared, sigma=1e300), "parameters.declaration"),
        *((replace(declared, directions=count), "declaration.directions") for count in (0, 2**32 - 1)),
        *((replace(declared, coefficients=count), "declaration.coefficients") for count in coefficients),
        (replace(declared, feature_map=OTHER_MAP), "declaration.feature_map"),
        (replace(declared, feature_map=HUGE_MAP), "declaration.feature_map.scale"),
        *((replace(declared, label_weight=weight), "declaration.label_weight") for weight in (*_NUMBERS, 0.51)),
        (replace(declared, label_weight=0.0 if declared.label_weight else 0.2), "declaration.label_weight"),
    )


def _sum_hostile(declared: Any) -> tuple[tuple[Payload, str], ...]:
    summed: ClippedSum = declared.sum
    changed = (
        *((replace(summed, sigma=sigma), "sigma") for sigma in (*_NUMBERS, 0.0, 1e-300)),
        *((replace(summed, clip_norm=norm), "clip_norm") for norm in (*_NUMBERS, 0.0)),
        (replace(summed, clip_norm=1e300), "sigma"),  # a sum that does not fit in 32 bits at this noise
        (replace(summed, parameters=()), "parameters"),
        (replace(summed, parameters=("weight", "weight")), "parameters"),
        (replace(summed, parameters=("nothing", "\x00" * 9)), "parameters"),
    )
    return tuple((replace(declared, sum=one), f"declaration.sum.{field}") for one, field in changed)


_SLICED_REQUESTS: tuple[tuple[Payload | bytes, str], ...] = (
    (SlicedRequest(OTHER_MAP), "payload.feature_map"),
    (SlicedRequest(HUGE_MAP), "payload.feature_map.scale"),
    (b"\xff\xff", "payload"),
)
_GRADIENT_REQUESTS: tuple[tuple[Payload | bytes, str], ...] = (
    (GradientRequest(SOURCE[:, :4]), "payload.source"),
    (GradientRequest(np.full_like(SOURCE, np.nan)), "payload.source"),
    (GradientRequest(np.full_like(SOURCE, np.inf)), "payload.source"),
    (GradientRequest(np.zeros((10, FEATURES), np.float32)), "payload.source"),
    (GradientRequest(SOURCE, np.full(30, np.nan, np.float32)), "payload.adapted_parameters"),
    (GradientRequest(SOURCE, np.zeros(29, np.float32)), "payload.adapted_parameters"),
    (GradientRequest(SOURCE, None, OTHER_MAP), "payload.feature_map"),
    (b"", "payload.source"),
    (b"\xff\xff", "payload"),
)


# ---- the cases -------------------------------------------------------------------------------------------------------

_ROWS = SlicedDeclaration(7, 1.5, feature_map=MAP)
_QUANTILES = SlicedDeclaration(7, 0.9, 3, MAP)
_SUM = ClippedSum(("weight",), clip_norm=0.02, sigma=0.05)
_EVALUATED = EvaluationDeclaration(CLASSES, 2.0, confusion_sigma=3.0, bins=4, calibration_sigma=5.0)


def _statistics(name: str, count_weight: float, moment_weight: float, centring: float = 0.0) -> Case:
    declared = StatisticsDeclaration(CLASSES, count_weight, moment_weight, centring, 1.7, MAP)
    return Case(
        name=name,
        declared=class_statistics(declared),
        outputs=FEATURES,
        request=StatisticsRequest(),
        batch=RECORDS,
        released=lambda reply: (reply.sum,),
        seed=lambda _: None,
        feature_map=MAP,
        hostile=(
            *((replace(declared, sigma=sigma), "declaration.sigma") for sigma in (*_NUMBERS, 0.0, 1e-300, 1e-9)),
            (replace(declared, sigma=1e300), "parameters.declaration"),
            *((replace(declared, count_weight=weight), "declaration.count_weight") for weight in _NUMBERS),
            *((replace(declared, moment_weight=weight), "declaration.moment_weight") for weight in _NUMBERS),
            *((replace(declared, centring=kappa), "declaration.centring") for kappa in (*_NUMBERS, 1.01)),
            (replace(declared, count_weight=1e300), "declaration.sigma"),  # counts that do not fit in 32 bits
            *((replace(declared, classes=count), "declaration.classes") for count in (0, 4, 2**32 - 1)),
            (replace(declared, feature_map=OTHER_MAP), "declaration.feature_map"),
            (replace(declared, feature_map=HUGE_MAP), "declaration.feature_map.scale"),
        ),
        hostile_requests=((b"x", "payload"), (b"\x00" * 1000, "payload")),
        values=STATISTICS_VALUES,
    )


def _feature_sums(name: str, request: SumsRequest, feature_map: FeatureMap | None, **changed: Any) -> Case:
    declared = replace(SumsDeclaration(1.7, feature_map=MAP), **changed)
    wrong = np.zeros(FEATURES * INPUTS + 1, np.float32)
    return Case(
        name=name,
        declared=feature_sums(declared),
        outputs=FEATURES,
        request=request,
        batch=RECORDS,
        released=lambda reply: (reply.sum,),
        seed=lambda _: None,
        feature_map=feature_map,
        hostile=(
            *((replace(declared, sigma=sigma), "declaration.sigma") for sigma in (*_NUMBERS, 0.0, 1e-300, 1e-9)),
            (replace(declared, sigma=1e300), "parameters.declaration"),
            (replace(declared, parameters=("weight", "weight")), "declaration.parameters"),
            (replace(declared, parameters=("nothing", "\x00" * 9)), "declaration.parameters"),
            (replace(declared, adapted=wrong), "declaration.adapted_parameters"),
            (replace(declared, feature_map=OTHER_MAP), "declaration.feature_map"),
            (replace(declared, feature_map=HUGE_MAP), "declaration.feature_map.scale"),
        ),
        hostile_requests=(
            (SumsRequest(wrong), "payload.adapted_parameters"),
            (SumsRequest(np.full(len(wrong) - 1, np.nan, np.float32)), "payload.adapted_parameters"),
            (SumsRequest(feature_map=OTHER_MAP), "payload.feature_map"),
            (SumsRequest(feature_map=HUGE_MAP), "payload.feature_map.scale"),
            (b"\xff\xff", "payload"),
        ),
        values=FEATURE_SUMS_VALUES,
    )


def _scores(name: str, columns: int, count_weight: float) -> Case:
    declared = ScoresDeclaration(CLASSES, count_weight, 0.7, 2.5, np.linspace(2.0, 0.5, columns, dtype=np.float32))
    correction = np.full((CLASSES, columns), 0.3, dtype=np.float32)
    correction[1:] *= -0.5
    return Case(
        name=name,
        declared=score_statistics(declared),
        outputs=CLASSES + columns - 1,
        request=ScoresRequest(correction),
        batch=RECORDS,
        released=lambda reply: (reply.sum,),
        seed=lambda _: None,
        feature_map=None,
        hostile=(
            *((replace(declared, sigma=sigma), "declaration.sigma") for sigma in (*_NUMBERS, 0.0, 1e-300, 1e-9)),
            (replace(declared, sigma=1e300), "parameters.declaration"),
            *((replace(declared, count_weight=weight), "declaration.count_weight") for weight in _NUMBERS),
            *((replace(declared, square_weight=weight), "declaration.square_weight") for weight in (*_NUMBERS, 0.0)),
            (replace(declared, count_weight=1e300), "declaration.sigma"),  # counts that do not fit in 32 bits
            *((replace(declared, classes=count), "declaration.classes") for count in (0, 4, 2**32 - 1)),
            (replace(declared, scale=declared.scale[1:]), "declaration.scale"),
            *((replace(declared, scale=declared.scale * factor), "declaration.scale") for factor in (0.0, -1.0, 1e7)),
            (replace(declared, correction=correction), "declaration.correction"),
        ),
        hostile_requests=(
            (ScoresRequest(correction[1:]), "payload.correction"),
            (ScoresRequest(np.zeros((CLASSES, columns + 1), np.float32)), "payload.correction"),
            (ScoresRequest(np.full_like(correction, np.nan)), "payload.correction"),
            (b"", "payload.correction"),
            (b"\xff\xff", "payload"),
        ),
        values=SCORES_VALUES,
    )


def _sinkhorn(name: str, **changed: Any) -> Case:
    declared = replace(SinkhornDeclaration(CLASSES, 4, 2, 1.5, 0.7, 0.5, 30, 0.2, 0.4), **changed)
    points = SOURCE[: declared.points + declared.fresh]
    labels = tuple(number % CLASSES for number in range(len(points)))
    return Case(
        name=name,
        declared=sinkhorn(declared),
        outputs=FEATURES,
        request=SinkhornRequest(points, labels),
        batch=8,
        released=lambda reply: (reply.gradient,),
        seed=lambda _: None,
        feature_map=None,
        hostile=(
            *((replace(declared, sigma=sigma), "declaration.sigma") for sigma in (*_NUMBERS, 0.0, 1e-300)),
            *((replace(declared, clip_norm=norm), "declaration.clip_norm") for norm in (*_NUMBERS, 0.0)),
            (replace(declared, clip_norm=1e300), "declaration.sigma"),  # a gradient that does not fit in 32 bits
            *((replace(declared, label_weight=weight), "declaration.label_weight") for weight in (*_NUMBERS, 1e7)),
            *((replace(declared, l1_weight=weight), "declaration.l1_weight") for weight in (*_NUMBERS, 1e7)),
            *((replace(declared, blur=blur), "declaration.blur") for blur in (*_NUMBERS, 0.0, 1e-7, 1e7)),
            *((replace(declared, iterations=count), "declaration.iterations") for count in (0, 2**32 - 1)),
            *((replace(declared, points=count), "declaration.points") for count in (0, 65_536, 2**32 - 1)),
            *((replace(declared, fresh=count), "declaration.fresh") for count in (5, 2**32 - 1)),
            *((replace(declared, classes=count), "declaration.classes") for count in (0, 4, 2**32 - 1)),
        ),
        hostile_requests=(
            (SinkhornRequest(points[:, :4], labels), "payload.points"),
            (SinkhornRequest(points[1:], labels), "payload.points"),
            (SinkhornRequest(np.full_like(points, np.nan), labels), "payload.points"),
            (SinkhornRequest(points, labels[1:]), "payload.labels"),
            (SinkhornRequest(points, (CLASSES, *labels[1:])), "payload.labels"),
            (SinkhornRequest(points, (2**32 - 1, *labels[1:])), "payload.labels"),
            (b"", "payload.points"),
            (b"\xff\xff", "payload"),
        ),
        values=SINKHORN_VALUES,
    )


def _sliced(name: str, declared: Declared, *, coefficients: tuple[int, ...]) -> Case:
    assert isinstance(declared[1], SlicedDeclaration)
    return Case(
        name=name,
        declared=declared,
        outputs=FEATURES,
        request=SlicedRequest(),
        batch=8,
        released=lambda reply: (reply.values,),
        seed=lambda reply: reply.seed,
        feature_map=MAP,
        hostile=_sliced_hostile(declared[1], coefficients=coefficients),
        hostile_requests=_SLICED_REQUESTS,
        values=SLICED_VALUES,
    )


def _gradient(name: str, sliced: Declared) -> Case:
    declared = gradient(sliced, _SUM, source_features=len(SOURCE))
    whole = declared[1]
    assert isinstance(whole, GradientDeclaration)
    return Case(
        name=name,
        declared=declared,
        outputs=FEATURES,
        request=GradientRequest(SOURCE),
        batch=8,
        released=lambda reply: (reply.sliced.values, reply.gradient),
        seed=lambda reply: reply.sliced.seed,
        feature_map=MAP,
        hostile=(
            *_sum_hostile(whole),
            *(
                (replace(whole, release=release), "declaration.release")
                for release in ("", "gradient", "labelled_gradient")
            ),
            *((replace(whole, source_features=m), "declaration.source_features") for m in (0, 2**32 - 1)),
            (replace(whole, sliced=replace(whole.sliced, sigma=-1.0)), "declaration.sigma"),
            (replace(whole, sliced=replace(whole.sliced, directions=0)), "declaration.directions"),
        ),
        hostile_requests=_GRADIENT_REQUESTS,
        values=GRADIENT_VALUES,
    )


CASES = (
    _sliced("rows", rows(_ROWS.sigma, directions=7, feature_map=MAP), coefficients=(1, 2**32 - 1)),
    _sliced("quantiles", quantiles(3, 0.9, directions=7, feature_map=MAP), coefficients=(0, 9, 2**32 - 1)),
    _sliced(
        "labelled rows",
        labelled(rows(1.5, directions=7, feature_map=MAP), weight=0.3),
        coefficients=(1, 2**32 - 1),
    ),
    _sliced(
        "labelled quantiles",
        labelled(quantiles(3, 0.9, directions=7, feature_map=MAP), weight=0.3),
        coefficients=(0, 9, 2**32 - 1),
    ),
    _gradient("gradient of rows", ("rows", _ROWS)),
    _gradient("gradient of quantiles", ("quantiles", _QUANTILES)),
    Case(
        name="labelled gradient",
        declared=labelled_gradient(_SUM, classes=CLASSES),
        outputs=CLASSES,
        request=LossGradientRequest(),
        batch=8,
        released=lambda reply: (reply.gradient,),
        seed=lambda _: None,
        feature_map=None,
        hostile=(
            *_sum_hostile(LabelledGradientDeclaration(CLASSES, _SUM)),
            *(
                (LabelledGradientDeclaration(count, _SUM), "declaration.classes")
                for count in (0, CLASSES + 1, 2**32 - 1)
            ),
        ),
        hostile_requests=(
            *(
                (LossGradientRequest(np.full(CLASSES * INPUTS, value, np.float32)), "payload.adapted_parameters")
                for value in (np.nan, -np.inf)
            ),
            (LossGradientRequest(np.zeros(CLASSES * INPUTS + 1, np.float32)), "payload.adapted_parameters"),
            (b"\xff\xff", "payload"),
        ),
        values=LABELLED_GRADIENT_VALUES,
    ),
    Case(
        name="evaluation",
        declared=evaluation(_EVALUATED),
        outputs=CLASSES,
        request=EvaluationRequest(),
        batch=RECORDS,
        released=lambda reply: (reply.correct, reply.confusion, reply.calibration),
        seed=lambda _: None,
        feature_map=None,
        hostile=(
            *(
                (replace(_EVALUATED, **{name: sigma}), f"declaration.{name}")
                for name in ("correct_sigma", "confusion_sigma", "calibration_sigma")
                for sigma in (*_NUMBERS, 1e-12)
            ),
            (replace(_EVALUATED, correct_sigma=0.0), "declaration.correct_sigma"),
            (replace(_EVALUATED, correct_sigma=1e300), "parameters.declaration"),
            *((replace(_EVALUATED, classes=count), "declaration.classes") for count in (0, 4, 2**32 - 1)),
            *((replace(_EVALUATED, bins=count), "declaration.bins") for count in (0, 2**32 - 1)),
        ),
        hostile_requests=((b"x", "payload"), (b"\x00" * 1000, "payload")),
        values=EVALUATION_VALUES,
    ),
    _sinkhorn("sinkhorn"),
    _sinkhorn("sinkhorn, without fresh points, clipped point by point", fresh=0, l1_weight=0.0, clip_points=True),
    _statistics("class sums", 1.0, 0.0),
    _statistics("class sums and moments", 0.5**0.5, 0.5**0.5),
    _statistics("differences of classes", 0.3, 0.0, 1.0),
    _statistics("moments above all", 0.3, 3.0, 0.5),
    _feature_sums("feature sums", SumsRequest(), MAP),
    _feature_sums(
        "feature sums of a step's own",
        SumsRequest(np.linspace(-2.0, 2.0, FEATURES * INPUTS, dtype=np.float32), OWN_MAP),
        OWN_MAP,
        parameters=("weight",),
    ),
    _scores("score statistics", 4, 1.0),
    _scores("scores alone, without counts", 1, 0.0),
)
