"""The critic of domain-adversarial training, and both players as they travel (Ganin and others 2016).

What is public costs nothing and is used: the critic sees the features on the source's own principal axes, whitened;
the clip is a quantile of the norms that public records would have.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.published_methods.adapters import adapter_names
from dpswd.shared.published_mechanisms.critic.domain_loss import source_loss, target_cotangents
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.weights import weights_from_bytes

_TRAINED = ("critic.first.weight", "critic.first.bias", "critic.last.weight", "critic.last.bias")


def domain_critic(features: Tensor, *, components: int, hidden: int, seed: int = 0) -> nn.Module:
    """A critic for features like these: whitened principal axes (fixed, public), one hidden layer, one logit.

    Args:
        features: (m, d) of the public source.
        components: axes that it sees, at most d.
        hidden: units.
        seed: of its first weights; the process's own random state stays as it is.

    Returns:
        (b, d) to (b, 1); only ``first`` and ``last`` are trained.
    """
    count = min(components, features.shape[1], len(features) - 1)
    center = features.mean(dim=0)
    _, deviations, axes = torch.linalg.svd(features - center, full_matrices=False)
    # An axis is known up to its sign; with the largest entry positive, the records' order does not choose it.
    axes = axes * axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)).sign()
    scale = (deviations[:count] / math.sqrt(len(features) - 1)).clamp(min=1e-6)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        view, first, last = nn.Linear(features.shape[1], count), nn.Linear(count, hidden), nn.Linear(hidden, 1)
    with torch.no_grad():
        view.weight.copy_(axes[:count] / scale[:, None])
        view.bias.copy_(-(view.weight @ center.to(view.weight)))
    view.requires_grad_(False)
    return nn.Sequential(OrderedDict(view=view, first=first, act=nn.Tanh(), last=last)).to(features.device)


@dataclass(frozen=True, eq=False)
class Adversaries:
    """The two players of one training, and both as they are declared.

    Attributes:
        target: the extractor with its adapter.
        critic: of its features.
        declarable: both as one graph; the adapter's parameters first.
        adapter_tensors: how many of the declared tensors are the adapter's.
    """

    target: nn.Module
    critic: nn.Module
    declarable: Declarable
    adapter_tensors: int

    @classmethod
    def of(cls, target: nn.Module, critic: nn.Module, record_shape: tuple[int, ...]) -> Adversaries:
        """Traces them.

        Raises:
            ExtractorUnsupported: the extractor cannot travel as data; the message names the layer.
        """
        adapter = tuple(f"extractor.{name}" for name in adapter_names(target))
        # One module, from a record to the logit of "this record is the target's".
        whole = nn.Sequential(OrderedDict(extractor=target, critic=critic)).eval()
        return cls(target, critic, Declarable.of(whole, record_shape, adapter + _TRAINED), len(adapter))

    @property
    def adapter(self) -> tuple[Tensor, ...]:
        """The adapter's parameters."""
        return self.declarable.parameters[: self.adapter_tensors]

    @property
    def trained(self) -> tuple[Tensor, ...]:
        """The critic's parameters."""
        return self.declarable.parameters[self.adapter_tensors :]

    def gradient_norms(self, images: Tensor) -> Tensor:
        """(m,) norms of the gradients that public records (m, ...) would have in the private ones' place."""
        graph = self.declarable.graph
        weights = weights_from_bytes(self.declarable.weights, graph.tensor_shapes)
        model = Extractor.from_graph(graph, weights, device=images.device)
        forward = model.begin(images, self.declarable.names)
        norms: Tensor = forward.gradients(target_cotangents(forward.outputs)).norm(dim=1)
        return norms


def source_terms(critic: nn.Module, features: Tensor, *, weight: float) -> tuple[Tensor, Tensor]:
    """The critic's loss on source features, and what a steep critic pays there (free: the source is public).

    The penalty is weight/2 times the mean squared gradient of the logit in the whitened features, R1 of Mescheder,
    Geiger and Nowozin 2018 (equation 9), without which the two players circle each other.

    Args:
        critic: from `domain_critic`.
        features: (m, d).
        weight: of the penalty.
    """
    seen = critic.get_submodule("view")(features).detach().requires_grad_()
    logits = critic.get_submodule("last")(critic.get_submodule("act")(critic.get_submodule("first")(seen)))
    (slopes,) = torch.autograd.grad(logits.sum(), seen, create_graph=True)
    return source_loss(logits), 0.5 * weight * slopes.square().sum(dim=1).mean()
