"""`adapt`: a team brings a model, a source and an epsilon, and gets the best model for that hospital, or its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.federation import Federation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.adaptation.published import PublishedHospital
from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.data.source import collect
from dpswd.public_client.evidence import evidence
from dpswd.public_client.ladder import words
from dpswd.public_client.ladder.adapted import SEEN, Adapted, AdaptedEach, Answer
from dpswd.public_client.ladder.pricing import budgets_of, priced_together
from dpswd.public_client.ladder.rungs import GLANCE, LAYERS, SHARES, VIEWS, Ladder, applicable, declarable, sized_plan
from dpswd.public_client.ladder.whole_model import as_batches, declared, split
from dpswd.public_client.methods.comparison import plan_comparison
from dpswd.public_client.methods.normalisation import LayersRun, Normalisation
from dpswd.public_client.normalisation.inference import AS_IT_IS
from dpswd.public_client.normalisation.verdict import LEAST_LEAD, PEOPLE, UNDECIDED
from dpswd.public_client.plans.declarable import quoted
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.replay.verdict import UNCHANGED, UNEXPLAINED
from dpswd.public_client.training.logs import Recorder
from dpswd.public_client.training.loop import Evaluate
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.sites import ALONE, Model, Site
from dpswd.shared.core.errors import DataInvalid, InvalidValue, PrivacyError, ProtocolError
from dpswd.shared.devices import resolve_device
from dpswd.shared.protocol.contract import DataContract

_log = logging.getLogger(__name__)
_SHOWN = 256  # source records by which a model is split and its layers are found
_LADDER = "ladder.json"
_MODELS = 2  # of a comparison


def plan_ladder(
    model: Any, source: Any, hospital: Hospital, *, epsilon: float = 1.0, head: str | None = None,
    label: str | None = None, evaluate_epsilon: float | None = None,
) -> Ladder:  # fmt: skip
    """What `adapt` would ask and what it would cost at most; nothing is spent.

    Args:
        model: see `adapt`, as the rest.
        source: the team's.
        hospital: to be asked.
        epsilon: that all rungs together may cost.
        head: see `adapt`.
        label: see `adapt`.
        evaluate_epsilon: see `adapt`.

    Returns:
        The rungs with their plans; ``print`` shows a recommendation and the prices.

    Raises:
        InvalidValue: the hospital can be asked nothing for such a model, or epsilon is too small; nothing was spent.
    """
    batches = as_batches(source, label=label, model=model)
    records = collect(batches, most=_SHOWN).images
    start, shape = split(model, records, head=head), tuple(records.shape[1:])
    ladder = ladder_for(start, hospital, record_shape=shape, epsilon=epsilon, evaluate_epsilon=evaluate_epsilon)
    return ladder.timed(start, shape)


def ladder_for(
    model: Model, hospital: Hospital, *, record_shape: tuple[int, ...], epsilon: float,
    evaluate_epsilon: float | None = None,
) -> Ladder:  # fmt: skip
    """The ladder of a model in two parts, and of source records of a shape; see `plan_ladder`.

    Raises:
        DataInvalid: the hospital's records have another shape.
        InvalidValue: see `plan_ladder`.
    """
    facts = hospital.describe()
    if record_shape != facts.record_shape:
        raise DataInvalid(
            f"the source's records have shape {record_shape}, those of {facts.data_set} {facts.record_shape}"
        )
    if isinstance(hospital, PublishedHospital):
        plan = hospital.plan()
        return Ladder({VIEWS: plan}, plan.epsilon, {}, facts.data_set)
    device = next(model.extractor.parameters(), torch.zeros(0)).device
    with torch.no_grad():
        classes = int(model.whole()(torch.zeros(2, *record_shape, device=device)).shape[1])
    rungs, left_out = applicable(facts, model, classes=classes)
    if not rungs:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise InvalidValue(f"{facts.data_set} can be asked nothing for this model ({why}); nothing was spent")
    plans = {name: sized_plan(facts, rung.method, model, epsilon=epsilon) for name, rung in rungs.items()}
    budgets = budgets_of(facts, epsilon=epsilon)
    priced = priced_together(budgets, plans, SHARES, epsilon=epsilon)
    compared = None if evaluate_epsilon is None else plan_comparison(facts, _MODELS, epsilon=evaluate_epsilon)
    return Ladder(priced, epsilon, left_out, facts.data_set, budgets, compared)


def adapt(
    model: Any, source: Any, hospital: Hospital | Mapping[str, Hospital] | Federation, *,
    epsilon: float | Mapping[str, float] = 1.0, head: str | None = None, label: str | None = None,
    contract: DataContract | None = None, directory: str | Path | None = None, device: str = "auto", seed: int = 0,
    evaluate_epsilon: float | None = None, evaluate: Evaluate | Mapping[str, Evaluate] | None = None,
    log: Recorder | None = None, progress: bool = True,
) -> Any:  # fmt: skip
    """Adapts a trained model to a hospital: asks the cheapest thing that may help, and goes on while it pays.

    Args:
        model: trained; `split` says which kinds. It stays as it is.
        source: its labelled public data: a loader of (records, labels), a pair of arrays, a data frame, a generator.
        hospital: the connection, a published release, or several by name: each is asked by itself.
        epsilon: that all questions together may cost at each hospital, or by its name; what is not asked is not
            charged.
        head: path of the model's last linear layer, where it is not found.
        label: column of the labels, where the source is a data frame.
        contract: what the team declares of its source, compared with the hospital's before anything is charged; where
            it names none, a frame's columns, and the classes of an estimator fitted on words or of a loader's folders.
        directory: keeps requests and answers; called again with it, what was charged is not charged again.
        device: "auto", "cpu" or "cuda".
        seed: of the client's random choices.
        evaluate_epsilon: what one private comparison with the team's own model may cost beside epsilon, where the
            hospital has labels and the model was changed; the better one is delivered.
        evaluate: for rehearsals, where the target's labels are at hand; by site where there are several.
        log: told of every step.
        progress: shows bars.

    Returns:
        `Adapted`; for several hospitals `AdaptedEach`, in which those that refuse stand with the reason.

    Raises:
        InvalidValue, DataInvalid: the model or the source does not fit; nothing was spent.
        BudgetExhausted: the first question is refused; nothing was spent. Of several hospitals, every one refuses.
    """
    contract = declared(contract, source, label, model)
    batches = as_batches(source, label=label, seed=seed, model=model)
    batches = evidence.SamePasses(batches, seed) if isinstance(batches, DataLoader) else batches
    start = split(model, records := collect(batches, most=_SHOWN).images, head=head)
    source_digest = evidence.digest_of(batches, seed=seed)
    several = hospital.hospitals if isinstance(hospital, Federation) else hospital
    if not isinstance(several, Hospital | Mapping) or not several:
        raise InvalidValue(f"hospital is {several!r}; needed is a connection, connect(...), or several by name")
    named = {"": several} if isinstance(several, Hospital) else dict(several)
    shape = tuple(records.shape[1:])

    def one(name: str, own: Hospital) -> Adapted:
        folder = None if directory is None else Path(directory)
        if folder is not None and name not in ("", ALONE):
            folder = folder / "sites" / name
        common = {"contract": contract, "device": device, "seed": seed}
        shown = evaluate.get(name or ALONE) if isinstance(evaluate, Mapping) else evaluate
        watching = {"evaluate": shown, "log": log, "progress": progress}
        climb = _Climb(start, batches, own, folder, common, watching)
        asked = epsilon[name or ALONE] if isinstance(epsilon, Mapping) else epsilon
        ladder = _stored_ladder(folder, own)
        with evidence.one_thread(), evidence.recorded(own.curator, folder, begun=ladder is not None) as recording:
            if ladder is None:
                ladder = ladder_for(start, own, record_shape=shape, epsilon=asked, evaluate_epsilon=evaluate_epsilon)
                _require_room(own, ladder, start, asked + (evaluate_epsilon or 0.0))
            reached = climb.climbed(ladder if name in ("", ALONE) else replace(ladder, hospital=name))
            if ladder.comparison is not None and reached.changed:
                reached.compare(start, own, directory=folder)
        if recording is not None:
            settings: dict[str, Any] = {"kind": evidence.LADDER, "epsilon": asked, "evaluate_epsilon": evaluate_epsilon}
            if isinstance(own, PublishedHospital):  # one release, by the plan that the hospital paid for
                paid = reached.plan
                settings |= {"kind": evidence.METHOD, "plan": evidence.plan_text(paid), "epsilon": paid.epsilon}
            settings |= {"batch_size": getattr(source, "batch_size", None), "device": resolve_device(device).type}
            stated = None if contract is None else contract.to_bytes().hex()
            settings |= {"contract": stated, "apart": evidence.by_processes(), "seed": seed}
            parts = (start.extractor, start.classifier)
            reached.evidence = lambda: evidence.Evidence.of(parts, shape, settings, source_digest, recording.content())
            reached.credentials = own.curator.credentials
        return reached

    if len(named) == 1:
        ((name, alone),) = named.items()
        return one(name, alone) if isinstance(several, Hospital) else AdaptedEach({name: one(name, alone)})
    return _each(named, one, Adapted(Ladder({}, 0.0, {}, ""), start))


def _each(named: Mapping[str, Hospital], one: Callable[[str, Hospital], Adapted], own: Adapted) -> AdaptedEach:
    """Hospitals one after the other; one that refuses, or does not answer, leaves the others alone."""
    adapted = AdaptedEach()
    for name, hospital in named.items():
        try:
            adapted[name] = one(name, hospital)
        except (PrivacyError, ProtocolError, DataInvalid, InvalidValue) as error:
            _log.warning("%s is left out: %s", name, error)
            adapted[name] = replace(own, ladder=replace(own.ladder, hospital=name), lost=error)
    lost = [reached.lost for reached in adapted.values() if reached.lost is not None]
    if len(lost) == len(adapted):
        raise lost[0]
    return adapted


def _require_room(hospital: Hospital, ladder: Ladder, model: Model, epsilon: float) -> None:
    """Refuses a climb that would end half-way for want of budget, before its first question.

    Where more is asked than is left by subtraction, the ledger has the last word (runs together cost less than their
    sum), and its operator sees what was refused.

    Raises:
        BudgetExhausted: the ledger would admit no run of the first rung's kind that costs so much; nothing was spent.
    """
    facts = hospital.describe()
    if isinstance(hospital, PublishedHospital) or epsilon <= facts.remaining * (1.0 + 1e-9):
        return
    method = next(iter(ladder.plans.values())).method
    assert isinstance(method, Method), "a rung's method trains"
    whole = sized_plan(facts, method, model, epsilon=epsilon)
    quoted(hospital.curator, declarable(method, model, facts.record_shape), whole, keep_noise=True, required=True)


@dataclass
class _Climb:
    """One hospital's."""

    start: Model
    batches: Batches
    hospital: Hospital
    directory: Path | None
    common: Mapping[str, Any]  # of each rung's training: contract, device, seed
    watching: Mapping[str, Any]  # of each rung's fit: evaluate, log, progress
    moves: tuple[float, ...] | None = None
    looks: str = ""  # what the glance says of the inputs
    names: tuple[str, ...] = ()  # of a table's columns

    def climbed(self, ladder: Ladder) -> Adapted:
        """Asks rung after rung.

        Raises:
            DpswdError: of the first rung; a later one ends the ladder with what it has.
        """
        self._keep(ladder)
        self.names = self.hospital.describe().contract.column_names  # before anything is paid for
        device = resolve_device(self.common["device"])
        start = Model(self.start.extractor.to(device).eval(), self.start.classifier.to(device).eval())
        reached = Adapted(ladder, start)
        skipped: set[str] = set()
        for name in (own for own in ladder.plans if own not in skipped):
            plan = reached.ladder.plans[name]
            if name == LAYERS and self.moves is not None:  # clipped by how far the glance saw them move, at no price
                assert isinstance(plan.method, Normalisation)
                plan = replace(plan, method=replace(plan.method, moves=self.moves))
            try:
                site = self._asked(name, plan, reached.model)
            except (ProtocolError, PrivacyError) as error:
                if not reached.answers:
                    raise
                reached.ended = f"the hospital answers no further: {error}"
                _log.warning("%s: %s", name, reached.ended)
                break
            needless = self._taken(name, site, reached)
            skipped |= needless
            reached.ladder = reached.ladder.without(needless, [answer.rung for answer in reached.answers])
        return reached

    def _asked(self, name: str, plan: Plan, model: Model) -> Site:
        adaptation = DomainAdaptation(
            model.extractor, model.classifier, hospital=self.hospital, plan=plan, source_epochs=0, **self.common
        )
        adaptation.fit(self.batches, checkpoint=self.directory and self.directory / name, **self.watching)
        (site,) = adaptation.sites.values()
        return site

    def _taken(self, name: str, site: Site, reached: Adapted) -> set[str]:
        """Takes a rung's answer, and says which rungs it makes needless."""
        charged = 0.0 if site.plan.published else site.run.run.quote.epsilon
        outcome, plain, needless = site.outcome, site.plain or site.finding, set[str]()
        if name == GLANCE:
            outcome, plain, needless = self._seen(site, VIEWS in reached.ladder.plans)
        elif name == LAYERS and outcome not in UNCHANGED:
            plain = self.looks or plain
        elif name == VIEWS and outcome == "priors corrected" and reached.outcome == UNEXPLAINED:
            # Moved channels explain as much: the frequencies that imitate them would cost more than right ones gain.
            outcome, plain = UNEXPLAINED, "other class frequencies would explain it, and moved channels as well"
        changed = outcome not in (*UNCHANGED, SEEN)
        reached.answers.append(Answer(name, outcome, plain, site.finding, charged, changed))
        if changed and site.model is not None:
            reached.model = site.model
        if needless == {LAYERS, VIEWS}:
            reached.ended = "the glance has told enough"
        return needless

    def _seen(self, site: Site, views: bool) -> tuple[str, str, set[str]]:
        """Outcome of a glance, words for it, and what it makes needless."""
        talk = (run := site.run_of(LayersRun)).conversation
        assert talk is not None and talk.verdict is not None, "the method has fitted"  # noqa: PT018
        slight = not (views or talk.verdict.columns) and max(talk.verdict.evidence.values()) < LEAST_LEAD
        verdict = replace(talk.verdict, outcome=AS_IT_IS) if slight else talk.verdict  # no rung will tell more
        images = len(run.plan.record_shape) == 3
        plain = words.of_glance(verdict, run.probed.probes[0].place, images=images, names=self.names)
        if verdict.channels:
            self.moves, self.looks = talk.moves, plain
            return SEEN, plain, set()
        if verdict.outcome in (UNDECIDED, PEOPLE):  # a release of another kind may tell
            return UNEXPLAINED, plain, {LAYERS}
        return site.outcome, plain, {LAYERS, VIEWS}

    def _keep(self, ladder: Ladder) -> None:
        """What a climb that goes on must not plan anew: prices would be of what is left."""
        if self.directory is not None and not (path := self.directory / _LADDER).exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(ladder.to_json()), encoding="utf-8")


def _stored_ladder(directory: Path | None, hospital: Hospital) -> Ladder | None:
    """The ladder of a climb that was begun in the directory."""
    if directory is None or not (directory / _LADDER).exists() or isinstance(hospital, PublishedHospital):
        return None
    return Ladder.from_json(json.loads((directory / _LADDER).read_text(encoding="utf-8")))
