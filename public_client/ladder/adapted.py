"""What a climb reached: the model, what was asked for it, and what is said of both."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.data.checks import require_records
from dpswd.public_client.evidence.certificate import certified
from dpswd.public_client.evidence.evidence import Evidence
from dpswd.public_client.ladder import words
from dpswd.public_client.ladder.rungs import LABELS, Ladder
from dpswd.public_client.methods.comparison import Asked, Comparison
from dpswd.public_client.methods.normalisation import UNCHANGED
from dpswd.public_client.plans.measured import measured_alike
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.replay.verdict import UNEXPLAINED
from dpswd.public_client.training.saved_model import save_adapted
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.errors import DpswdError, InvalidValue, PrivacyError, rounded

_log = logging.getLogger(__name__)
_COMPARISON = "comparison.json"
OWN, CHANGED = "own", "changed"
"""Models of a comparison; the team's own wins a draw."""
SEEN = "channels moved"
"""The outcome of a glance that calls for other rungs."""


@dataclass(frozen=True)
class Answer:
    """What one rung brought.

    Attributes:
        rung: its name.
        outcome: of its method: "adapted", "kept", "priors corrected", `SEEN`, `UNEXPLAINED`, ...
        plain: why, in one plain clause.
        finding: why, with the evidence.
        epsilon: charged for it, alone.
        changed: whether the model is another one after it.
    """

    rung: str
    outcome: str
    plain: str
    finding: str
    epsilon: float
    changed: bool


@dataclass
class Adapted:
    """A hospital's model: the team's own, or a better one for that hospital.

    Attributes:
        ladder: what could be asked, and its price.
        model: extractor and classifier, in evaluation mode.
        answers: what was asked, in order.
        ended: why the ladder ended before its last rung; empty where it did not.
        comparison: with the team's own model on the hospital's labels, where it was asked for.
        not_compared: why there is none although it was asked for; the changed model is delivered.
        lost: why a hospital among several was not asked to the end of its first rung; its model is the team's own.
        evidence: makes what the model follows from; None where nothing was recorded.
        credentials: of the connection; their key signs the certificate.
    """

    ladder: Ladder
    model: Model
    answers: list[Answer] = field(default_factory=list)
    ended: str = ""
    comparison: Comparison | None = None
    not_compared: DpswdError | None = None
    lost: DpswdError | None = None
    evidence: Callable[[], Evidence] | None = None
    credentials: Path | None = None

    @property
    def outcome(self) -> str:
        """`CHANGED`, `KEPT`, or `UNEXPLAINED`: something was seen that nothing explains, and the model is kept."""
        if any(answer.changed for answer in self.answers):
            return CHANGED if self.comparison is None or self.comparison.winner == CHANGED else UNCHANGED
        by_labels = bool(self.answers) and self.answers[-1].rung == LABELS
        seen = any(answer.outcome in (SEEN, UNEXPLAINED) for answer in self.answers)
        return UNEXPLAINED if seen and not by_labels else UNCHANGED

    @property
    def changed(self) -> bool:
        """Whether this is another model than the team's."""
        return self.outcome == CHANGED

    @property
    def module(self) -> nn.Module:
        """From records to scores, in evaluation mode."""
        return self.model.whole()

    def predict(self, records: Any) -> Tensor:
        """Classes of records (n, ...), a tensor, an array or a data frame: (n,) int64.

        Raises:
            DataInvalid: the records are of another shape than the hospital's.
        """
        module = self.module
        device = next(iter(module.parameters()), torch.zeros(0)).device
        with torch.no_grad():
            own = records if isinstance(records, Tensor) else torch.from_numpy(np.array(records, dtype=np.float32))
            require_records(own, self.plan.record_shape)
            scores: Tensor = module(own.to(device))
        return scores.argmax(dim=1)

    def compare(self, own: Model, hospital: Hospital, *, directory: Path | None = None) -> None:
        """Compares with the team's own model by one private evaluation, **which is charged**, and delivers the winner.

        Args:
            own: the team's model.
            hospital: with labels.
            directory: keeps what was asked, so that a repeat is not charged again.
        """
        models = {OWN: own, CHANGED: self.model}
        path = None if directory is None else directory / _COMPARISON
        assert self.ladder.comparison is not None, "planned before anything was asked"
        try:
            if path is not None and path.exists():
                asked = Asked.from_json(json.loads(path.read_text(encoding="utf-8")))
            else:
                whole = {name: copy.deepcopy(model).whole().cpu() for name, model in models.items()}
                asked = Asked.of(hospital.curator, whole, self.ladder.comparison, charged=True)
                if path is not None:
                    path.write_text(json.dumps(asked.to_json()), encoding="utf-8")
            self.comparison = asked.answered(hospital.curator)
        except DpswdError as error:  # what was paid for is not lost with it
            self.not_compared = error
            _log.warning("the models were not compared, and the changed one is delivered: %s", error)
            return
        self.model = models[self.comparison.winner]

    def save(self, path: str | Path) -> Path:
        """Writes the model to one file, graphs and weights (`load_adapted`).

        Beside it stand its certificate, which is in the file as well, and its evidence (`check`).

        Args:
            path: of the file.
        """
        path, shape = Path(path), self.plan.record_shape
        own = self.model.extractor.cpu(), self.model.classifier.cpu()
        certify = self.evidence and certified(path, self.evidence(), self.credentials, self.comparison)
        save_adapted(path, extractor=own[0], classifier=own[1], record_shape=shape, plan=self.plan, certify=certify)
        return path

    @property
    def plan(self) -> Plan:
        """Of the last rung that was asked."""
        return self.ladder.plans[self.answers[-1].rung if self.answers else next(iter(self.ladder.plans))]

    def reports(self, site: str) -> list[dict[str, Any]]:
        """Of each question, plain values in the form of `DomainAdaptation.reports`.

        Args:
            site: the team's name for the hospital.
        """
        state, reason, answers = "finished", None, self.answers
        if self.lost is not None:
            state = "refused" if isinstance(self.lost, (PrivacyError, InvalidValue)) else "set aside"
            reason, answers = f"{type(self.lost).__name__}: {self.lost}", [Answer("", "", "", "", 0.0, False)]
        rows = []
        for answer in answers:
            steps = 0 if self.lost is not None else self.ladder.plans[answer.rung].steps
            row = {"site": site, "state": state, "steps": steps, "planned_steps": steps, "reason": reason}
            row |= {name: getattr(answer, name) for name in ("rung", "outcome", "plain", "finding")}
            compared = None if self.not_compared is None else str(self.not_compared)
            rows.append(row | {"charged_epsilon": answer.epsilon, "not_compared": compared})
        return rows

    def explain(self) -> str:
        """The evidence of each question: odds, nats, and what they leave."""
        lines = [f"  {answer.rung:<8} {answer.outcome}; {answer.finding}" for answer in self.answers]
        return "\n".join(["What the answers are made of:", *lines])

    def __str__(self) -> str:
        """One plain sentence, what to expect, and then what was asked."""
        asked = [f"  {one.rung:<8} epsilon {rounded(one.epsilon, up=True)} alone: {one.plain}" for one in self.answers]
        lines = [f"{self._head()}.", *self._expected(), *asked]
        if unasked := [name for name in self.ladder.plans if name not in {answer.rung for answer in self.answers}]:
            why = f" ({self.ended})" if self.ended else ""
            lines.append(f"  not asked, and not charged: {', '.join(unasked)}{why}")
        return "\n".join(lines)

    def _head(self) -> str:
        where = self.ladder.hospital
        if self.lost is not None:
            return f"{where} was left out, and your model stays as it is: {type(self.lost).__name__}: {self.lost}"
        if self.changed:
            return f"Your model was changed for {where}: {'; '.join(a.plain for a in self.answers if a.changed)}"
        if self.outcome == UNEXPLAINED:
            seen = [answer.plain for answer in self.answers if answer.outcome in (SEEN, UNEXPLAINED)]
            return f"Your model is kept for {where}, and may be worse there: {seen[-1]}; {words.UNEXPLAINED}"
        if self.comparison is not None:
            return f"Your model is kept for {where}: a changed one is no better on the hospital's labels"
        return f"Your model is kept for {where}: {self.answers[-1].plain if self.answers else self.ended}"

    def _expected(self) -> list[str]:
        """A gain where it was measured, here or on such data; else that it was not."""
        if self.comparison is not None:
            return [f"Measured: {self.comparison}."]
        if not self.changed:
            return []
        if self.not_compared is not None:
            return [f"Expect: not measured, as the models could not be compared ({self.not_compared})."]
        if self.answers[-1].rung == LABELS and self.answers[-1].changed:
            return []  # its own clause says what to expect, from the hospital's labels
        if (alike := measured_alike(self.plan)) is not None:
            return [f"Expect: not measured at this hospital; on data like yours, {alike}."]
        measurable = "; --evaluate-epsilon measures it on the hospital's labels"
        return [f"Expect: not measured{measurable if LABELS in self.ladder.plans else ', for want of labels there'}."]


class AdaptedEach(dict[str, Adapted]):
    """What several hospitals were given, by the team's names for them."""

    def save(self, path: str | Path) -> list[Path]:
        """As `Adapted.save`, to NAME-SITE where there are several; not of hospitals that were left out."""
        path, several = Path(path), len(self) > 1
        named = {name: path.with_stem(f"{path.stem}-{name}") if several else path for name in self}
        return [own.save(named[name]) for name, own in self.items() if own.lost is None]

    def __str__(self) -> str:
        """Which were changed, and then each."""
        whose = {what: [n for n, own in self.items() if own.changed is (what == CHANGED)] for what in (CHANGED, "kept")}
        summary = "; ".join(f"{what} for {', '.join(names)}" for what, names in whose.items() if names)
        return "\n".join([f"Your model was {summary}.", *map(str, self.values())])
