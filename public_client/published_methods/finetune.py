"""Labelled gradients: DP-SGD of the team's model on the hospital's labelled records, across the wire.

The hospital sends the noised sum of clipped per-record gradients of the cross-entropy with its own labels
(docs/privacy/labelled-gradients.md); here a few steps on all records follow it, by the public source's curvature
(`newton`). What the recipe sets (axes, clip, steps) follows from the public source and from constants that were chosen
on a part of MNIST (docs/ml-team/labelled.md).
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.recipe import RunTerms, not_positive
from dpswd.public_client.published_methods.descent import AnsweredStep, DescentRun, PublicStep, align
from dpswd.public_client.published_methods.losses import gradient_term
from dpswd.public_client.published_methods.newton import MOST_FEATURES, Newton, folded, less_sure, viewed
from dpswd.public_client.training.loop import Training
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.run import DrawnStep
from dpswd.public_client.training.sites import Group, Model, Site
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import Payload, RunSize
from dpswd.shared.published_mechanisms.clipped_sum import ClippedSum
from dpswd.shared.published_mechanisms.labelled_gradient.mechanism import (
    LABELLED_GRADIENT,
    LabelledGradientDeclaration,
    LossGradientReply,
    LossGradientRequest,
    entropy_cotangents,
)

_STEPS = 20  # on all records
_TRAINED = ("classifier.head.weight", "classifier.head.bias")
_PUBLIC_NORMS = 512  # public records whose gradients' norms are looked at
_CLIP_SHARE = 0.05
"""C in units of what a public record with a wrong label would say, at least. Steps end where the clipped gradients
cancel, so that C may be small: it is what half of the public records say with their own labels (Andrew and others
2021), or this share."""


@dataclass(frozen=True, kw_only=True)
class Finetune(Method):
    """DP-SGD of the classifier's last linear layer on the hospital's labelled records, in the public source's axes.

    Public records are to vary as the hospital's do: the curvature is theirs (`newton`).

    Attributes:
        clip_norm: C; by default what public records say, or a share of what they would say with wrong labels.
    """

    name = "finetune"
    mechanism = LABELLED_GRADIENT

    clip_norm: float | None = None

    def problems(self) -> list[str]:
        averaged = ["finetune averages by itself; leave averaging as it is"] if self.averaging else []
        clip = [] if self.clip_norm is None else not_positive(self, "clip_norm")
        return [*super().problems(), *averaged, *clip]

    def usual_size(self, description: Description) -> RunSize:
        return RunSize(batch=description.records, steps=_STEPS)

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`; without a clip of its own it is that of C = 1, since the price is any clip's."""
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
        return Declarable.of(_whole(Model(extractor, classifier), None), record_shape, _TRAINED)

    def begin(self, group: Group, training: Training) -> None:
        """See `Method`: one model for all sites of a group."""
        shape = group.record_shape()
        whole = _whole(training.model, training.features.cpu()).to(training.device)
        classifier = whole.get_submodule("classifier")
        assert isinstance(classifier, nn.Sequential), "see `viewed`"
        stored = group.store.read("head") if group.store is not None else None
        if stored is not None:  # what the runs were declared with, to the last bit
            classifier.load_state_dict(stored["classifier"])
        ready = Declarable.of(whole, shape, _TRAINED)
        clip_norm = float(stored["clip_norm"]) if stored else self.clip_norm or _public_clip(classifier, training)
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
        begun = [site for site in group.sites if site.model is not None]
        trained = begun[0].model
        assert trained is not None
        assert isinstance(trained.classifier, nn.Sequential), "made when the runs were opened"
        *before, head = trained.classifier
        assert isinstance(head, nn.Linear), "see `viewed`"
        with torch.no_grad():
            seen = nn.Sequential(*before).eval()(training.features)
        optimizer = Newton(head, seen, noise=math.inf)  # until the first answers are heard

        def noise_of(site: Site) -> float:
            assert isinstance(site.run, FinetuneRun), "this method opened it"
            return site.run.noise

        def heard(shares: Mapping[str, float]) -> None:
            optimizer.noise = math.hypot(*(shares[site.name] * noise_of(site) for site in begun if site.name in shares))

        features = PublicStep(training.features)
        align(group, optimizer, lambda: features, training, averaging=0.0, heard=heard)
        done = Model(trained.extractor, folded(trained.classifier))
        for site in begun:
            site.model = done


def _whole(model: Model, features: Tensor | None) -> nn.Module:
    """A copy of the model, from records to scores; the classifier's last layer stands in the features' axes.

    Without features (m, d) the axes are made up, which is enough for the price.
    """
    extractor, classifier = copy.deepcopy(model.extractor).cpu(), copy.deepcopy(model.classifier).cpu()
    *before, last = classifier if isinstance(classifier, nn.Sequential) else (classifier,)
    if not isinstance(last, nn.Linear):
        raise InvalidValue(
            f"the classifier ends in {type(last).__name__}, no linear layer, which is what finetune trains"
        )
    if last.in_features > MOST_FEATURES:
        raise InvalidValue(
            f"the classifier takes {last.in_features} features; finetune keeps a matrix of their square and takes at "
            f"most {MOST_FEATURES}: use statistics"
        )
    if features is None:
        shown = torch.eye(last.in_features)
    else:
        with torch.no_grad():
            shown = nn.Sequential(*before).eval()(features)
        last = less_sure(last, shown)
    layers = OrderedDict(extractor=extractor, classifier=viewed(before, last, shown))
    return nn.Sequential(layers).eval()


def _public_clip(classifier: nn.Sequential, training: Training) -> float:
    """The median norm of public records' gradients, or a share of what it is with the labels of another class."""
    features, labels = training.source_features(_PUBLIC_NORMS)
    *before, head = classifier
    with torch.no_grad():
        seen = nn.Sequential(*before)(features)
        scores, lengths = head(seen), (seen.square().sum(dim=1) + 1.0).sqrt()

    def median(labels: Tensor) -> float:
        # Of a linear layer and its bias the gradient is a product of two vectors.
        return float((entropy_cotangents(scores, labels).norm(dim=1) * lengths).median())

    return max(median(labels), _CLIP_SHARE * median((labels + 1) % scores.shape[1]), 1e-6)


class FinetuneRun(DescentRun[LossGradientReply]):
    """A run of labelled gradients. See `DescentRun`."""

    @property
    def labelled(self) -> float:
        """Records of a sample that have a label, in the mean; all of them where their number is private."""
        return self.plan.batch_size * self.plan.with_label / self.plan.records

    @property
    def noise(self) -> float:
        """Deviation of each coordinate of the mean gradient."""
        return float(self.declared.sum.sigma / self.labelled)

    def request(self, half: PublicStep) -> Payload:
        return LossGradientRequest(self.adapted_values())

    def answered(self, half: PublicStep, drawn: DrawnStep[LossGradientReply]) -> AnsweredStep:
        """A loss whose gradient is the released mean; its value says how long that is, less what is noise.

        The estimate of the squared norm of the mean clipped gradient is unbiased, so it may be negative.
        """
        gradient = drawn.reply.gradient.to_tensor() / self.labelled  # (p,)
        length = float(gradient.double().square().sum()) - gradient.numel() * self.noise**2
        return AnsweredStep(gradient_term(self.parameters, gradient), length)
