"""From a model and a plan to a run's declaration, and what a curator would say to it; spends nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor, nn

from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import Quote, UploadedExtractor
from dpswd.public_client.extractor.tracing import module_weights, trace, weights_to_bytes
from dpswd.public_client.plans.plan import Plan
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.sandbox.graph import ExtractorGraph

_MOST_NOISE = 4.0
"""Times the planned noise: beyond it a run would cost about what was asked and be of little use."""
_BISECTIONS = 4


@dataclass(frozen=True, eq=False)
class Declarable:
    """A model as it travels, with what is adapted of it; made without a curator.

    `torch.fx` patches `nn.Module` for the whole process while it traces. So where several sites are served by threads,
    all models are made declarable before the first thread runs a module.

    Attributes:
        graph: the closed-vocabulary graph.
        weights: safetensors.
        names: of the adapted parameters, in the declared order.
        parameters: the adapted tensors, the module's own.
    """

    graph: ExtractorGraph
    weights: bytes
    names: tuple[str, ...] = ()
    parameters: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, module: nn.Module, record_shape: tuple[int, ...], names: tuple[str, ...] = ()) -> Declarable:
        """Traces the module that records go through.

        Args:
            module: records to features, in evaluation mode.
            record_shape: of one record.
            names: of the parameters to adapt.

        Raises:
            ExtractorUnsupported: it cannot travel as data; the message names the layer.
        """
        graph = trace(module, record_shape)
        tensors = dict(module.named_parameters())
        weights = weights_to_bytes(module_weights(module, graph))
        return cls(graph, weights, names, tuple(tensors[name] for name in names))

    def of_copy(self, module: nn.Module) -> Declarable:
        """The same of a copy of the module: what is adapted is the copy's."""
        tensors = dict(module.named_parameters())
        return replace(self, parameters=tuple(tensors[name] for name in self.names))

    def sized(self, plan: Plan) -> Plan:
        """The plan with its noise for this model."""
        adapted = sum(parameter.numel() for parameter in self.parameters)
        return plan.for_model(feature_dimension=self.graph.feature_dimension, gradient_parameters=adapted)

    def uploaded(self, curator: Curator) -> UploadedExtractor:
        """Uploads the model. Free, and harmless to repeat."""
        return curator.upload_extractor(self.graph.to_bytes(), self.weights)


def quoted(
    curator: Curator, declarable: Declarable, plan: Plan, *, keep_noise: bool = False, required: bool = False
) -> tuple[Plan, Quote]:
    """The plan as this curator would open it for this model now, and its answer; spends nothing.

    Args:
        curator: a connection.
        declarable: what the records go through; its weights do not enter the price, its sizes do.
        plan: to be asked about.
        keep_noise: the planned noise, whatever the ledger counts.
        required: a run that does not fit is refused, which the operator sees once, with the plan's epsilon.

    Returns:
        The plan with its noise and with `admitted` set by the curator's own answer, and that answer.

    Raises:
        InvalidValue: the ledger counts the run dearer than the plan may cost, whatever the noise.
        BudgetExhausted: it does not fit, and is required to.
    """
    uploaded = declarable.uploaded(curator)

    def ask(asked: Plan, requested: float = 0.0) -> Quote:
        return curator.price_run(asked.parameters(uploaded, declarable.names), requested_epsilon=requested)

    sized = declarable.sized(plan)
    noisy = sized if keep_noise else within_quote(sized, lambda asked: ask(asked).epsilon)
    answer = ask(noisy, requested=plan.epsilon if required else 0.0)
    return replace(noisy, admitted=answer.fits, steps_that_fit=answer.steps_that_fit), answer


def quoted_evaluation(
    curator: Curator, declarable: Declarable, plan: Plan, *, charged: bool = False
) -> tuple[Plan, Quote]:
    """The same of an evaluation, with the planned noise where something was spent already.

    There the ledger's filter is fixed, and what it counts for so small a release *alone* has a floor that more noise
    does not lower; what the release adds to what is spent is less. The planned noise gives the asked epsilon alone, and
    the ledger decides whether its budget bears it.

    Charged says that something was, whatever the first description said: a replay has no other.
    """
    return quoted(curator, declarable, plan, keep_noise=charged or curator.describe().spent > 0.0)


def within_quote(plan: Plan, price_of: Callable[[Plan], float]) -> Plan:
    """The plan with as little more noise as makes the curator's own price no higher than the plan's.

    The ledger may count a run dearer than it is alone, where its budget has room for others and several bounds are
    kept open at once.

    Args:
        plan: with its noise.
        price_of: the curator's price of a plan; spends nothing.

    Raises:
        InvalidValue: no noise up to four times the planned does it; nothing was spent.
    """
    price = price_of(plan)
    if price <= plan.epsilon:
        return plan
    low = high = 1.0
    while price > plan.epsilon:
        if high >= _MOST_NOISE:
            raise InvalidValue(
                f"the curator's ledger prices this run at epsilon {price:.4f} even with {_MOST_NOISE:g} times the "
                f"planned noise, above the {plan.epsilon:.4f} that were asked: beside a budget of {plan.budget:g} so "
                f"small a run is counted dearer than it is alone. Ask for at least epsilon {price * 1.01:.4f}. "
                "Nothing was spent"
            )
        low, high = high, min(_MOST_NOISE, high * max(1.02, (price / plan.epsilon) ** 1.1))
        price = price_of(plan.with_noise_times(high))
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        if price_of(plan.with_noise_times(middle)) <= plan.epsilon:
            high = middle
        else:
            low = middle
    return plan.with_noise_times(high)
