"""What a run will be and what it will cost, before anything is spent.

A plan is a frozen value: a method's recipe, a size, an epsilon. Its noise follows from the asked epsilon: one common
factor of all the recipe's noises is solved for, so that the whole run costs the asked epsilon and not more (tight
accountant, `dpswd.shared.accounting.calibration`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.values import UploadedExtractor
from dpswd.public_client.plans.recipe import Recipe, RunTerms, not_counts, not_positive, refuse
from dpswd.shared.accounting.bounds import Bound
from dpswd.shared.accounting.calibration import calibrate_sigma
from dpswd.shared.accounting.calibration import epsilon as epsilon_of
from dpswd.shared.core.errors import InvalidValue, rounded
from dpswd.shared.core.mechanisms.declared import Declared
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts, RunSize
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.core.privacy.events import RunEvent
from dpswd.shared.core.wire.messages import RunParameters

_PRICED = ("adapted",)  # names and digests do not enter the price


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run against one curator.

    Attributes:
        method: what it asks, with the team's settings.
        epsilon: what the whole run costs at `delta`.
        delta: the data set's delta.
        records: n of the data set.
        record_shape: of one record.
        classes: of the records' labels; 0 where there are none.
        steps: T.
        batch_size: b, records in each secret sample.
        feature_dimension: d, once the model is known.
        gradient_parameters: p, once the model is known; 0 where nothing is adapted.
        noise: factor of the recipe's noises, once d and p are known.
        remaining: epsilon that was left when the plan was made, by the ledger's count.
        budget: epsilon of the whole budget.
        admitted: the curator's own answer to whether the run fits, once it was asked for the model at hand.
        steps_that_fit: how many such steps it would admit, once it was asked.
        published: the hospital charged it already and gave the release away as a file; a training spends nothing.
    """

    method: Recipe
    epsilon: float
    delta: float
    records: int
    record_shape: tuple[int, ...]
    classes: int = 0
    steps: int
    batch_size: int
    feature_dimension: int | None = None
    gradient_parameters: int | None = None
    noise: float | None = None
    partly_labelled: bool = False
    labelled: int = 0
    # Where the budget stands is the ledger's, no wish: plans that differ in nothing else are the same plan.
    remaining: float = field(default=math.inf, compare=False)
    budget: float = field(default=math.inf, compare=False)
    admitted: bool | None = field(default=None, compare=False)
    steps_that_fit: int | None = field(default=None, compare=False)
    published: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        problems = not_positive(self, "epsilon") + not_counts(self, "steps", "batch_size")
        if not problems and self.batch_size > self.records:
            problems = [f"batch_size is {self.batch_size}; allowed are 1 to the data set's {self.records} records"]
        refuse(problems)

    @property
    def size(self) -> RunSize:
        """Batch and steps."""
        return RunSize(self.batch_size, self.steps)

    @property
    def fits(self) -> bool | None:
        """Whether the run is admitted: the curator's answer if it was asked; else True, False, or None for unknown.

        More than what is left may still fit: runs together cost less than the sum of their epsilons.
        """
        if self.admitted is not None:
            return self.admitted
        if self.remaining <= 0.0 or self.epsilon > self.budget * (1 + 1e-9):
            return False
        return True if self.epsilon <= self.remaining * (1 + 1e-9) else None

    def for_model(self, *, feature_dimension: int, gradient_parameters: int) -> Plan:
        """The plan with its noise, now that the model is known. This is where every plan is calibrated.

        Args:
            feature_dimension: d.
            gradient_parameters: p, the number of adapted scalars; 0 for none.

        Returns:
            A plan with `noise`; this one where the model was known.

        Raises:
            InvalidValue: no noise of a sensible size reaches the asked epsilon, or the model does not serve the method.
        """
        if (self.feature_dimension, self.gradient_parameters) == (feature_dimension, gradient_parameters):
            return self
        sized = replace(self, feature_dimension=feature_dimension, gradient_parameters=gradient_parameters)
        return replace(sized, noise=_noise(sized))

    def with_noise_times(self, factor: float) -> Plan:
        """The same plan with all noises multiplied by a factor of at least 1.

        Raises:
            InvalidValue: the noise is not known yet, or the factor would lower it.
        """
        if self.noise is None or not (math.isfinite(factor) and factor >= 1.0):
            raise InvalidValue(
                f"noise can be multiplied by a finite factor of at least 1, once it is known; got {factor}"
            )
        return replace(self, noise=self.noise * factor)

    @property
    def facts(self) -> Facts:
        """What the price depends on, of data set and model.

        Raises:
            InvalidValue: the model is not known yet; see `for_model`.
        """
        if self.feature_dimension is None or self.gradient_parameters is None:
            raise InvalidValue("the plan's noise depends on the model; call for_model first")
        adapted = {_PRICED[0]: (self.gradient_parameters,)} if self.gradient_parameters else {}
        return Facts(
            DataSetFacts(**{own.name: getattr(self, own.name) for own in fields(DataSetFacts)}),
            ModelFacts(self.record_shape, self.feature_dimension, adapted),
        )

    def declared(self, *, names: tuple[str, ...] = _PRICED, feature_map: FeatureMap | None = None) -> Any:
        """What the run declares of its mechanism.

        Args:
            names: of the adapted parameters, in the order of the flat gradient; a stand-in of the right size by
                default, where only the price or the noise is asked for.
            feature_map: the public map of every step that brings none.

        Returns:
            The mechanism's own declaration (`dpswd.shared.core.mechanisms`).

        Raises:
            InvalidValue: the model is not known yet; see `for_model`.
        """
        facts = self.facts
        if self.noise is None:
            raise InvalidValue("the plan's noise depends on the model; call for_model first")
        return self.method.declaration(
            RunTerms(
                noise=self.noise,
                batch=self.batch_size,
                dimension=facts.model.feature_dimension,
                classes=facts.data.classes,
                number_private=self.number_private,
                labelled=self.with_label,
                names=names if self.gradient_parameters else (),
                feature_map=feature_map,
            )
        )

    def event(self) -> RunEvent:
        """The event that prices the run.

        Raises:
            InvalidValue: the model is not known yet; see `for_model`.
        """
        return Declared(self.method.mechanism, self.declared(), self.size, self.facts).event

    @property
    def number_private(self) -> bool:
        """Whether the number of labelled records is private."""
        return self.partly_labelled and not self.labelled

    @property
    def with_label(self) -> int:
        """How many records have a label; n where that is private, which is as many as there can be."""
        return self.labelled or self.records

    def price(self) -> float:
        """Epsilon of the run alone by the tight accountant."""
        return epsilon_of(self.event(), self.delta, Bound.AUTO)

    @property
    def charged(self) -> str:
        """What the run costs, for whoever waits: all of it is charged when it opens, not step by step."""
        return f"epsilon {rounded(self.epsilon, up=True)} alone, charged for all {self.steps}"

    def epsilon_after(self, steps: int) -> float:
        """Epsilon that `steps` steps alone would have cost; information for progress bars.

        The whole run is charged when it opens: the guarantee is the full price from then on.

        Args:
            steps: drawn so far; more than the plan's count as all.
        """
        if steps <= 0:
            return 0.0
        return epsilon_of(RunEvent(self.event().step, min(steps, self.steps)), self.delta, Bound.AUTO)

    def parameters(
        self, uploaded: UploadedExtractor, names: tuple[str, ...] = (), feature_map: FeatureMap | None = None
    ) -> RunParameters:
        """What OpenRun is asked.

        Args:
            uploaded: the model.
            names: of the adapted parameters, in the order of the flat gradient; empty for none.
            feature_map: the public map of every step that brings none.

        Returns:
            The declaration of the run.
        """
        return RunParameters(
            graph_digest=uploaded.graph_digest,
            weights_digest=uploaded.weights_digest,
            mechanism=self.method.mechanism.name,
            declaration=self.declared(names=names, feature_map=feature_map).to_bytes(),
            batch_size=self.batch_size,
            steps=self.steps,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        return asdict(self) | {"method": self.method.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, method: type[Recipe]) -> Plan:
        """The inverse of `to_json`.

        Args:
            values: as `to_json` gave them.
            method: the type of the plan's method.

        Returns:
            The same plan.

        Raises:
            InvalidValue: another method's plan, or a field is unknown, missing or out of range.
        """
        required = {own.name: own.default is MISSING for own in fields(cls)}
        if unknown := sorted(set(values) - set(required)):
            raise InvalidValue(f"a plan has no field {', '.join(unknown)}")
        if missing := [name for name, needed in required.items() if needed and name not in values]:
            raise InvalidValue(f"a plan needs the fields {', '.join(missing)}")
        recipe, shape = method.from_json(values["method"]), tuple(values["record_shape"])
        return cls(**{**values, "method": recipe, "record_shape": shape})

    def __str__(self) -> str:
        """A few lines for a terminal; costs are rounded up, what is left down."""
        return "\n".join(_lines(self))


@functools.lru_cache(maxsize=256)
def _noise(plan: Plan) -> float:
    """What a plan whose model is known needs; a training asks for it when it quotes, opens and resumes a run."""
    return calibrate_sigma(lambda factor: replace(plan, noise=factor).event(), epsilon=plan.epsilon, delta=plan.delta)


def make_plan(
    description: Description, method: Recipe, *, epsilon: float, steps: int | None = None, batch_size: int | None = None
) -> Plan:
    """Plans a run on a described data set.

    Args:
        description: from `Curator.describe`.
        method: a method with its settings.
        epsilon: what the run may cost.
        steps: T; the method's usual number by default.
        batch_size: b; by default the method's usual number, or the next that is allowed.

    Raises:
        InvalidValue: the curator does not offer it, or a number is out of range.
    """
    method.check_offered(description)
    usual = method.usual_size(description)
    least = most = description.records
    if not method.mechanism.whole:
        most = min(most, description.limits.max_batch_size)
        least = min(most, description.limits.min_batch_size)
    return Plan(
        method=method,
        epsilon=epsilon,
        delta=description.data_set_budget.delta,
        **vars(description.facts),
        steps=usual.steps if steps is None else steps,
        batch_size=max(least, min(usual.batch, most)) if batch_size is None else batch_size,
        remaining=description.remaining,
        budget=min(description.data_set_budget.epsilon, description.client_budget.epsilon),
    )


def _lines(plan: Plan) -> list[str]:
    """What the run releases, what it adapts, its noise, its cost, and whether it fits."""
    sample = f"each on {plan.batch_size} of {plan.records} records, drawn in secret"
    if plan.batch_size == plan.records:
        sample = f"on all {plan.records} records"
    rows = []
    if plan.noise is not None:
        rows.append(("releases", plan.method.mechanism.summary(plan.declared(), plan.facts)))
        noises = dict.fromkeys(f"{part.sigma:.4g}" for part in plan.event().step.parts)
        rows.append(("noise", f"{' and '.join(noises)} (standard deviation, in the order of what is released)"))
    if adapted := plan.method.adapts(plan.record_shape):
        rows.append(("adapts", adapted))
    cost = f"epsilon {rounded(plan.epsilon, up=True)} alone, at delta {plan.delta:g}"
    when = (
        "charged by the hospital when it published; nothing further"
        if plan.published
        else "charged as a whole when the run opens"
    )
    rows.append(("costs", f"{cost}, {when}"))
    rows += plan.method.notes(plan)
    if sampled := _sampled(plan):
        rows.append(("sample", sampled))
    if math.isfinite(plan.remaining):
        rows.append(_room(plan))
    head = f"{plan.method.name}: {plan.steps} {'step' if plan.steps == 1 else 'steps'}, {sample}"
    return [head, *(f"  {label:<9} {text}" for label, text in rows)]


def _sampled(plan: Plan) -> str:
    """What it costs that one release reads a part of the records; "" where it reads all, or where many steps do."""
    if plan.steps > 1 or plan.batch_size == plan.records:
        return ""
    # The variance of a mean of b of n records, drawn without replacement.
    chance = math.sqrt((1.0 - plan.batch_size / plan.records) / plan.batch_size)
    return (
        f"chance moves a mean over {plan.batch_size:,} of {plan.records:,} records by {100.0 * chance:.2g} % of a "
        "record's own spread, besides the noise: where that was measured against a sum over every record, it cost less "
        "than 0.1 points of accuracy where a shift of all records was sought; a law's shape was told 2 to 32 times "
        "less exactly (docs/scale.md)"
    )


def _room(plan: Plan) -> tuple[str, str]:
    """Whether the run fits."""
    left = rounded(plan.remaining, up=False)
    if plan.fits is None:
        text = f"only epsilon {left} is left by the ledger's count, but runs together cost less than their sum"
        return "room", f"{text}: plan with the extractor to ask the curator (free)"
    if not plan.fits:
        steps = f"; a run of {plan.steps_that_fit} such steps would" if plan.steps_that_fit else ""
        return "room", f"does NOT fit: only epsilon {left} is left{steps}"
    if plan.admitted:
        return "fits", f"the curator would admit it now (asked; epsilon {left} is left, nothing was spent)"
    after = rounded(plan.remaining - plan.epsilon, up=False)
    return "leaves", f"about epsilon {after} of the {left} that is left now"
