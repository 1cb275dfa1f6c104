"""A critic's run before anything is spent: its noise follows from the asked epsilon by the tight accountant."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

from public_client.curator.description import Description
from shared.errors import InvalidValue
from shared.privacy.bounds import Bound
from shared.privacy.calibration import calibrate_sigma
from shared.privacy.calibration import epsilon as epsilon_of
from shared.privacy.events import RunEvent
from shared.protocol.messages import Critic, Gradient, PublicMap, RunParameters
from shared.protocol.pricing import run_event


@dataclass(frozen=True, kw_only=True)
class CriticPlan:
    """One run of sanitized critic gradients against one curator (docs/privacy/critic-gradients.md).

    Attributes:
        epsilon: what the whole run costs at `delta`.
        delta: the data set's delta.
        records: n of the data set.
        remaining: epsilon that was left when the plan was made.
        steps: T.
        batch_size: b, records in each secret sample.
        learning_rate: of the adapter, at its start.
        critic_rate: of the critic, at its start.
        reversal: weight of the reversed gradient at the end; it grows as 2 / (1 + exp(-10 p)) - 1.
        smoothness: weight of the penalty on a steep critic.
        components: directions of largest source variance that the critic sees.
        hidden: units of the critic's hidden layer.
        source_records: public records on the critic's source side.
        averaging: decay of the running average of the adapter that is kept.
        clip_norm: C; by default a quantile of the norms that public records would have.
        gradient_parameters: p, once the model is known.
        sigma: noise on the gradients' sum, once p and C are known.
    """

    METHOD: ClassVar[str] = "dp-dann"

    epsilon: float
    delta: float
    records: int
    remaining: float = field(compare=False)
    steps: int = 200
    batch_size: int = 512
    learning_rate: float = 0.005
    critic_rate: float = 0.02
    reversal: float = 1.0
    smoothness: float = 1.0
    components: int = 8
    hidden: int = 8
    source_records: int = 2048
    averaging: float = 0.95
    clip_norm: float | None = None
    gradient_parameters: int | None = None
    sigma: float | None = None

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise InvalidValue("; ".join(problems))

    @property
    def release(self) -> str:
        """What each step releases."""
        return "critic"

    @property
    def parameters(self) -> str:
        """What receives the sanitized gradient: the critic, and the adapter that it looks through."""
        return "critic"

    @classmethod
    def of(cls, description: Description, *, epsilon: float, **wishes: Any) -> CriticPlan:
        """A plan for a described data set.

        Args:
            description: from `Curator.describe`.
            epsilon: what the run may cost.
            **wishes: any other field.

        Raises:
            InvalidValue: the curator offers no critics, or a wish is unknown or out of range.
        """
        if "critic" not in description.mechanisms:
            raise InvalidValue(
                f"{description.data_set} offers no critics; it offers {', '.join(description.mechanisms)}"
            )
        _check_known(set(wishes))
        most = min(description.records, description.limits.max_batch_size)
        wishes.setdefault("batch_size", min(512, most))
        return cls(
            epsilon=epsilon,
            delta=description.data_set_budget.delta,
            records=description.records,
            remaining=description.remaining,
            **wishes,
        )

    def for_extractor(self, *, feature_dimension: int, gradient_parameters: int) -> CriticPlan:
        """The plan with its noise; without a clip of its own it is that of C = 1, since the price is any clip's.

        Args:
            feature_dimension: of what is uploaded, 1: the logit.
            gradient_parameters: p, the adapter's and the critic's scalars.

        Raises:
            InvalidValue: no noise of a sensible size reaches the asked epsilon, or what is uploaded is no critic.
        """
        if feature_dimension != 1:
            raise InvalidValue(f"a critic computes one logit for each record, not {feature_dimension} numbers")
        if self.sigma is not None and self.gradient_parameters == gradient_parameters:
            return self
        clip_norm = 1.0 if self.clip_norm is None else self.clip_norm
        fixed = replace(self, gradient_parameters=gradient_parameters, clip_norm=clip_norm, sigma=2.0 * clip_norm)

        def noisy(factor: float) -> CriticPlan:
            return replace(fixed, sigma=2.0 * clip_norm * factor)

        return noisy(calibrate_sigma(lambda c: noisy(c).event(), epsilon=self.epsilon, delta=self.delta))

    def with_noise_times(self, factor: float) -> CriticPlan:
        """The same plan with its noise multiplied by a factor above 1.

        Raises:
            InvalidValue: the noise is not known yet, or the factor would lower it.
        """
        if self.sigma is None or not (math.isfinite(factor) and factor >= 1.0):
            raise InvalidValue(
                f"noise can be multiplied by a finite factor of at least 1, once it is known; got {factor}"
            )
        return replace(self, sigma=self.sigma * factor)

    def declaration(
        self,
        *,
        graph_digest: str,
        weights_digest: str,
        names: tuple[str, ...],
        feature_map: PublicMap | None = None,
    ) -> RunParameters:
        """What OpenRun is asked.

        Args:
            graph_digest: of the uploaded extractor and critic, one graph.
            weights_digest: of their weights.
            names: of the declared parameters, in the order of the flat gradient.
            feature_map: None; a critic sees features as they are.

        Raises:
            InvalidValue: the model is not known yet; see `for_extractor`.
        """
        if self.sigma is None or self.clip_norm is None:
            raise InvalidValue("the plan's noise depends on the model; call for_extractor first")
        return RunParameters(
            graph_digest=graph_digest,
            weights_digest=weights_digest,
            directions=0,
            batch_size=self.batch_size,
            steps=self.steps,
            release=Critic(),
            gradient=Gradient(names, self.clip_norm, self.sigma),
            feature_map=feature_map,
        )

    def event(self) -> RunEvent:
        """The event that prices the run."""
        return run_event(
            self.declaration(graph_digest="", weights_digest="", names=("critic",)),
            records=self.records,
            feature_dimension=1,
            gradient_parameters=self.gradient_parameters or 1,
        )

    def price(self) -> float:
        """Epsilon of the run by the tight accountant."""
        return epsilon_of(self.event(), self.delta, Bound.AUTO)

    def epsilon_after(self, steps: int) -> float:
        """Epsilon that `steps` steps alone would have cost; the whole run is charged when it opens."""
        if steps <= 0:
            return 0.0
        return epsilon_of(RunEvent(self.event().step, min(steps, self.steps)), self.delta, Bound.AUTO)

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        return {"method": self.METHOD, **asdict(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> CriticPlan:
        """The inverse of `to_json`.

        Raises:
            InvalidValue: a field is unknown or out of range.
        """
        own = {name: value for name, value in values.items() if name != "method"}
        _check_known(set(own))
        return cls(**own)

    def __str__(self) -> str:
        """A few lines for a terminal; costs are rounded up."""
        sample = f"{self.batch_size} of {self.records} records, drawn in secret"
        lines = [f"{self.steps} steps of a domain critic, each on {sample}"]
        if self.sigma is not None and self.clip_norm is not None:
            lines.append(
                f"  noise     {self.sigma:.4g} on the sum of {self.gradient_parameters} numbers, clipped to "
                f"{self.clip_norm:.3g} record by record"
            )
        cost = math.ceil(self.epsilon * 1e4) / 1e4
        lines.append(f"  costs     epsilon {cost:.4f} at delta {self.delta:g}, charged as a whole when training starts")
        return "\n".join(lines)


def _check_known(names: set[str]) -> None:
    known = {own.name for own in fields(CriticPlan)}
    if unknown := sorted(names - known):
        raise InvalidValue(f"a critic's plan has no {', '.join(unknown)}; its fields are {', '.join(sorted(known))}")


def _problems(plan: CriticPlan) -> list[str]:
    found = []
    for name in ("epsilon", "learning_rate", "critic_rate", "reversal", "smoothness"):
        value = getattr(plan, name)
        if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
            found.append(f"{name} is {value}; it must be positive and finite")
    for name in ("clip_norm", "sigma"):
        value = getattr(plan, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            found.append(f"{name} is {value}; it must be positive and finite")
    counts = ("steps", "components", "hidden", "source_records")
    found += [f"{name} is {getattr(plan, name)}; it must be at least 1" for name in counts if getattr(plan, name) < 1]
    if not 1 <= plan.batch_size <= plan.records:
        found.append(f"batch_size is {plan.batch_size}; allowed are 1 to the data set's {plan.records} records")
    if not 0.0 <= plan.averaging < 1.0:
        found.append(f"averaging is {plan.averaging}; it must be at least 0 and below 1")
    return found
