"""Labelled gradients: DP-SGD of the team's model on the hospital's labelled records, across the wire.

The hospital sends the noised sum of clipped per-record gradients of the cross-entropy with its own labels
(docs/privacy/labelled-gradients.md); Adam is here, or Newton's steps by the public source's curvature. What the recipe
sets (view, clip, rate, batch, steps) follows from the public source and from constants that were chosen beforehand:
Adam's on other data, Newton's on a part of MNIST (docs/ml-team/labelled.md).
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.source import collect
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import RunTerms, not_one_of, not_positive
from dpswd.public_client.published_methods.descent import AnsweredStep, DescentRun, PublicStep, align
from dpswd.public_client.published_methods.losses import gradient_term
from dpswd.public_client.published_methods.newton import MOST_FEATURES, Newton, less_sure
from dpswd.public_client.published_methods.public_view import folded, parted, viewed_head
from dpswd.public_client.training.loop import Training
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.run import DrawnStep
from dpswd.public_client.training.sites import Group, Model, Site
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import Payload, RunSize
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import (
    LABELLED_GRADIENT,
    LabelledGradientDeclaration,
    LossGradientReply,
    LossGradientRequest,
    entropy_cotangents,
)
from dpswd.shared.sandbox.building import Extractor
from dpswd.shared.sandbox.weights import weights_from_bytes

_BATCH, _STEPS = 4096, 100
"""Nearly as little noise for the signal as steps on all records have, in a tenth of their time."""
_NEWTON_STEPS = 20  # on all records
_PUBLIC_NORMS = 512  # public records whose gradients' norms are looked at
_CLIP_SHARES: Mapping[str, float] = {"adam": 0.2, "newton": 0.05}
"""C in units of what a public record with a wrong label would say. Adam wants directions alone (De and others 2022).
Newton's steps end where the clipped gradients cancel, so that C may be small: it is what half of the public records say
with their own labels (Andrew and others 2021), or this share."""
_POWERS: Mapping[str, float] = {"adam": 0.3, "newton": 0.5}
"""Of an axis's variance by which its values are divided, times 1/2."""


@dataclass(frozen=True, kw_only=True)
class Finetune(Method):
    """DP-SGD of the classifier's last linear layer on the hospital's labelled records, in the public source's axes.

    Attributes:
        descent: "adam"; or, by a few steps on all records, "newton": by the curvature that public records show
            (`newton`), which are then to vary as the hospital's do.
        learning_rate: of Adam, at the start.
        clip_norm: C; by default a share of the norms that public records with wrong labels would have.
    """

    name = "finetune"
    mechanism = LABELLED_GRADIENT

    descent: Literal["adam", "newton"] = "adam"
    learning_rate: float = 0.2
    clip_norm: float | None = None

    def problems(self) -> list[str]:
        words = not_one_of(self, "descent", ("adam", "newton"))
        if self.descent == "newton" and self.averaging:
            words.append("descent is newton, which averages by itself; leave averaging as it is")
        if self.clip_norm is not None:
            words += not_positive(self, "clip_norm")
        return [*super().problems(), *words]

    def usual_size(self, description: Description) -> RunSize:
        if self.descent == "newton":
            return RunSize(batch=description.records, steps=_NEWTON_STEPS)
        return RunSize(batch=_BATCH, steps=_STEPS)

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`; without a clip of its own it is that of C = 1, since the price is any clip's.

        Raises:
            InvalidValue: Newton's steps are asked for where some records have no label.
        """
        if self.descent == "newton" and run.partly_labelled:
            raise InvalidValue(
                "descent='newton' takes the released sum for that of all records, and some have no label "
                "here: finetune with descent='adam', or take statistics"
            )
        clip_norm = 1.0 if self.clip_norm is None else self.clip_norm
        return LabelledGradientDeclaration(run.classes, ClippedSum(run.names, clip_norm, 2.0 * clip_norm * run.noise))

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        return "the classifier, by gradients of the hospital's own labels"

    def declarable(
        self, extractor: nn.Module, record_shape: tuple[int, ...], classifier: nn.Module | None = None
    ) -> Declarable:
        """See `Method`, as far as the price goes: sizes are right, the classifier's axes are not yet.

        Raises:
            InvalidValue: the classifier is not given.
        """
        if classifier is None:
            raise InvalidValue("finetune trains the classifier too; plan with extractor and classifier")
        whole = self._whole(Model(extractor, classifier), None)
        return Declarable.of(whole, record_shape, _trained_names(whole))

    def open(self, curator: Curator, plan: Plan, extractor: nn.Module) -> FinetuneRun:
        """See `Method`; the module computes a score for each class, and all its parameters are trained."""
        names = tuple(name for name, _ in extractor.named_parameters())
        return FinetuneRun(curator, Declarable.of(extractor, plan.record_shape, names), plan).open()

    def begin(self, group: Group, training: Training) -> None:
        """See `Method`: one model for all sites of a group."""
        shape = group.record_shape()
        whole = self._whole(training.model, training.features.cpu()).to(training.device)
        classifier = whole.get_submodule("classifier")
        stored = group.store.read("head") if group.store is not None else None
        if stored is not None:  # what the runs were declared with, to the last bit
            classifier.load_state_dict(stored["classifier"])
        ready = Declarable.of(whole, shape, _trained_names(whole))
        clip_norm = (
            float(stored["clip_norm"]) if stored is not None else self.clip_norm or self._public_clip(ready, training)
        )
        if stored is None and group.store is not None:
            group.store.write("head", {"classifier": classifier.state_dict(), "clip_norm": clip_norm})
        settled = replace(self, clip_norm=clip_norm)
        group.charge_each(
            lambda site: FinetuneRun(
                site.curator, ready, replace(site.plan, method=settled), checkpoint=site.store
            ).open()
        )
        trained = Model(whole.get_submodule("extractor"), classifier)  # copies: the source's own stays as it was
        for site in group.sites:
            if site.lost is None or site.perhaps_charged:  # what it answered before it was lost still counts
                site.model = trained

    def fit(self, group: Group, training: Training) -> None:
        features = PublicStep(training.features)
        optimizer = self._optimizer(group, training)

        def heard(shares: Mapping[str, float]) -> None:
            if isinstance(optimizer, Newton):
                optimizer.noise = _noise(group.sites, shares)

        align(group, optimizer, lambda: features, training, averaging=self.averaging, heard=heard)
        trained = _trained(group)
        done = Model(trained.extractor, folded(trained.classifier))
        for site in group.sites:
            if site.model is not None:
                site.model = done

    def _optimizer(self, group: Group, training: Training) -> torch.optim.Optimizer:
        if self.descent == "adam":
            return torch.optim.Adam(group.live[0].run.parameters, lr=self.learning_rate)
        before, head = parted(_trained(group).classifier)
        with torch.no_grad():
            features = before.eval()(training.features)
        return Newton(head, features, noise=_noise(group.live, group.shares(group.live)))

    def _whole(self, model: Model, features: Tensor | None) -> nn.Module:
        """A copy of the model, from records to scores; the classifier's last layer stands in the features' axes.

        Without features the axes are made up, which is enough for the price.
        """
        extractor, classifier = copy.deepcopy(model.extractor).cpu(), copy.deepcopy(model.classifier).cpu()
        last = classifier[-1] if isinstance(classifier, nn.Sequential) else classifier
        if not isinstance(last, nn.Linear):
            raise InvalidValue(
                f"the classifier ends in {type(last).__name__}, no linear layer, which is what finetune trains"
            )
        before = classifier[:-1] if isinstance(classifier, nn.Sequential) else nn.Identity()
        with torch.no_grad():
            shown = torch.eye(last.in_features) if features is None else before.eval()(features)
        if self.descent == "newton" and last.in_features > MOST_FEATURES:
            raise InvalidValue(
                f"the classifier takes {last.in_features} features; Newton's steps keep a matrix of their square "
                f"and take at most {MOST_FEATURES}: use descent='adam'"
            )
        if self.descent == "newton" and features is not None:
            last = less_sure(last, shown)
        head = viewed_head(last, shown, power=_POWERS[self.descent])
        classifier = nn.Sequential(*before, head) if isinstance(before, nn.Sequential) else head
        return nn.Sequential(OrderedDict(extractor=extractor, classifier=classifier)).eval()

    def _public_clip(self, ready: Declarable, training: Training) -> float:
        """A share of the median norm of public records' gradients, each with the label of another class.

        For Newton's steps it is the median with their own labels, where that is more.
        """
        source = collect(training.source, most=max(1, _PUBLIC_NORMS // training.ranks.size))
        graph = ready.graph
        weights = weights_from_bytes(ready.weights, graph.tensor_shapes)
        model = Extractor.from_graph(graph, weights, device=training.device)
        forward = model.begin(source.images.to(training.device), ready.names)
        labels = source.labels.to(training.device)

        def median(labels: Tensor) -> float:
            norms = forward.gradients(entropy_cotangents(forward.outputs, labels)).norm(dim=1)
            return float(training.ranks.gather(norms).median())

        share = _CLIP_SHARES[self.descent] * median((labels + 1) % graph.feature_dimension)
        return max(share, median(labels) if self.descent == "newton" else 0.0, 1e-6)


class FinetuneRun(DescentRun[LossGradientReply]):
    """A run of labelled gradients. See `DescentRun`."""

    def request(self, source: Tensor, feature_map: FeatureMap | None = None) -> Payload:
        return LossGradientRequest(self.adapted_values())

    def answered(
        self, source: Tensor, drawn: DrawnStep[LossGradientReply], feature_map: FeatureMap | None = None
    ) -> AnsweredStep:
        """A loss whose gradient is the released mean; its value says how long that is, less what is noise.

        The estimate of the squared norm of the mean clipped gradient is unbiased, so it may be negative.
        """
        gradient = drawn.reply.gradient.to_tensor() / self.plan.batch_size  # (p,)
        noise = self.declared.sum.sigma / self.plan.batch_size
        length = float(gradient.double().square().sum()) - gradient.numel() * noise**2
        return AnsweredStep(gradient_term(self.parameters, gradient), length)


def _noise(sites: Sequence[Site], shares: Mapping[str, float]) -> float:
    """Deviation of each coordinate of the mean gradient of the sites that have a share in it."""
    own = (shares[s.name] * s.run.declared.sum.sigma / s.plan.batch_size for s in sites if s.name in shares)
    return math.hypot(*own)


def _trained(group: Group) -> Model:
    """The sites' model."""
    return next(site.model for site in group.sites if site.model is not None)


def _trained_names(whole: nn.Module) -> tuple[str, ...]:
    """Of the classifier's last layer in its axes."""
    return tuple(name for name, _ in whole.named_parameters() if name.endswith(("head.weight", "head.bias")))
