"""From an extractor and a plan to a run's declaration, and what a curator would say to it; spends nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor, nn

from public_client.curator.stub import Curator
from public_client.curator.values import Quote, UploadedExtractor
from public_client.plans.plan import Plan
from public_client.plans.run_plan import RunPlan
from public_client.training.adapters import adapted_names, with_adapters
from shared.errors import InvalidValue
from shared.extractor.graph import ExtractorGraph
from shared.extractor.tracing import trace
from shared.extractor.weights import module_weights, weights_to_bytes
from shared.kernels.feature_map import FeatureMap
from shared.protocol.messages import PublicMap, RunParameters

_Plan = TypeVar("_Plan", bound=RunPlan)

_MOST_NOISE = 4.0
"""Times the planned noise: beyond it a run would cost about what was asked and be of little use."""
_BISECTIONS = 4


@dataclass(frozen=True, eq=False)
class Declarable:
    """An extractor as it travels, with what a plan adapts of it; made without a curator.

    `torch.fx` patches `nn.Module` for the whole process while it traces. So where several sites are served by threads,
    all extractors are made declarable before the first thread runs a module.

    Attributes:
        graph: the closed-vocabulary graph.
        weights: safetensors.
        names: of the adapted parameters, in the declared order.
        parameters: the adapted tensors, the module's own.
    """

    graph: ExtractorGraph
    weights: bytes
    names: tuple[str, ...]
    parameters: list[Tensor]

    @classmethod
    def of(cls, extractor: nn.Module, record_shape: tuple[int, ...], plan: Plan) -> Declarable:
        """Traces the module that records go through.

        Raises:
            ExtractorUnsupported: it cannot travel as data; the message names the layer.
        """
        return cls.of_parameters(extractor, record_shape, adapted_names(extractor, plan.parameters))

    @classmethod
    def of_parameters(cls, module: nn.Module, record_shape: tuple[int, ...], names: tuple[str, ...]) -> Declarable:
        """The same for parameters that are chosen already, by name."""
        graph = trace(module, record_shape)
        tensors = dict(module.named_parameters())
        weights = weights_to_bytes(module_weights(module, graph))
        return cls(graph, weights, names, [tensors[name] for name in names])

    @classmethod
    def of_source(
        cls, extractor: nn.Module, record_shape: tuple[int, ...], plan: Plan, *, own: nn.Module | None = None
    ) -> Declarable:
        """The same for a source extractor in any mode, as `DomainAdaptation` would adapt it, with `own` adapter."""
        module = copy.deepcopy(extractor).eval()
        if plan.parameters == "adapters":
            module = with_adapters(module, record_shape, plan=plan, own=own)
        return cls.of(module, record_shape, plan)

    def noisy(self, plan: _Plan) -> _Plan:
        """The plan with its noise."""
        return plan.for_extractor(
            feature_dimension=self.graph.feature_dimension,
            gradient_parameters=sum(parameter.numel() for parameter in self.parameters),
        )

    def declare(self, plan: RunPlan, uploaded: UploadedExtractor, mapped: PublicMap | None) -> RunParameters:
        """The run's declaration under a plan with noise."""
        return plan.declaration(
            graph_digest=uploaded.graph_digest,
            weights_digest=uploaded.weights_digest,
            names=self.names,
            feature_map=mapped,
        )


def quoted(curator: Curator, declarable: Declarable, plan: Plan) -> Plan:
    """The plan as this curator would open it for this extractor now, and whether it would; spends nothing.

    Returns:
        The plan with its noise and with `admitted` set by the curator's own answer; the rest is `quote`'s.
    """
    noisy, answer = quote(curator, declarable, plan)
    return replace(noisy, admitted=answer.fits, steps_that_fit=answer.steps_that_fit)


def quote(curator: Curator, declarable: Declarable, plan: _Plan) -> tuple[_Plan, Quote]:
    """The plan with its noise as this curator would open it now, and the curator's answer; spends nothing.

    Args:
        curator: a connection.
        declarable: what the records go through; its weights do not enter the price, its sizes do.
        plan: to be asked about.

    Raises:
        InvalidValue: the ledger counts the run dearer than the plan may cost, whatever the noise.
    """
    uploaded = curator.upload_extractor(declarable.graph.to_bytes(), declarable.weights)

    def ask(asked: _Plan) -> Quote:
        return curator.price_run(declarable.declare(asked, uploaded, None))

    noisy = within_quote(declarable.noisy(plan), lambda asked: ask(asked).epsilon)
    return noisy, ask(noisy)


def public_map(feature_map: FeatureMap) -> PublicMap:
    """The map as it travels."""
    return PublicMap(
        center=feature_map.center.detach().cpu().numpy().astype("float32"),
        scale=feature_map.scale.detach().cpu().numpy().astype("float32"),
    )


def within_quote(plan: _Plan, price_of: Callable[[_Plan], float]) -> _Plan:
    """The plan with as little more noise as makes the curator's own price no higher than the plan's.

    The ledger may count a run dearer than it is alone, where other runs share the budget and several bounds are kept
    open at once.

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
                f"planned noise, above the {plan.epsilon:.4f} that were asked: other runs share the budget. Ask for at "
                f"least epsilon {price * 1.01:.4f}, or for the whole budget at once. Nothing was spent"
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
