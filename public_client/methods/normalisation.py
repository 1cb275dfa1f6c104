"""Statistics of a network's layers: what the hospital's records make of its channels, layer by layer, without labels.

The graph that travels computes each record's statistics of all layers (`dpswd.public_client.normalisation`), and a step
asks for the noised sum of some, under gains and offsets that the steps before led to (`feature_sums`). Delivered is
the team's network with new statistics, in its batch normalisations or as affine maps of the channels; or with corrected
class frequencies; or as it was.
"""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.progress import Reporter
from dpswd.public_client.extractor.adapter_layers import FeatureAffine
from dpswd.public_client.extractor.made_records import made_records
from dpswd.public_client.normalisation.columns import MOST, Columns, record_passes
from dpswd.public_client.normalisation.conversation import BACK, DRAWS, Asked, Conversation
from dpswd.public_client.normalisation.reference import Labels, Values
from dpswd.public_client.normalisation.verdict import Verdict, moves_in_words
from dpswd.public_client.plans.declarable import Declarable
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import RunTerms, not_one_of
from dpswd.public_client.probes.probes import AT_ONCE, INPUT, Place, Probed, find_places, statistics_of
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.loop import Training, write_histories
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.run import Release
from dpswd.public_client.training.sites import Group, Model, Site
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.feature_sums.mechanism import FEATURE_SUMS, SumsDeclaration, SumsReply, SumsRequest
from dpswd.shared.core.mechanisms.interface import Payload

_log = logging.getLogger(__name__)

UNCHANGED = "kept"
_MADE_RECORDS = 8  # of which the sizes of a network's layers are found, for a price
_TRIED = 128, 1000  # records by which it is tried whether moves are better undone, as many as have
_VALUES, _LARGE, _NUMBERS = 2**21, 10_000, 2**26  # together; of a record whose passes take long; of all statistics


@dataclass(frozen=True, kw_only=True)
class Normalisation(Method):
    """New statistics of a network's layers, from noised sums over all records; no labels are read.

    Attributes:
        asks: "first": one release of all layers, which tells whether class frequencies or channels have changed;
            "layers": one release for each layer; "all": both in one run.
        moves: for "layers", how far each layer is thought to have moved (`Conversation.moves` of a first pass).
    """

    name = "normalisation"
    mechanism = FEATURE_SUMS
    puts_back = True
    suits = "for networks with layers to normalise, whose inputs look otherwise at the hospital: noise, blur, contrast"

    asks: Literal["all", "first", "layers"] = "all"
    moves: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "moves", tuple(self.moves))  # a list where it comes from JSON
        super().__post_init__()

    def problems(self) -> list[str]:
        return [*super().problems(), *not_one_of(self, "asks", ("all", "first", "layers"))]

    def declaration(self, run: RunTerms) -> Payload:
        """See `Recipe`: one replaced record moves a sum by at most 1."""
        return SumsDeclaration(sigma=run.noise, parameters=run.names, feature_map=run.feature_map)

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        return "" if self.asks == "first" else "the statistics of the network's layers, or the classes' frequencies"

    def record_passes(self, record_shape: tuple[int, ...] | None) -> int:
        """See `Method`: moves of columns and of channels, and statistics of large images. They go forward alone."""
        shape = record_shape or ()
        if len(shape) in (1, 2) and self.asks != "layers":
            return record_passes(min(shape) if min(shape) <= MOST[len(shape)] else 1) // 3
        return (self.source_records + 2 * DRAWS * _TRIED[0]) // 3 if math.prod(shape) > _LARGE else 0

    def declarable(
        self, extractor: nn.Module, record_shape: tuple[int, ...], classifier: nn.Module | None = None
    ) -> Declarable:
        """See `Method`, as far as the price goes: sizes are right, centers and spreads are not yet the source's.

        Raises:
            InvalidValue: the classifier is not given, or there is nothing to move.
        """
        if classifier is None:
            raise InvalidValue("normalisation asks with the classifier too; plan with extractor and classifier")
        whole = _whole(extractor, classifier)
        places = find_places(whole, made_records(whole, (_MADE_RECORDS, *record_shape)))
        return self.ready(Probed(whole, places), record_shape)

    def ready(self, probed: Probed, record_shape: tuple[int, ...]) -> Declarable:
        """The probed network as it travels; its plan has as many steps as there are questions."""
        plain = Declarable.of(probed, record_shape)
        layers, first, single = probed.layers, int(probed.first is not None), probed.probes[0].place.single
        moved = probed.adapted_names()[: 2 * first if self.asks == "first" else None]
        names = tuple(name for name in moved if name in plain.graph.parameter_shapes)
        # First questions move columns alone. Then: one for each layer, one for what lies far. Two look back.
        glance, every = (4 if single else BACK) * first + 1, (3 * layers + 1) // 2 + BACK
        steps = {"first": glance, "layers": layers + first + BACK, "all": every}
        return _Questions(plain.graph, plain.weights, names, steps=steps[self.asks]).of_copy(probed)

    def asked(self, plan: Plan, sigma: float, probed: Probed) -> Asked:
        """What is asked in an open run of this plan: with few steps neighbouring layers in one question."""
        layers, signals = probed.layers, len(plan.record_shape) == 2 or plan.record_shape[0] > MOST[0]
        back = BACK if plan.steps > BACK and probed.is_network and (signals or self.asks != "first") else 0
        steps = plan.steps - back
        first = {"first": steps, "layers": 0, "all": max(steps - layers, -(-steps // 3))}[self.asks]
        groups = min(layers, left := steps - first)
        return Asked(first, groups, left - groups, back, self.moves, records=plan.batch_size, sigma=sigma)

    def begin(self, group: Group, training: Training) -> None:
        """See `Method`: one graph for all sites, one network each."""
        model = _whole(training.model.extractor, training.model.classifier)
        shown = training.shown(self.source_records)
        records, labels = shown.images.cpu(), shown.labels.cpu()
        stored = group.store.read("layers") if group.store is not None else None
        places = find_places(model, records[:AT_ONCE]) if stored is None else [Place(**at) for at in stored["places"]]
        if self.moves and len(self.moves) != len(places):
            raise InvalidValue(f"moves names {len(self.moves)} layers; this network has {len(places)}")
        probed, at_input = Probed(model, tuple(places)), places[0].path == INPUT
        few = min(max(_TRIED[0], _VALUES // records[0].numel()), _TRIED[1])
        if stored is None:
            part = _evenly(len(records), max(_TRIED[1], _NUMBERS // sum(2 * place.channels for place in places)))
            records, labels = records[part], labels[part]
            stored = {"places": list(map(asdict, places)), "vectors": statistics_of(probed, records), "labels": labels}
            stored["records"] = records if at_input else records[_evenly(len(records), few)]
            if group.store is not None:
                # What a training that goes on must not compute anew: of other source records it would be another.
                group.store.write("layers", stored)
        vectors, labels, records = stored["vectors"], stored["labels"], stored["records"]
        work = (ready := self.ready(probed, group.record_shape())).graph.cost.work
        chosen = _evenly(len(labels), few)
        tried = (records if len(records) < len(labels) else records[chosen]), labels[chosen].numpy()
        source = vectors.double().numpy(), labels.numpy(), tried

        def run(site: Site) -> LayersRun:  # a probe holds what it saw last: each site has its own
            columns = Columns(copy.deepcopy(probed), records, source[1], work) if at_input else None
            return LayersRun(site.curator, ready, site.plan, probed, source, columns, checkpoint=site.store).open()

        group.charge_each(run)

    def fit(self, group: Group, training: Training) -> None:
        """See `Method`; each site's network is its own."""
        conversations = training.read_each(group, "layers", lambda site, bar: site.run_of(LayersRun).converse(bar))
        for site in group.live:
            _install(site, conversations[site.name], site.run_of(LayersRun).probed, training)
        write_histories(group)


@dataclass(frozen=True, eq=False)
class _Questions(Declarable):
    """A probed network, with the number of questions that it takes."""

    steps: int = 1

    def sized(self, plan: Plan) -> Plan:
        """See `Declarable`; one step is what is planned before the network is known."""
        return super().sized(replace(plan, steps=self.steps) if plan.steps == 1 else plan)


class LayersRun(Release[SumsReply]):
    """A run of layers' statistics. See `Release`.

    Args:
        probed: the network, of which the run takes a copy.
        source: (m, d) statistics of public records under it, their classes (m,), and what a conversation tries.
        columns: of these records, where they can be moved for themselves.

    Attributes:
        conversation: what was asked and found, once `converse` has begun.
    """

    def __init__(
        self, curator: Curator, ready: Declarable, plan: Plan, probed: Probed,
        source: tuple[Values, Labels, tuple[Tensor, Labels]], columns: Columns | None = None, *,
        checkpoint: Checkpoint | None = None,
    ) -> None:  # fmt: skip
        self.probed = copy.deepcopy(probed)
        self.conversation: Conversation | None = None
        self._source, self._columns = source, columns
        super().__init__(curator, ready.of_copy(self.probed), plan, checkpoint=checkpoint)

    def converse(self, bar: Reporter) -> Conversation:
        """Asks until nothing is left to ask; a resumed run begins with the answers that it has.

        Args:
            bar: told of every answer.
        """
        method = self.plan.method
        assert isinstance(method, Normalisation), "this method opened it"
        asked = method.asked(self.plan, self.declared.sigma, self.probed)
        talk = self.conversation = Conversation(self.probed, *self._source, asked, self._columns)
        questions, number = talk.questions(), 0
        question = next(questions, None)
        while question is not None and (number < len(self.answers) or self.left > 0):
            if number == len(self.answers):
                self.ask(SumsRequest(self.adapted_values(), question))
            try:
                question = questions.send(self.answers[number].reply.sum.to_numpy())
            except StopIteration:
                question = None
            number += 1
            bar.advance("")
        return talk


def _evenly(count: int, most: int) -> slice:
    """So many of them at most, from all parts of the source."""
    return slice(None, None, -(-count // most))


def _delivered(talk: Conversation, probed: Probed, record_shape: tuple[int, ...]) -> tuple[Model | None, str]:
    """What a site is given after a conversation, None where its model is kept, and why."""
    verdict, (first, whole) = talk.verdict, probed.delivered()
    extractor, classifier = whole.children()
    model = Model(extractor if first is None else nn.Sequential(first, extractor), classifier)
    if verdict is not None and verdict.frequencies is not None:
        scores = int(model.classifier(model.extractor(torch.zeros(2, *record_shape))).shape[1])
        return Model(model.extractor, nn.Sequential(model.classifier, _correction(verdict, scores))), str(verdict)
    if not any(layer.mean or layer.deviation for layer in talk.layers):
        return None, str(verdict) if verdict is not None else "no layer has moved, so far as the release tells"
    far = moves_in_words(talk.layers)
    if not talk.helps:
        return None, f"channels have moved {far}; to undo what is known of it is not expected to help"
    return model, f"its layers' statistics are the hospital's now; channels had moved {far}"


def _correction(verdict: Verdict, scores: int) -> FeatureAffine:
    """Adds to the scores what other class frequencies mean for them."""
    assert verdict.frequencies is not None, "asked where they have changed"
    made = FeatureAffine(scores)
    with torch.no_grad():
        by = torch.from_numpy(np.log(verdict.frequencies) - np.log(verdict.before))
        made.bias[torch.from_numpy(verdict.kinds)] = by.to(made.bias)
    return made.requires_grad_(False)


def _install(site: Site, talk: Conversation, probed: Probed, training: Training) -> None:
    model, finding = _delivered(talk, probed, site.plan.record_shape)
    if model is None:
        site.outcome, model = UNCHANGED, training.model
    moved = Model(model.extractor.to(training.device).eval(), model.classifier.to(training.device).eval())
    training.deliver(site, moved, finding)


def _whole(extractor: nn.Module, classifier: nn.Module) -> nn.Sequential:
    return nn.Sequential(copy.deepcopy(extractor), copy.deepcopy(classifier)).cpu().eval()
