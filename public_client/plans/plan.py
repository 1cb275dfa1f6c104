"""What a run will be and what it will cost, before anything is spent.

A plan is a frozen value. Its noise follows from the asked epsilon: the price of a step is split between the release and
the sanitized gradient, and one common factor of both noises is solved for, so that the whole run costs the asked
epsilon and not more (tight accountant, `shared.privacy.calibration`).

The default recipe is one full-batch release of sliced quantile coefficients that is replayed (`replay`). Asked for
steps or a batch size, a plan trains a target-side adapter by sanitized gradients; ``release="rows",
parameters="all"`` is the DP-SWD paper's Algorithm 2. docs/ml-team.md says how the numbers were found.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from public_client.curator.description import Description
from public_client.plans.measured import measured_alike
from shared.errors import InvalidValue
from shared.privacy.bounds import Bound
from shared.privacy.calibration import calibrate_sigma
from shared.privacy.calibration import epsilon as epsilon_of
from shared.privacy.events import RunEvent
from shared.protocol.messages import Gradient, PublicMap, Quantiles, Rows, RunParameters
from shared.protocol.pricing import run_event

Release = Literal["quantiles", "rows"]
Parameters = Literal["adapters", "all", "none"]
Adapter = Literal["auto", "warp", "channels", "features", "low-rank", "monotone"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run against one curator.

    Attributes:
        epsilon: what the whole run costs at `delta`.
        delta: the data set's delta.
        records: n of the data set.
        remaining: epsilon that was left when the plan was made, by the ledger's count.
        budget: epsilon of the whole budget, or None where it is not known.
        steps: T.
        batch_size: b, records in each secret sample.
        directions: k.
        release: "quantiles" or "rows".
        coefficients: L of each direction; without meaning for rows.
        parameters: what receives the sanitized gradient: "adapters", "all", or "none" (no gradient is released).
        adapter: kind of the target-side adapter (`shared.extractor.adapting`); "auto" by the shape of the records.
        adapter_rank: of a "low-rank" adapter.
        adapter_knots: of each column of a "monotone" adapter.
        gradient_share: part of a step's price that pays for the gradient.
        clip_norm: C, the largest norm of one record's gradient.
        target_norm: the public map gives source features this root-mean-square norm; records are clipped at 1/2.
        source_records: public records whose features are compared with the private ones.
        learning_rate: of the alignment, at its start.
        averaging: decay of the running average of the adapted weights that is kept at the end; 0 keeps the last.
        alignment_weight: of the distance beside the class loss, where all parameters train.
        tuning_steps: updates on public records after a replayed fit; they cost time, no budget.
        feature_dimension: d, once the extractor is known.
        gradient_parameters: p, once the extractor is known.
        sigma: noise of the release, once d and p are known.
        gradient_sigma: noise of the gradient's sum, once d and p are known.
        admitted: the curator's own answer to whether the run fits, once it was asked for the extractor at hand.
        steps_that_fit: how many such steps it would admit, once it was asked.
        record_shape: of one record, or None where it is not known.
    """

    epsilon: float
    delta: float
    records: int
    remaining: float = field(compare=False)
    steps: int
    batch_size: int
    directions: int
    release: Release = "quantiles"
    coefficients: int = 2
    parameters: Parameters = "adapters"
    adapter: Adapter = "auto"
    adapter_rank: int = 4
    adapter_knots: int = 5
    gradient_share: float = 0.5
    clip_norm: float = 0.5
    target_norm: float = 0.4
    source_records: int = 4096
    learning_rate: float = 0.03
    averaging: float = 0.0
    alignment_weight: float = 1.0
    tuning_steps: int = 1000
    feature_dimension: int | None = None
    gradient_parameters: int | None = None
    sigma: float | None = None
    gradient_sigma: float | None = None
    # Where the budget stands is the ledger's, no wish: plans that differ in nothing else are the same plan.
    budget: float | None = field(default=None, compare=False)
    admitted: bool | None = field(default=None, compare=False)
    steps_that_fit: int | None = field(default=None, compare=False)
    record_shape: tuple[int, ...] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise InvalidValue("; ".join(problems))

    @property
    def fits(self) -> bool | None:
        """Whether the run is admitted: the curator's answer if it was asked; else True, False, or None for unknown.

        More than what is left may still fit: runs together cost less than the sum of their epsilons.
        """
        if self.admitted is not None:
            return self.admitted
        if self.remaining <= 0.0 or (self.budget is not None and self.epsilon > self.budget * (1 + 1e-9)):
            return False
        return True if self.epsilon <= self.remaining * (1 + 1e-9) else None

    def for_extractor(self, *, feature_dimension: int, gradient_parameters: int) -> Plan:
        """The plan with its noise, now that d and p are known.

        Args:
            feature_dimension: d.
            gradient_parameters: p, the number of adapted scalars; 0 for ``parameters="none"``.

        Raises:
            InvalidValue: no noise of a sensible size reaches the asked epsilon.
        """
        if self.parameters == "none":
            gradient_parameters = 0
        if (self.feature_dimension, self.gradient_parameters) == (feature_dimension, gradient_parameters):
            return self
        share = self.gradient_share if gradient_parameters else 0.0
        # With both parts at common factor 1 the step's mean squared shift is 1, split by `share`.
        # kappa / b, docs/privacy 6
        weight = (2 * self.coefficients - 1) / self.batch_size if self.release == "quantiles" else 1.0
        sigma = math.sqrt(weight * self.directions / feature_dimension / (1.0 - share))
        gradient_sigma = 2.0 * self.clip_norm / math.sqrt(share) if share else None
        fixed = replace(self, feature_dimension=feature_dimension, gradient_parameters=gradient_parameters)

        def noisy(factor: float) -> Plan:
            scaled = None if gradient_sigma is None else gradient_sigma * factor
            return replace(fixed, sigma=sigma * factor, gradient_sigma=scaled)

        return noisy(calibrate_sigma(lambda c: noisy(c).event(), epsilon=self.epsilon, delta=self.delta))

    def with_noise_times(self, factor: float) -> Plan:
        """The same plan with both noises multiplied by a factor above 1.

        Raises:
            InvalidValue: the noise is not known yet, or the factor would lower it.
        """
        if self.sigma is None or not (math.isfinite(factor) and factor >= 1.0):
            raise InvalidValue(
                f"noise can be multiplied by a finite factor of at least 1, once it is known; got {factor}"
            )
        scaled = None if self.gradient_sigma is None else self.gradient_sigma * factor
        return replace(self, sigma=self.sigma * factor, gradient_sigma=scaled)

    def event(self) -> RunEvent:
        """The event that prices the run.

        Raises:
            InvalidValue: the extractor is not known yet; see `for_extractor`.
        """
        if self.feature_dimension is None:
            raise InvalidValue("the plan's noise depends on the extractor; call for_extractor first")
        # Digests, names and the map do not enter the price.
        names = ("adapted",) if self.gradient_parameters else ()
        return run_event(
            self.declaration(graph_digest="", weights_digest="", names=names, feature_map=None),
            records=self.records,
            feature_dimension=self.feature_dimension,
            gradient_parameters=self.gradient_parameters or 0,
        )

    def price(self) -> float:
        """Epsilon of the run by the tight accountant."""
        return epsilon_of(self.event(), self.delta, Bound.AUTO)

    def epsilon_after(self, steps: int) -> float:
        """Epsilon that `steps` steps alone would have cost; information for progress bars.

        The whole run is charged when it opens: the guarantee is the full price from then on.
        """
        if steps <= 0:
            return 0.0
        event = self.event()
        return epsilon_of(RunEvent(event.step, min(steps, self.steps)), self.delta, Bound.AUTO)

    def declaration(
        self, *, graph_digest: str, weights_digest: str, names: tuple[str, ...], feature_map: PublicMap | None
    ) -> RunParameters:
        """What OpenRun is asked.

        Args:
            graph_digest: of the uploaded extractor.
            weights_digest: of the uploaded weights.
            names: of the adapted parameters, in the order of the flat gradient; empty for none.
            feature_map: the public map of every step that brings none.
        """
        if self.sigma is None:
            raise InvalidValue("the plan's noise depends on the extractor; call for_extractor first")
        gradient = None
        if names and self.gradient_sigma is not None:
            gradient = Gradient(names, self.clip_norm, self.gradient_sigma)
        return RunParameters(
            graph_digest=graph_digest,
            weights_digest=weights_digest,
            directions=self.directions,
            batch_size=self.batch_size,
            steps=self.steps,
            release=Rows(self.sigma) if self.release == "rows" else Quantiles(self.coefficients, self.sigma),
            gradient=gradient,
            feature_map=feature_map,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Plan:
        """The inverse of `to_json`.

        Raises:
            InvalidValue: a field is unknown or out of range.
        """
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise InvalidValue(f"a plan has no field {', '.join(sorted(unknown))}")
        shape = values.get("record_shape")
        return cls(**{**values, "record_shape": None if shape is None else tuple(shape)})

    def __str__(self) -> str:
        """A few lines for a terminal; costs are rounded up, what is left down."""
        from public_client.plans.text import plan_text

        return plan_text(self)


def make_plan(
    description: Description,
    *,
    epsilon: float,
    steps: int | None = None,
    batch_size: int | None = None,
    directions: int = 200,
    release: Release = "quantiles",
    parameters: Parameters | None = None,
    feature_dimension: int | None = None,
    gradient_parameters: int | None = None,
    **recipe: Any,
) -> Plan:
    """Plans a run on a described data set; see `Plan` for the meaning of the fields.

    Args:
        description: from `Curator.describe`.
        epsilon: what the run may cost.
        steps: T; by the recipe of the release by default.
        batch_size: b; by the recipe of the release by default, at most the data set.
        directions: k.
        release: "quantiles" (default) or "rows".
        parameters: by default "all" for rows; for quantiles "none" (one full-batch release, replayed), or "adapters"
            where `steps` or `batch_size` asks for an iteration.
        feature_dimension: d, if known already: the plan then shows its noise.
        gradient_parameters: p, if known already.
        **recipe: any other field of `Plan`.

    Raises:
        InvalidValue: a wish is unknown or out of range.
    """
    known = {field.name for field in fields(Plan)}
    unknown = set(recipe) - known
    if unknown:
        raise InvalidValue(f"a plan has no {', '.join(sorted(unknown))}; its fields are {', '.join(sorted(known))}")
    if release not in get_args(Release):
        raise InvalidValue(f"release is {release!r}; allowed: {', '.join(get_args(Release))}")
    if parameters is None:
        iterated = steps is not None or batch_size is not None
        parameters = "all" if release == "rows" else "adapters" if iterated else "none"
    chosen = _RECIPES[parameters if parameters in _RECIPES else "adapters"] | recipe
    most = min(description.records, description.limits.max_batch_size)
    size = batch_size if batch_size is not None else min(int(chosen["batch_size"]), most)
    count = steps if steps is not None else int(chosen["steps"])
    for name in ("steps", "batch_size"):
        chosen.pop(name, None)
    plan = Plan(
        epsilon=epsilon,
        delta=description.data_set_budget.delta,
        records=description.records,
        remaining=description.remaining,
        budget=min(description.data_set_budget.epsilon, description.client_budget.epsilon),
        record_shape=description.record_shape,
        steps=count,
        batch_size=size,
        directions=directions,
        release=release,
        parameters=parameters,
        **chosen,
    )
    if feature_dimension is None or gradient_parameters is None:
        return plan
    return plan.for_extractor(feature_dimension=feature_dimension, gradient_parameters=gradient_parameters)


_RECIPES: dict[str, dict[str, Any]] = {
    "adapters": {"steps": 60, "batch_size": 512},
    # One release of the full batch pays for the fewest numbers; everything after it is post-processing.
    "none": {"steps": 1, "batch_size": 1 << 62, "coefficients": 3, "learning_rate": 0.03, "tuning_steps": 1500},
    # The paper's loop: every step trains the classes as well, so it needs thousands of them.
    "all": {
        "steps": 2000,
        "batch_size": 128,
        "clip_norm": 1.0,
        "learning_rate": 1e-3,
        "target_norm": 0.25,
        "source_records": 128,
        "averaging": 0.0,
    },
}


def _problems(plan: Plan) -> list[str]:
    found = []
    if plan.release not in get_args(Release):
        found.append(f"release is {plan.release!r}; allowed: {', '.join(get_args(Release))}")
    if plan.parameters not in get_args(Parameters):
        found.append(f"parameters is {plan.parameters!r}; allowed: {', '.join(get_args(Parameters))}")
    if plan.adapter not in get_args(Adapter):
        found.append(f"adapter is {plan.adapter!r}; allowed: {', '.join(get_args(Adapter))}")
    if plan.adapter_knots < 2:
        found.append(f"adapter_knots is {plan.adapter_knots}; it must be at least 2")
    for name in ("epsilon", "clip_norm", "target_norm", "learning_rate"):
        value = getattr(plan, name)
        if not (math.isfinite(value) and value > 0):
            found.append(f"{name} is {value}; it must be positive and finite")
    counts = ("steps", "directions", "coefficients", "source_records", "tuning_steps", "adapter_rank")
    found += [f"{name} is {getattr(plan, name)}; it must be at least 1" for name in counts if getattr(plan, name) < 1]
    if not 1 <= plan.batch_size <= plan.records:
        found.append(f"batch_size is {plan.batch_size}; allowed are 1 to the data set's {plan.records} records")
    if not 0.0 < plan.gradient_share < 1.0:
        found.append(f"gradient_share is {plan.gradient_share}; it must be between 0 and 1")
    if not 0.0 <= plan.averaging < 1.0:
        found.append(f"averaging is {plan.averaging}; it must be at least 0 and below 1")
    return found


def plan_json(plan: Plan) -> str:
    """The plan as one JSON document for ``--format json``."""
    alike = measured_alike(plan)
    known = {"fits": plan.fits, "measured_alike": None if alike is None else asdict(alike)}
    return json.dumps(plan.to_json() | known, indent=1, sort_keys=True)
