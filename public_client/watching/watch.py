"""The rounds of a watched model: what is due, what was begun, what came of it; a directory holds all of it.

A round is one evaluation. It is begun in a directory of its own, before anything is charged, so that a killed one goes
on and is charged once. Where the model has become worse, and an experiment is given, that is run: a new training with
its own price on the records as they are, whose model is watched from then on.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import logging
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.experiments.file import read_experiment
from dpswd.public_client.experiments.run import run
from dpswd.public_client.methods.evaluation import Evaluate, accuracy_error, evaluate
from dpswd.public_client.training.checkpoint import begun_in
from dpswd.public_client.training.saved_model import load_adapted
from dpswd.public_client.watching.repeating import REPORT_FILE, REQUEST_FILE, begun_or_new, write_report
from dpswd.shared.core.errors import InvalidValue, RequestInvalid, RunFinished, SettingsError
from dpswd.shared.watching import Change, Round

MODEL_FILE = "model.safetensors"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watched:
    """Where a watch stands.

    Attributes:
        rounds: all of them, of every model, the oldest first.
        change: of the last round from the first one of the same model; None where there are no two.
        due: the day from which the next round is made.
        asked: whether this call made a round.
        model: the file that is watched from now on.
    """

    rounds: tuple[Round, ...]
    change: Change | None
    due: str
    asked: bool
    model: Path

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        change = None if self.change is None else self.change.to_json()
        return asdict(self) | {"change": change, "model": str(self.model)}

    def __str__(self) -> str:
        """The sentence, the rounds, and when the next one is."""
        lines = [str(self.change or "There are no two rounds of this model to compare."), *map(Round.line, self.rounds)]
        made = "A round was made" if self.asked else "Nothing was due"
        return "\n  ".join(lines) + f"\n{made}; the next round of {self.model} is due on {self.due}."


def watch(
    directory: Path, model: Path, hospital: Hospital, evaluation: Evaluate, *, epsilon: float, every: int,
    appended: bool = False, experiment: Path | None = None, today: dt.date | None = None, progress: bool = False,
) -> Watched:  # fmt: skip
    """Makes the round that is due, if one is, and what follows from it.

    Args:
        directory: of this watch, and of no other.
        model: an adapted model's file, the first that is watched.
        hospital: a connection.
        evaluation: what a round releases.
        epsilon: what a round may cost, alone.
        every: days from one round to the next.
        appended: see `Change.between`.
        experiment: is run where the model has become worse; the file of an experiment of one seed at one hospital.
        today: UTC; by the clock where it is left out.
        progress: shows the training's bars.

    Raises:
        BudgetExhausted: a budget, or the operator's cap on a year, does not allow the round or the training; nothing of
            it was spent, and the same call asks again.
        SettingsError: the directory cannot be read, or holds an evaluation with other options.
    """
    today = today or dt.datetime.now(dt.UTC).date()
    places = sorted(directory.glob("round-*"))
    done = [place for place in places if (place / REPORT_FILE).exists()]
    rounds = [_read(place / REPORT_FILE) for place in done]
    due = today if not rounds else dt.date.fromisoformat(rounds[-1].day) + dt.timedelta(days=every)
    watched = next((place / MODEL_FILE for place in reversed(done) if (place / MODEL_FILE).exists()), model)
    asked = due <= today
    if asked:
        done.append(directory / f"round-{len(done) + 1:04}")
        rounds.append(_round(done[-1], watched, hospital, evaluation, epsilon, today))
        due = today + dt.timedelta(days=every)
    own = [one for one in rounds if one.model == rounds[-1].model and one.accuracy is not None]
    change = Change.between(own[0], rounds[-1], appended=appended) if len(own) > 1 else None
    if experiment is not None and change is not None and change.worse and watched.parent != done[-1]:
        watched = _trained(experiment, done[-1], progress=progress)
    return Watched(tuple(rounds), change, due.isoformat(), asked, watched)


def _round(place: Path, model: Path, hospital: Hospital, evaluation: Evaluate, epsilon: float, today: dt.date) -> Round:
    """One evaluation; a round of records that were updated meanwhile is begun anew."""
    loaded, sha256 = load_adapted(model, device="cpu"), hashlib.sha256(model.read_bytes()).hexdigest()
    now = hospital.plan_evaluation(evaluation, epsilon=epsilon)
    plan, ids = begun_or_new(place, hospital, loaded, now)
    try:
        report = evaluate(hospital.curator, loaded, plan, request_ids=ids)
    except (RunFinished, RequestInvalid, InvalidValue) as error:
        if plan.records == now.records and not isinstance(error, RunFinished):
            raise
        _log.warning("the hospital's records were updated since this round was begun; it is begun anew: %s", error)
        (place / REQUEST_FILE).replace(place / f"earlier-{ids.run}.json")
        plan, ids = begun_or_new(place, hospital, loaded, now)
        report = evaluate(hospital.curator, loaded, plan, request_ids=ids)
    low, high = report.accuracy_interval.low, report.accuracy_interval.high
    half = accuracy_error(plan) if report.number_public else max(high - report.accuracy, report.accuracy - low)
    accuracy = None if math.isnan(report.accuracy) else report.accuracy
    numbers: dict[str, Any] = {"records": report.records, "labelled": report.labelled, "public": report.number_public}
    made = Round(today.isoformat(), sha256, accuracy=accuracy, noise=half / 1.96, epsilon=report.epsilon, **numbers)
    write_report(place, report, round=asdict(made))
    return made


def _read(file: Path) -> Round:
    try:
        return Round(**json.loads(file.read_text(encoding="utf-8"))["round"])
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{file} is no round of a watch; choose another --directory") from error


def _trained(experiment: Path, place: Path, *, progress: bool) -> Path:
    """The model of an experiment that is begun, or goes on, in a round's directory."""
    checkpoint, made = place / "training", place / MODEL_FILE
    given = {"output.checkpoint": checkpoint.absolute(), "output.save": made.absolute()}
    run(read_experiment(experiment, given | {"output.resume": begun_in(checkpoint)}), progress=progress)
    return made
