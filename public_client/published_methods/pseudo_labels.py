"""One release of pseudo-labelled class sums: a classifier for a target whose classes have moved in feature space.

The team's own classifier is a part of the uploaded graph, and the hospital sums what it takes the records for, times
the first components of their features, by the ready mechanism. How far each class has moved is a posterior
(`pseudo_label_fit`); the extractor stays, and the classifier goes most of the way to what it learns on source features
that moved alike, if that helps in worlds like the target (`pseudo_label_head`). Otherwise the model is kept as it is.
"""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from dpswd.public_client.data.feature_maps import map_from_source
from dpswd.public_client.data.progress import Reporter, reporting
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import RunTerms, not_counts
from dpswd.public_client.published_methods.pseudo_label_fit import (
    Observed,
    PseudoLabelSums,
    Source,
    component_axes,
    components_of,
    fitted,
    whole,
)
from dpswd.public_client.published_methods.pseudo_label_head import WORLDS, expected_gain, learned
from dpswd.public_client.training.loop import Training, status, write_histories
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.run import Release
from dpswd.public_client.training.sites import Group, Model, Site
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.feature_sums.mechanism import FEATURE_SUMS, SumsDeclaration, SumsReply
from dpswd.shared.core.mechanisms.interface import Payload
from dpswd.shared.core.noise.feature_map import FeatureMap

_log = logging.getLogger(__name__)

UNCHANGED = "kept"
_TARGET_NORM = 0.35  # mean norm that the public map gives the source's summands; records are clipped at 1/2
_LEAST_RATIO = 200.0  # records over the noise's factor, below which shifts of classes drown
_EPSILON_POWER = 1.2  # of the noise's fall, within 1.1 to 1.2 from epsilon 1 to 8: what is asked for then is enough
_LEAST_EVIDENCE = 5.0  # nats
_MOST_MISFIT = 0.1  # of the spread of what a record adds
_MOST_DOUBT = 0.2  # of the same, where moves might be preferred to a misfit
_SURE = 2.0  # standard errors of the gain
_LEAST_GAIN = 0.5  # points: what real targets differ in besides costs about so much
_LEAST_SHARE = 0.2  # of the errors, where there are few: a tight source's worlds are too easy, and so are their gains


@dataclass(frozen=True, kw_only=True)
class PseudoLabels(Method):
    """Moves of the classes, from one noised sum of pseudo-labelled features; no labels are read.

    Attributes:
        components: of the source's features, along which classes are looked for; fewer with many classes.
        least_classes: fewer are refused: with two, records that cross the boundary and a class that moved along it look
            alike in the sums, and on such data it lost as often as it gained (docs/studies.md).
    """

    name = "pseudo-labels"
    mechanism = FEATURE_SUMS
    suits = (
        "for deep features of about 1,000 records or more, three classes or more, each moved its own way; else it keeps"
    )
    unpublished = (
        "its release is of the classifier's sums along the source's components, which proposals and published "
        "releases do not carry (a curator that serves answers it in one step)"
    )

    components: int = 16
    least_classes: int = 3

    def problems(self) -> list[str]:
        return [*super().problems(), *not_counts(self, "components", "least_classes")]

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`: one replaced record moves a sum by at most 1."""
        return SumsDeclaration(sigma=run.noise, feature_map=run.feature_map)

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        return "the classifier, on public features that moved as the target's classes did; the extractor stays"

    def notes(self, plan: Plan) -> list[tuple[str, str]]:
        """See `Recipe`; and whether so many records can tell anything."""
        notes = super().notes(plan)
        if plan.noise is not None and (words := _too_little(plan)):
            notes.append(("", f"it will be refused: {words}"))
        return notes

    def worthless(self, plan: Plan) -> list[str]:
        """See `Recipe`: with so few records for the noise the model would be kept whatever is released."""
        words = _too_little(plan)
        return [f"{words}. Nothing was spent"] if words else []

    def declarable(
        self, extractor: nn.Module, record_shape: tuple[int, ...], classifier: nn.Module | None = None
    ) -> Declarable:
        """See `Method`, as far as the price goes: sizes are right, the components are not yet the source's.

        Raises:
            InvalidValue: the classifier is not given, has nothing to learn, or tells too few classes apart.
        """
        if classifier is None:
            raise InvalidValue("pseudo-labels asks with the classifier too; plan with extractor and classifier")
        if next(classifier.parameters(), None) is None:
            raise InvalidValue(
                "the classifier has no weights, and pseudo-labels learns nothing else: let the extractor end before "
                "the last layer, and the classifier be that layer"
            )
        with torch.no_grad():
            features = copy.deepcopy(extractor).cpu().eval()(torch.zeros(2, *record_shape))
            classes = copy.deepcopy(classifier).cpu().eval()(features).shape[1]
        if classes < self.least_classes:
            raise InvalidValue(
                f"the classifier tells {classes} classes apart; pseudo-labels needs {self.least_classes} at least: "
                "take replay"
            )
        dimension = features.shape[1]
        axes = nn.Linear(dimension, 1 + components_of(self.components, classes=classes, dimension=dimension))
        return Declarable.of(whole(extractor, classifier, axes)[0], record_shape)

    def begin(self, group: Group, training: Training) -> None:
        """See `Method`: one graph and one map for all sites."""
        stored = group.store.read("axes") if group.store is not None else None
        axes = self._axes(group, training) if stored is None else nn.Linear(*stored["weight"].T.shape)
        if stored is not None:  # what the runs were declared with, to the last bit
            axes.load_state_dict(stored)
        elif group.store is not None:
            group.store.write("axes", axes.state_dict())
        asked, sums = whole(training.model.extractor, training.model.classifier, axes.requires_grad_(False))
        with torch.no_grad():
            feature_map = map_from_source(sums(training.features.cpu()), target_norm=_TARGET_NORM)
        ready = Declarable.of(asked, group.record_shape())

        def opened(site: Site) -> SumsRun:
            run = SumsRun(site.curator, ready, site.plan, feature_map=feature_map, checkpoint=site.store)
            run.sums = sums
            return run.open()

        group.charge_each(opened)

    def _axes(self, group: Group, training: Training) -> nn.Linear:
        """Components along which the source spreads more than the noise on a mean of the least noised site."""
        with torch.no_grad():
            classes = int(training.model.classifier(training.features[:2]).shape[1])
        count = components_of(self.components, classes=classes, dimension=training.features.shape[1])
        size = {"feature_dimension": classes * (count + 1), "gradient_parameters": 0}
        ratio = max(_signal_to_noise(site.plan.for_model(**size)) for site in group.live)
        return component_axes(training.features, count, least=1.0 / (ratio * _TARGET_NORM))

    def fit(self, group: Group, training: Training) -> None:
        """See `Method`; each site's classifier is its own."""
        releases = training.read_each(group, "pseudo-labelled sums", lambda site, bar: site.run.ask_all(bar))
        features, labels = training.source_features(self.source_records)
        features, labels = features.cpu().double(), labels.cpu()
        for site in group.live:
            run = site.run
            assert isinstance(run, SumsRun), "this method opened it"
            source = Source(features, labels, copy.deepcopy(run.sums).double(), run.declared_map)
            observed = Observed.of(releases[site.name], sigma=run.declared.sigma, records=site.plan.records)
            with reporting(f"classes of {site.name}", 1 + WORLDS, shown=training.progress) as bar:
                made, reason = training.ranks.share(partial(deliver, source, observed, seed=training.seed, bar=bar))
                classifier = training.model.classifier
                if made is None:
                    site.outcome = UNCHANGED
                else:
                    classifier = made.to(next(classifier.parameters()))
                training.deliver(site, Model(training.model.extractor, classifier), reason)
                bar.tell(status(group))
        write_histories(group)


def deliver(source: Source, observed: Observed, *, seed: int, bar: Reporter) -> tuple[nn.Module | None, str]:
    """The classifier, or none: nothing has moved, or following it would not help.

    Args:
        source: public.
        observed: what was released of the target.
        seed: of the worlds.
        bar: told of each step.

    Returns:
        The classifier, in float64 on the processor, or None where the model is kept; and why, in words.
    """
    generator = torch.Generator().manual_seed(seed)
    shifts = fitted(source, observed, generator)
    bar.advance("fitted")
    priors = shifts.priors
    summary = (
        f"classes moved by {priors.common:g} together and {priors.own:g} each, in units of a feature's mean norm, with "
        f"gains of {priors.gains:g}; {shifts.evidence:.0f} nats for it; {priors.misfit:g} of a record's deviation is "
        f"unexplained, or {shifts.doubt:g} if moves were no likelier beforehand"
    )
    if shifts.evidence < _LEAST_EVIDENCE:
        return None, f"the release is what the public source would give ({summary})"
    if priors.frequencies:
        return None, f"the classes' frequencies have changed ({summary}); replay follows them"
    if priors.misfit > _MOST_MISFIT or shifts.doubt > _MOST_DOUBT:
        return None, f"the release does not fit classes that have moved ({summary})"
    gain = expected_gain(source, observed, shifts, generator, advance=lambda: bar.advance("trying"))
    tried = f"in worlds drawn from the fit {gain} ({summary})"
    least = min(_LEAST_GAIN, _LEAST_SHARE * (100.0 - gain.best))
    if gain.mean <= max(least, _SURE * gain.error):
        return None, f"{tried}, which is no clear gain"
    if shifts.rival is not None:
        gain = expected_gain(source, observed, shifts.rival, generator, advance=lambda: None)
        if gain.mean < -_SURE * gain.error:
            tried += "; but other frequencies of the classes, with other moves, explain the release about as well, and"
            return None, f"{tried} there {gain}"
    return learned(source, shifts, generator), tried


def _signal_to_noise(plan: Plan) -> float:
    """Records for one record's worth of noise: the inverse of the deviation on each number of a mean."""
    assert plan.noise is not None, "known once the model is"
    return plan.batch_size * math.sqrt(plan.steps) / plan.noise


def _too_little(plan: Plan) -> str:
    """Why a release of so many records with so much noise cannot tell, and what would do; empty where it may."""
    ratio = _signal_to_noise(plan)
    if ratio >= _LEAST_RATIO:
        return ""
    records = math.ceil(plan.batch_size * _LEAST_RATIO / ratio)
    enough = plan.epsilon * (_LEAST_RATIO / ratio) ** _EPSILON_POWER
    return (
        f"{plan.batch_size} records with noise of {plan.noise:.2f} records tell too little of the classes ({ratio:.0f} "
        f"to one; it takes {_LEAST_RATIO:.0f}), so the model would be kept: at epsilon {plan.epsilon:g} it takes "
        f"{records} records. Ask for epsilon {enough:.2g} or so, or take replay"
    )


class SumsRun(Release[SumsReply]):
    """A run of pseudo-labelled sums. See `Release`.

    Attributes:
        sums: the end of the graph.
    """

    sums: PseudoLabelSums

    @property
    def declared_map(self) -> FeatureMap:
        """The public map that the run declares; of a run that goes on, not what would be chosen now."""
        declared: FeatureMap = self.declared.feature_map
        return FeatureMap(declared.center.cpu().double(), declared.scale.cpu().double())
