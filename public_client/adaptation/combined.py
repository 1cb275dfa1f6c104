"""Everything that a hospital can tell, in one fit: its records without labels, its labels, and what each was worth.

Usage::

    model = CombinedAdaptation(extractor, classifier, hospital=hospital, epsilon=1.0)
    model.fit(source_loader)
    print(model)  # the accuracy of each candidate, by one private comparison, and which was kept
    model.chosen.adaptation.save("adapted.safetensors")

A team has a labelled source. A hospital has records; where its operator declares classes, all or some of them have a
label. One share of epsilon is for a release of all records (`Replay`), one for a release of the labelled ones
(`Recalibrate`), and one for a comparison, one release, that says what each of them made of the source's model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dpswd.public_client.adaptation.domain_adaptation import DomainAdaptation
from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.data.checks import checked
from dpswd.public_client.data.datasets import Batches
from dpswd.public_client.data.source import train_source, usual_epochs
from dpswd.public_client.methods.comparison import Compare, Comparison
from dpswd.public_client.methods.recalibrate import Recalibrate
from dpswd.public_client.methods.replay import Replay
from dpswd.public_client.replay.delivery import before_target_alone
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.sites import Model
from dpswd.shared.core.errors import BudgetExhausted, InvalidValue, SettingsError
from dpswd.shared.devices import resolve_device

_SHARES = {"records": 0.35, "labels": 0.3, "evaluation": 0.35}


@dataclass(frozen=True, eq=False)
class Candidate:
    """One model, and what is known of it.

    Attributes:
        name: what it was made of: "source", "records", "labels", or "records and labels".
        model: extractor and classifier.
        adaptation: that made it; None for the source's.
    """

    name: str
    model: Model
    adaptation: DomainAdaptation | None


class CombinedAdaptation:
    """A model of a public source, a hospital's records and its labels, as far as there are any.

    Args:
        extractor: records to features.
        classifier: features to scores.
        hospital: one; with labels of all, some or none of its records.
        epsilon: what all of it may cost. Parts are charged one by one; together they cost no more.
        shares: of epsilon by "records", "labels" and "evaluation", adding up to 1; 0 leaves a part out. By default
            0.35, 0.3 and 0.35; what the hospital cannot give goes to the rest.
        records: how the unlabelled part is learned from; `Replay()` by default.
        labels: how the labels are; `Recalibrate()` by default.
        device: "auto", "cpu" or "cuda".
        seed: of every random choice on the client's side.
        source_epochs: see `DomainAdaptation`.

    Attributes:
        candidates: after `fit`, from the source's model on.
        comparison: what one release said of all candidates; None where there was none.
        refused: why there was none, where one was wanted.
        chosen: the one that is kept: the comparison's winner; without one the last that was made.

    Raises:
        SettingsError: the shares are no shares of these parts.
    """

    def __init__(
        self,
        extractor: nn.Module,
        classifier: nn.Module,
        *,
        hospital: Hospital,
        epsilon: float,
        shares: Mapping[str, float] | None = None,
        records: Method | None = None,
        labels: Method | None = None,
        device: str = "auto",
        seed: int = 0,
        source_epochs: int | None = None,
    ) -> None:
        own = dict(_SHARES if shares is None else shares)
        if set(own) - set(_SHARES) or min(own.values(), default=-1.0) < 0.0 or not math.isclose(sum(own.values()), 1.0):
            raise SettingsError(f"shares are {own}; needed are shares of {', '.join(_SHARES)} that add up to 1")
        self.hospital, self.epsilon, self.shares = hospital, epsilon, own
        self._start = Model(extractor, classifier)
        self._methods: dict[str, Method] = {
            "records": records or Replay(),
            "labels": labels or Recalibrate(),
        }
        self._settings: dict[str, Any] = {"device": device, "seed": seed}
        self._source_epochs = source_epochs
        self.candidates: tuple[Candidate, ...] = ()
        self.comparison: Comparison | None = None
        self.refused = ""

    @property
    def chosen(self) -> Candidate:
        """See the class.

        Raises:
            InvalidValue: nothing was fitted yet.
        """
        if not self.candidates:
            raise InvalidValue("nothing was fitted yet; call fit first")
        if self.comparison is None:
            return self.candidates[-1]
        (match,) = (one for one in self.candidates if one.name == self.comparison.winner)
        return match

    def fit(self, source_loader: Batches, *, progress: bool = True) -> CombinedAdaptation:
        """Trains on the source, asks for each part that the hospital can give, and compares what was made of it.

        Args:
            source_loader: see `DomainAdaptation.fit`.
            progress: shows progress bars on standard error.

        Raises:
            BudgetExhausted: a part does not fit; what was charged before it stays charged, and is in `candidates`. A
                comparison that does not fit any more ends nothing: `refused` says why.
            InvalidValue: the hospital offers nothing to learn from; nothing was spent.
        """
        spent = self._epsilons()
        self.comparison, self.refused = None, ""  # of an earlier fit
        device = resolve_device(self._settings["device"])
        start = Model(*(module.to(device) for module in (self._start.extractor, self._start.classifier)))
        batches = checked(source_loader, start.extractor, start.classifier, device=device)
        epochs = usual_epochs(len(batches)) if self._source_epochs is None else self._source_epochs
        train_source(start.extractor, start.classifier, batches, epochs=epochs, device=device, progress=progress)
        made = {"source": Candidate("source", Model(start.extractor.eval(), start.classifier.eval()), None)}
        self.candidates = tuple(made.values())
        for part in ("records", "labels"):
            if part in spent:
                begun = list(made.values())[-1].model
                if before_target_alone(begun.extractor):  # the next part learns from the source as well
                    begun = made["source"].model
                adapted = self._adapted(part, begun, batches, spent[part], progress=progress)
                name = part if len(made) == 1 else "records and labels"
                made[name] = Candidate(name, adapted.model(), adapted)
                self.candidates = tuple(made.values())  # what is paid for is there, whatever comes next
        if "evaluation" in spent:
            try:
                whole = {name: one.model.whole() for name, one in made.items()}
                self.comparison = self.hospital.compare(whole, epsilon=spent["evaluation"])
            except (BudgetExhausted, InvalidValue) as error:  # what was trained and paid for stays
                self.refused = str(error)
        return self

    def predict(self, records: Tensor) -> Tensor:
        """(n,) class numbers of target records, by the model that is kept."""
        whole = self.chosen.model.whole()
        own = next(whole.parameters(), records)
        scores: Tensor = whole(records.to(own.device))
        return scores.detach().argmax(dim=1).cpu()

    def __str__(self) -> str:
        """Whether the model was changed, in one plain sentence, and what each part was worth."""
        best, comparison = self.chosen.name, self.comparison
        unchanged = best == self.candidates[0].name
        sentence = "Your model is kept." if unchanged else f"Your model was changed by the hospital's {best}."
        if comparison is None:
            texts = dict.fromkeys((one.name for one in self.candidates), "not known")
            head = f"accuracy on the hospital's labelled records is not known{': ' * bool(self.refused)}{self.refused}"
        else:
            texts = {
                name: "not known" if math.isnan(accuracy) else f"{accuracy:.1f}%"
                for name, accuracy in comparison.accuracies.items()
            }
            head = f"accuracy on the hospital's labelled records, each to within {comparison.error:.1f} points (95%):"
        lines = [f"{name:<20} {text}{'  <- kept' if name == best else ''}" for name, text in texts.items()]
        return "\n".join([sentence, head, *lines])

    def _epsilons(self) -> dict[str, float]:
        """What each part may cost; a hospital that lacks what a part needs leaves its share to the others."""
        own = self.hospital.describe()
        offered = {part: method.mechanism.name for part, method in self._methods.items()}
        offered["evaluation"] = Compare().mechanism.name
        able = {part: self.shares.get(part, 0.0) for part, name in offered.items() if name in own.mechanisms}
        able = {part: share for part, share in able.items() if share > 0.0}
        if not set(able) - {"evaluation"}:
            raise InvalidValue(
                f"{own.data_set} offers {', '.join(own.mechanisms)}, and of these shares wants nothing to learn from"
            )
        total = math.fsum(able.values())
        return {part: self.epsilon * share / total for part, share in able.items()}

    def _adapted(
        self, part: str, start: Model, batches: Batches, epsilon: float, *, progress: bool
    ) -> DomainAdaptation:
        modules = copy.deepcopy((start.extractor, start.classifier))
        plan = self.hospital.plan(self._methods[part], epsilon=epsilon)
        made = DomainAdaptation(*modules, hospital=self.hospital, plan=plan, source_epochs=0, **self._settings)
        return made.fit(batches, progress=progress)
