"""`adapt`: a team brings a model, a source and an epsilon, and gets the best model for that hospital, or its own."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.federation import Federation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.adaptation.published import PublishedHospital
from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.data.source import collect
from dpswd.public_client.ladder.pricing import priced_together
from dpswd.public_client.ladder.rungs import (
    GLANCE,
    LAYERS,
    RUNGS,
    VIEWS,
    Ladder,
    applicable,
    sized_plan,
)  # fmt: skip
from dpswd.public_client.ladder.whole_model import as_batches, split
from dpswd.public_client.methods.comparison import Asked, Comparison, plan_comparison
from dpswd.public_client.methods.normalisation import KEPT, LayersRun, Normalisation
from dpswd.public_client.normalisation.conversation import Conversation
from dpswd.public_client.normalisation.verdict import UNDECIDED
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.training.logs import Recorder
from dpswd.public_client.training.loop import Evaluate
from dpswd.public_client.training.saved_model import save_adapted
from dpswd.public_client.training.sites import ALONE, Model, Site
from dpswd.shared.core.errors import DataInvalid, InvalidValue, PrivacyError, ProtocolError
from dpswd.shared.devices import resolve_device
from dpswd.shared.protocol.contract import DataContract

_log = logging.getLogger(__name__)
_SHOWN = 256  # source records by which a model is split and its layers are found
_LADDER, _COMPARISON = "ladder.json", "comparison.json"
OWN, CHANGED = "own", "changed"
"""Models of a comparison; the team's own wins a draw."""


@dataclass(frozen=True)
class Answer:
    """What one rung brought.

    Attributes:
        rung: its name.
        outcome: of its method: "adapted", "kept", "priors corrected", ...
        finding: why, in words.
        epsilon: charged for it, alone.
        changed: whether the model is another one after it.
    """

    rung: str
    outcome: str
    finding: str
    epsilon: float
    changed: bool


@dataclass
class Adapted:
    """A hospital's model: the team's own, or a better one for that hospital.

    Attributes:
        ladder: what could be asked, and its price.
        answers: what was asked, in order.
        model: extractor and classifier, in evaluation mode.
        ended: why the ladder ended before its last rung; empty where it did not.
        comparison: with the team's own model on the hospital's labels, where it was asked for.
    """

    ladder: Ladder
    model: Model
    answers: list[Answer] = field(default_factory=list)
    ended: str = ""
    comparison: Comparison | None = None

    @property
    def changed(self) -> bool:
        """Whether this is another model than the team's."""
        return any(answer.changed for answer in self.answers)

    @property
    def module(self) -> nn.Module:
        """From records to scores, in evaluation mode."""
        return self.model.whole()

    def predict(self, records: Tensor) -> Tensor:
        """Classes of records (n, ...): (n,) int64."""
        device = next(iter(self.module.parameters()), torch.zeros(0)).device
        with torch.no_grad():
            scores: Tensor = self.module(records.to(device))
        return scores.argmax(dim=1)

    def compare(self, own: Model, hospital: Hospital, *, epsilon: float, directory: Path | None = None) -> None:
        """Compares with the team's own model by one private evaluation, **which is charged**, and delivers the winner.

        Args:
            own: the team's model.
            hospital: with labels.
            epsilon: that it may cost alone.
            directory: keeps what was asked, so that a repeat is not charged again.

        Raises:
            BudgetExhausted: there is no room for it; nothing was spent.
            InvalidValue: the hospital evaluates nothing.
        """
        models = {OWN: own, CHANGED: self.model}
        path = None if directory is None else directory / _COMPARISON
        if path is not None and path.exists():
            asked = Asked.from_json(json.loads(path.read_text(encoding="utf-8")))
        else:
            whole = {name: copy.deepcopy(model).whole().cpu() for name, model in models.items()}
            told = hospital.describe()
            asked = Asked.of(hospital.curator, whole, plan_comparison(told, len(whole), epsilon=epsilon))
            if path is not None:
                path.write_text(json.dumps(asked.to_json()), encoding="utf-8")
        self.comparison = asked.answered(hospital.curator)
        self.model = models[self.comparison.winner]

    def save(self, path: str | Path) -> Path:
        """Writes the model to one file, graphs and weights (`load_adapted`).

        Args:
            path: of the file.
        """
        plan = self.ladder.plans[self.answers[-1].rung if self.answers else next(iter(self.ladder.plans))]
        save_adapted(
            Path(path),
            extractor=self.model.extractor.cpu(),
            classifier=self.model.classifier.cpu(),
            record_shape=plan.record_shape,
            plan=plan,
        )
        return Path(path)

    def reports(self, site: str) -> list[dict[str, Any]]:
        """Of each question, plain values in the form of `DomainAdaptation.reports`.

        Args:
            site: the team's name for the hospital.
        """
        found = []
        for answer in self.answers:
            steps = self.ladder.plans[answer.rung].steps
            own = {"site": site, "rung": answer.rung, "state": "finished", "steps": steps, "planned_steps": steps}
            own |= {"outcome": answer.outcome, "finding": answer.finding, "charged_epsilon": answer.epsilon}
            found.append(own | {"reason": None, "not_compared": None})
        return found

    def __str__(self) -> str:
        """One plain sentence, then what was asked and what it brought."""
        told = [answer for answer in self.answers if answer.changed]
        if told:
            head = f"Your model was changed for {self.ladder.hospital}: {told[0].finding}."
        else:
            head = f"Your model is kept for {self.ladder.hospital}: {self._why_kept()}."
        lines = [head, self._gain()]
        lines += [
            f"  {answer.rung:<8} epsilon {answer.epsilon:.3f} alone: {answer.outcome}; {answer.finding}"
            for answer in self.answers
        ]
        unasked = [name for name in self.ladder.plans if name not in {answer.rung for answer in self.answers}]
        if unasked:
            lines.append(
                f"  not asked, and not charged: {', '.join(unasked)}{f' ({self.ended})' if self.ended else ''}"
            )
        return "\n".join(lines)

    def _gain(self) -> str:
        if self.comparison is not None:
            return f"{self.comparison}: {self.comparison.winner} is delivered"
        return "What this gains there was not measured; an evaluation measures it for an epsilon of its own."

    def _why_kept(self) -> str:
        return self.answers[-1].finding if self.answers else self.ended or "there was nothing to ask"


def plan_ladder(
    model: Any,
    source: Any,
    hospital: Hospital,
    *,
    epsilon: float = 1.0,
    head: str | None = None,
    label: str | None = None,
) -> Ladder:
    """What `adapt` would ask and what it would cost at most; nothing is spent.

    Args:
        model: see `adapt`, as the rest.
        source: the team's.
        hospital: to be asked.
        epsilon: that all rungs together may cost.
        head: see `adapt`.
        label: see `adapt`.

    Returns:
        The rungs with their plans; ``print`` shows a recommendation and the prices.

    Raises:
        InvalidValue: the hospital can be asked nothing for such a model, or epsilon is too small; nothing was spent.
    """
    batches = as_batches(source, label=label)
    records = collect(batches, most=_SHOWN).images
    return ladder_for(
        split(model, records, head=head), hospital, record_shape=tuple(records.shape[1:]), epsilon=epsilon
    )


def ladder_for(model: Model, hospital: Hospital, *, record_shape: tuple[int, ...], epsilon: float) -> Ladder:
    """The ladder of a model in two parts; see `plan_ladder`.

    Args:
        model: the team's.
        hospital: to be asked.
        record_shape: of one source record.
        epsilon: that all rungs together may cost.

    Raises:
        DataInvalid: the hospital's records have another shape.
        InvalidValue: see `plan_ladder`.
    """
    told = hospital.describe()
    if record_shape != told.record_shape:
        raise DataInvalid(
            f"the source's records have shape {record_shape}, those of {told.data_set} {told.record_shape}"
        )
    if isinstance(hospital, PublishedHospital):
        plan = hospital.plan()
        return Ladder({VIEWS: plan}, plan.epsilon, {}, told.data_set)
    device = next(model.extractor.parameters(), torch.zeros(0)).device
    with torch.no_grad():
        classes = int(model.whole()(torch.zeros(2, *record_shape, device=device)).shape[1])
    rungs, left_out = applicable(told, model, classes=classes)
    if not rungs:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise InvalidValue(f"{told.data_set} can be asked nothing for this model ({why}); nothing was spent")
    plans = {name: sized_plan(told, rung.method, model, epsilon=epsilon) for name, rung in rungs.items()}
    shares = {name: rung.share for name, rung in rungs.items()}
    return Ladder(priced_together(told, plans, shares, epsilon=epsilon), epsilon, left_out, told.data_set)


def adapt(
    model: Any,
    source: Any,
    hospital: Hospital | Mapping[str, Hospital] | Federation,
    *,
    epsilon: float | Mapping[str, float] = 1.0,
    head: str | None = None,
    label: str | None = None,
    contract: DataContract | None = None,
    directory: str | Path | None = None,
    device: str = "auto",
    seed: int = 0,
    evaluate_epsilon: float | None = None,
    evaluate: Evaluate | Mapping[str, Evaluate] | None = None,
    log: Recorder | None = None,
    progress: bool = True,
) -> Any:
    """Adapts a trained model to a hospital: asks the cheapest thing that may help, and goes on while it pays.

    Args:
        model: trained: an `nn.Module` from records to scores, a pair (extractor, classifier), or a fitted classifier of
            scikit-learn, LightGBM or XGBoost. It stays as it is.
        source: its labelled public data: a loader of (records, labels), a pair of arrays, a data frame, a generator.
        hospital: the connection, a published release, or several by name: each is asked by itself.
        epsilon: that all questions together may cost at each hospital, or by its name; what is not asked is not
            charged.
        head: path of the model's last linear layer, where it is not found.
        label: column of the labels, where the source is a data frame.
        contract: what the team declares of its source, compared with the hospital's before anything is charged.
        directory: keeps requests and answers; called again with it, what was charged is not charged again.
        device: "auto", "cpu" or "cuda".
        seed: of the client's random choices.
        evaluate_epsilon: what one private comparison with the team's own model may cost beside epsilon, where the
            hospital has labels and the model was changed; the better one is delivered.
        evaluate: for rehearsals, where the target's labels are at hand; by site where there are several.
        log: told of every step.
        progress: shows bars.

    Returns:
        `Adapted`; for several hospitals a dictionary of them by name.

    Raises:
        InvalidValue, DataInvalid: the model or the source does not fit; nothing was spent.
        BudgetExhausted: the first question is refused; nothing was spent.
    """
    batches = as_batches(source, label=label, seed=seed)
    records = collect(batches, most=_SHOWN).images
    start = split(model, records, head=head)
    several = hospital.hospitals if isinstance(hospital, Federation) else hospital
    named = {"": several} if isinstance(several, Hospital) else dict(several)
    found = {}
    for name, own in named.items():
        kept = None if directory is None else Path(directory)
        if kept is not None and name not in ("", ALONE):
            kept = kept / "sites" / name
        climb = _Climb(start, batches, own, contract=contract, directory=kept, device=device, seed=seed)
        climb.evaluate = evaluate.get(name or ALONE) if isinstance(evaluate, Mapping) else evaluate
        climb.log, climb.progress = log, progress
        shape = tuple(records.shape[1:])
        ladder = _kept_ladder(kept, own) or ladder_for(start, own, record_shape=shape, epsilon=_of(epsilon, name))
        found[name] = climb.climbed(ladder)
        if evaluate_epsilon is not None and found[name].changed:
            found[name].compare(start, own, epsilon=evaluate_epsilon, directory=kept)
    return found[""] if isinstance(several, Hospital) else found


def _of(epsilon: float | Mapping[str, float], name: str) -> float:
    return epsilon[name or ALONE] if isinstance(epsilon, Mapping) else epsilon


class _Climb:
    """One hospital's."""

    def __init__(
        self,
        start: Model,
        batches: Batches,
        hospital: Hospital,
        *,
        contract: DataContract | None,
        directory: Path | None,
        device: str,
        seed: int,
    ) -> None:
        self._start, self._batches, self._hospital = start, batches, hospital
        self._contract, self._directory, self._device, self._seed = contract, directory, device, seed
        self.evaluate: Evaluate | None = None
        self.log: Recorder | None = None
        self.progress = True
        self._moves: tuple[float, ...] | None = None

    def climbed(self, ladder: Ladder) -> Adapted:
        """Asks rung after rung.

        Raises:
            DpswdError: of the first rung; a later one ends the ladder with what it has.
        """
        self._keep(ladder)
        device = resolve_device(self._device)
        start = Model(self._start.extractor.to(device).eval(), self._start.classifier.to(device).eval())
        reached = Adapted(ladder, start)
        skipped: set[str] = set()
        for name, planned in ladder.plans.items():
            if name in skipped:
                continue
            plan = self._plan(name, planned)
            try:
                site = self._asked(name, plan, reached.model)
            except (ProtocolError, PrivacyError) as error:
                if not reached.answers:
                    raise
                reached.ended = f"the hospital answers no further: {error}"
                _log.warning("%s: %s", name, reached.ended)
                break
            skipped |= self._taken(name, site, reached)
        return reached

    def _plan(self, name: str, plan: Plan) -> Plan:
        """Layers are clipped by how far the glance saw them move."""
        if name != LAYERS or self._moves is None:
            return plan
        assert isinstance(plan.method, Normalisation)
        return replace(plan, method=replace(plan.method, moves=self._moves))  # moves do not enter the price

    def _asked(self, name: str, plan: Plan, model: Model) -> Site:
        adaptation = DomainAdaptation(
            model.extractor,
            model.classifier,
            hospital=self._hospital,
            plan=plan,
            contract=self._contract,
            device=self._device,
            seed=self._seed,
            source_epochs=0,
        )
        adaptation.fit(
            self._batches,
            evaluate=self.evaluate,
            checkpoint=None if self._directory is None else self._directory / name,
            log=self.log,
            progress=self.progress,
        )
        (site,) = adaptation.sites.values()
        return site

    def _taken(self, name: str, site: Site, reached: Adapted) -> set[str]:
        """Takes a rung's answer, and says which rungs it makes needless."""
        changed = site.outcome != KEPT
        charged = 0.0 if site.plan.published else site.run.run.quote.epsilon
        reached.answers.append(Answer(name, site.outcome, site.finding, charged, changed))
        if changed and site.model is not None:
            reached.model = site.model
        if name != GLANCE:
            return set()
        talk = _heard(site)
        assert talk.verdict is not None, "a glance asks for it"
        if talk.verdict.channels:
            self._moves = talk.moves
            return set()
        if talk.verdict.outcome == UNDECIDED:  # a release of another kind may tell
            return {LAYERS}
        reached.ended = str(talk.verdict)
        return {LAYERS, VIEWS}

    def _keep(self, ladder: Ladder) -> None:
        """What a climb that goes on must not plan anew: prices would be of what is left."""
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / _LADDER
        if not path.exists():
            path.write_text(json.dumps(ladder.to_json()), encoding="utf-8")


def _kept_ladder(directory: Path | None, hospital: Hospital) -> Ladder | None:
    """The ladder of a climb that was begun in the directory."""
    if directory is None or not (directory / _LADDER).exists() or isinstance(hospital, PublishedHospital):
        return None
    kept = json.loads((directory / _LADDER).read_text(encoding="utf-8"))
    kinds = {rung.name: type(rung.method) for rung in RUNGS}
    plans = {name: Plan.from_json(plan, method=kinds[name]) for name, plan in kept["plans"].items()}
    return Ladder(plans, kept["epsilon"], kept["left_out"], kept["hospital"])


def _heard(site: Site) -> Conversation:
    """What was said in a run of layers' statistics."""
    assert isinstance(site.run, LayersRun), "the rung's method opened it"
    assert site.run.conversation is not None, "the method has fitted"
    return site.run.conversation
