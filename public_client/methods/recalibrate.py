"""A correction of the team's scores by the hospital's labels: biases, slopes and a head, as far as the release tells.

Each step releases noised class counts, and gradient and curvature of the log-loss where the correction stands
(docs/privacy/score-statistics.md); the next one is taken where the posterior's mean then is. What is delivered is the
team's model with a final linear correction, or that model as it is.
"""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import RunTerms, not_counts
from dpswd.public_client.recalibration.curvature import Public, Values, balancing
from dpswd.public_client.recalibration.graph import Basis, corrected, fitted
from dpswd.public_client.recalibration.inference import Posterior, Recalibration, Released
from dpswd.public_client.recalibration.verdict import Verdict
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.loop import Training, write_histories
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.run import DrawnStep, Release
from dpswd.public_client.training.sites import Group, Model, Site
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import Payload, RunSize
from dpswd.shared.core.mechanisms.score_statistics.mechanism import (
    SCORE_STATISTICS,
    Scored,
    ScoresDeclaration,
    ScoresReply,
    ScoresRequest,
)
from dpswd.shared.core.mechanisms.score_statistics.sums import LARGEST_SCORE

_log = logging.getLogger(__name__)

UNCHANGED = "kept"
_STEPS = 5
_SQUARE = 1.2  # of the curvature beside the gradient
_MOST_COUNT, _COUNTED = 4.0, 10.0  # of the counts, where records are few for the noise; how few
_BIAS, _SCORES, _COMPONENTS = 2.0, 1.5, 0.75  # scales of the basis before its clip to about 1
# Ranked on other sources and tables than are reported; docs/ml-team/recalibrate.md says what was looked at besides.


@dataclass(frozen=True, kw_only=True)
class Recalibrate(Method):
    """A correction of the scores from the hospital's labels, which shrinks to none where little is known.

    Attributes:
        components: of the features, at most, that the head is made of.
    """

    name = "recalibrate"
    mechanism = SCORE_STATISTICS
    suits = "for any classifier where records have labels; says by itself how much of it moves, or keeps it"

    components: int = 12
    source_records: int = 2000

    def problems(self) -> list[str]:
        return [*super().problems(), *not_counts(self, "components")]

    def usual_size(self, description: Description) -> RunSize:
        return RunSize(batch=description.records, steps=_STEPS)

    def declaration(self, run: RunTerms) -> Payload:
        columns = 1 + run.dimension - run.classes
        if columns < 1:
            raise InvalidValue(
                f"the graph computes {run.dimension} numbers of each record; recalibrate needs a score for each of "
                f"{run.classes} classes: plan with extractor and classifier"
            )
        scale = np.full(columns, _COMPONENTS, dtype=np.float32)
        scale[1 : run.classes] = _SCORES
        scale[0] = _BIAS
        unit = ScoresDeclaration(run.classes, count_weight(run.labelled / run.noise), _SQUARE, 1.0, scale)
        return replace(unit, sigma=run.noise * unit.sensitivity())

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        what = "a linear correction of the scores (biases, slopes and a head, as far as their evidence goes)"
        return f"{what}, from the hospital's labels; the extractor stays"

    def declarable(
        self, extractor: nn.Module, record_shape: tuple[int, ...], classifier: nn.Module | None = None
    ) -> Declarable:
        """See `Method`, as far as the price goes: sizes are right, the basis is not yet the source's.

        Raises:
            InvalidValue: the classifier is not given.
        """
        if classifier is None:
            raise InvalidValue("recalibrate corrects the classifier's scores; plan with extractor and classifier")
        with torch.no_grad():
            shown = copy.deepcopy(extractor).cpu().eval()(torch.zeros(1, *record_shape))
        made = torch.randn(64, shown.shape[1], generator=torch.Generator().manual_seed(0))
        return self._ready(extractor, self._basis(classifier, made), record_shape)

    def begin(self, group: Group, training: Training) -> None:
        """See `Method`: one graph for all sites."""
        basis = self._basis(training.model.classifier, training.features)
        stored = group.store.read("basis") if group.store is not None else None
        if stored is not None:  # what the runs were declared with, to the last bit
            basis.load_state_dict(stored)
        elif group.store is not None:
            group.store.write("basis", basis.state_dict())
        ready = self._ready(training.model.extractor, basis, group.record_shape())
        group.charge_each(
            lambda site: ScoresRun(site.curator, ready, site.plan, basis=basis, checkpoint=site.store).open()
        )

    def fit(self, group: Group, training: Training) -> None:
        """See `Method`; each site's correction is its own."""
        features, labels = training.source_features(self.source_records)
        features, classes = features.cpu(), labels.cpu().numpy()

        def learned(site: Site, bar: Reporter) -> Posterior:
            run = site.run_of(ScoresRun)
            return run.learned(public_of(run.basis, features, classes), bar)

        posteriors = training.read_each(group, "scores", learned)
        for site in group.live:
            _install(site, posteriors[site.name], training)
        write_histories(group)

    def _basis(self, classifier: nn.Module, features: Tensor) -> Basis:
        return fitted(classifier, features, components=self.components)

    def _ready(self, extractor: nn.Module, basis: Basis, shape: tuple[int, ...]) -> Declarable:
        whole = nn.Sequential(copy.deepcopy(extractor), copy.deepcopy(basis)).cpu().eval()
        return Declarable.of(whole, shape)


def count_weight(ratio: float) -> float:
    """Of the class counts: they are what little information tells first; 1 where there is plenty.

    Args:
        ratio: records for each unit of noise of one step.
    """
    return math.sqrt(1.0 + (_MOST_COUNT**2 - 1.0) / (1.0 + (ratio / _COUNTED) ** 2))


def public_of(basis: Basis, features: Tensor, labels: np.ndarray[Any, Any]) -> Public:
    """Public source records under a basis: features (m, D) on the processor, and their labels (m,)."""
    with torch.no_grad():
        outputs = basis(features).double().numpy()
        classes = basis.classifier(features[:1]).shape[1]
    counts = np.bincount(labels, minlength=classes) + 0.5  # a class that the source lacks is rare, not absent
    columns = np.concatenate([np.ones((len(outputs), 1)), outputs[:, :-classes]], axis=1)
    scores = np.clip(outputs[:, -classes:], -LARGEST_SCORE, LARGEST_SCORE)
    # Scores that were corrected for other frequencies stand for these: without the offset they fit the source.
    shares = counts / counts.sum() * np.exp(-balancing(scores, counts / counts.sum()))
    return Public(scores, columns, shares / shares.sum())


class ScoresRun(Release[ScoresReply]):
    """A run of score statistics. See `Release`.

    Args:
        basis: the end of the graph.

    Attributes:
        verdict: once all steps were drawn.
    """

    def __init__(
        self, curator: Curator, ready: Declarable, plan: Plan, *, basis: Basis, checkpoint: Checkpoint | None = None
    ) -> None:
        super().__init__(curator, ready, plan, checkpoint=checkpoint)
        self.basis = basis
        self.verdict: Verdict | None = None

    def learned(self, public: Public, bar: Reporter) -> Posterior:
        """Draws all steps, each where the ones before it point to, and returns what they say together.

        Args:
            public: source records under the team's model.
            bar: told of every step.

        Raises:
            InvalidValue: the curator has given up every step.
        """
        steps: list[Released] = []
        start = public.softened(self.declared.columns)

        def heard(answer: DrawnStep[ScoresReply]) -> None:
            at = ScoresRequest.from_bytes(answer.asked).correction.astype(np.float64)
            steps.append(self._released(answer.reply, at))
            bar.advance(self.plan.charged)

        for answer in self.answers:
            heard(answer)
        while self.left > 0:
            at = self._posterior(public, steps).mean if steps else start
            heard(self.ask(ScoresRequest(at.astype(np.float32))))
        self.require_answers()
        posterior = self._posterior(public, steps)
        self.verdict = Verdict.of(posterior)
        return posterior

    def _released(self, reply: ScoresReply, at: Values) -> Released:
        """A reply in the units of the likelihood."""
        scored, sigma = Scored.of(reply, self.declared), self.declared.sigma
        deviations = (sigma / self.declared.count_weight, math.sqrt(2.0) * sigma, sigma / self.declared.square_weight)
        return Released(at, scored.counts, math.sqrt(2.0) * scored.gradient, scored.square, deviations)

    def _posterior(self, public: Public, steps: list[Released]) -> Posterior:
        """What the steps together say; where the number of labelled records is private, it follows from the counts."""
        records = self.plan.with_label
        if self.plan.number_private:
            counted = sum(float(step.counts.sum()) for step in steps) / len(steps)
            records = int(min(max(counted, 2.0), records))
        scale, slopes = self.declared.scale.astype(np.float64), self.declared.columns > 1
        return Recalibration(public, scale=scale, slopes=slopes, records=records).posterior(steps)


def _install(site: Site, posterior: Posterior, training: Training) -> None:
    run = site.run_of(ScoresRun)
    assert run.verdict is not None, "drawn before"
    classifier = training.model.classifier
    if run.verdict.share:
        own = corrected(run.basis, run.verdict.share * posterior.mean)
        like = next(classifier.parameters(), training.features)
        classifier = own.to(device=like.device, dtype=like.dtype)
    else:
        classifier, site.outcome = copy.deepcopy(classifier), UNCHANGED  # sites that train together have one each
    training.deliver(site, Model(training.model.extractor, classifier), run.verdict.sentence())
