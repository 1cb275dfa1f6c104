"""What any run's plan tells those who train by it, whatever the run releases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

from public_client.plans.critic_plan import CriticPlan
from public_client.plans.plan import Plan
from shared.protocol.messages import PublicMap, RunParameters


class RunPlan(Protocol):
    """A frozen value: `planning.Plan`, or `critic_plan.CriticPlan`.

    Attributes:
        epsilon: what the whole run costs at `delta`.
        delta: the data set's delta.
        steps: T.
        batch_size: b, records in each secret sample.
        release: what each step releases.
        parameters: what receives the sanitized gradient, and so the way to train (`ways.WAYS`).
        source_records: public records that are compared with the private ones.
        learning_rate: at the start.
        averaging: decay of the running average of the trained weights.
    """

    @property
    def epsilon(self) -> float: ...  # noqa: D102 - see the class
    @property
    def delta(self) -> float: ...  # noqa: D102
    @property
    def steps(self) -> int: ...  # noqa: D102
    @property
    def batch_size(self) -> int: ...  # noqa: D102
    @property
    def release(self) -> str: ...  # noqa: D102
    @property
    def parameters(self) -> str: ...  # noqa: D102
    @property
    def source_records(self) -> int: ...  # noqa: D102
    @property
    def learning_rate(self) -> float: ...  # noqa: D102
    @property
    def averaging(self) -> float: ...  # noqa: D102

    def for_extractor(self, *, feature_dimension: int, gradient_parameters: int) -> Self:
        """The plan with its noise, now that d and p are known."""
        ...

    def with_noise_times(self, factor: float) -> Self:
        """The same plan with its noise multiplied by a factor above 1."""
        ...

    def epsilon_after(self, steps: int) -> float:
        """Epsilon that `steps` steps alone would have cost."""
        ...

    def declaration(
        self, *, graph_digest: str, weights_digest: str, names: tuple[str, ...], feature_map: PublicMap | None
    ) -> RunParameters:
        """What OpenRun is asked."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        ...

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_json`."""
        ...


def plan_from_json(values: Mapping[str, Any]) -> RunPlan:
    """The plan, of either kind, that `to_json` wrote.

    Raises:
        InvalidValue: a field is unknown or out of range.
    """
    kind: type[Plan] | type[CriticPlan] = CriticPlan if values.get("method") == CriticPlan.METHOD else Plan
    return kind.from_json(dict(values))
