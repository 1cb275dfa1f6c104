"""What a method asks of a curator, as far as a plan and its price go. Pure: nothing is trained here."""

from __future__ import annotations

import abc
import math
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from typing import Any, ClassVar, Self

from dpswd.public_client.curator.description import Description
from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.mechanisms.interface import AnyMechanism, Payload, RunSize
from dpswd.shared.core.noise.feature_map import FeatureMap
from dpswd.shared.mechanisms import PUBLISHED, SWITCH


@dataclass(frozen=True, kw_only=True)
class RunTerms:
    """What a run's declaration depends on, besides the method's settings.

    Attributes:
        noise: factor of all its noises; 1 where the mean squared shift of one step is about 1.
        batch: b.
        dimension: d of the uploaded graph.
        classes: C of the records' labels; 0 where there are none.
        names: of the adapted parameters, in the order of the flat gradient; empty for none.
        feature_map: the public map of every step that brings none.
        number_private: whether the number of labelled records is private.
        labelled: that number; n where it is private.
    """

    noise: float
    batch: int
    dimension: int
    classes: int
    names: tuple[str, ...]
    feature_map: FeatureMap | None
    number_private: bool = False
    labelled: int = 0

    def sliced_sigma(self, directions: int, coefficients: int, *, share: float = 1.0, label_values: int = 0) -> float:
        """Deviation of the noise on each value of a sliced release, docs/privacy 6.

        Args:
            directions: k.
            coefficients: L of each direction; 0 for rows.
            share: the release's part of a step's mean squared shift at noise 1.
            label_values: that a record has beside its features.
        """
        weight = (2 * coefficients - 1) / self.batch if coefficients else 1.0  # kappa / b
        return self.noise * math.sqrt(weight * directions / (self.dimension + label_values) / share)


@dataclass(frozen=True, kw_only=True)
class Recipe(abc.ABC):
    """The settings of one method, and what a run of it declares. A frozen value; its fields are the team's choices.

    Attributes:
        name: in plans, on the command line, in results.
    """

    name: ClassVar[str]

    @property
    @abc.abstractmethod
    def mechanism(self) -> AnyMechanism:
        """What each step releases."""

    def usual_size(self, description: Description) -> RunSize:
        """Steps and batch size where the team names none; a batch larger than allowed means the largest.

        By default one release of all records: more of them would only share the price.
        """
        return RunSize(batch=description.records, steps=1)

    @abc.abstractmethod
    def declaration(self, run: RunTerms) -> Payload:
        """What a run declares.

        Args:
            run: the rest.

        Raises:
            InvalidValue: such a graph does not serve this method.
        """

    def adapts(self, record_shape: tuple[int, ...] | None) -> str:
        """What changes in the team's model, in words; empty where nothing does."""
        return ""

    def record_passes(self, record_shape: tuple[int, ...] | None) -> int:
        """Records that the client sends forward and backward through its model, at most; 0 where it is quick."""
        return 0

    def notes(self, plan: Any) -> list[tuple[str, str]]:
        """More lines of a plan's text, as (label, text)."""
        return []

    def worthless(self, plan: Any) -> list[str]:
        """Why a release by this plan, with its noise, could not change anything, what it takes and what to do.

        Such a run is refused before anything is charged.
        """
        return []

    def check_offered(self, description: Description) -> None:
        """Refuses a curator that does not offer what the method asks.

        Raises:
            InvalidValue: it does not, with what it offers.
        """
        if self.mechanism.name in description.mechanisms:
            return
        why, after = "", "; if you need it, ask the operator to allow it to you (clients.mechanisms)"
        if self.mechanism.name in PUBLISHED:
            after = (
                f"; {self.name} is a published method, whose mechanisms its operator turns on ({SWITCH}): ask for it"
            )
        if self.mechanism.needs_labels and not description.classes:
            why, after = (
                ": its operator declares no classes of the records' labels (records.classes); ask the operator",
                "",
            )
        raise InvalidValue(
            f"{description.data_set} does not offer {self.mechanism.name!r}{why}; it offers "
            f"{', '.join(description.mechanisms)}{after}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        return {"name": self.name, **asdict(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_json`.

        Raises:
            InvalidValue: another method's, a field is unknown or out of range.
        """
        own = dict(values)
        if (name := own.pop("name", None)) != cls.name:
            raise InvalidValue(f"these are the settings of method {name!r}, not of {cls.name!r}")
        names = [field.name for field in fields(cls)]
        if unknown := sorted(set(own) - set(names)):
            raise InvalidValue(f"{cls.name} has no {', '.join(unknown)}; its settings are {', '.join(sorted(names))}")
        return cls(**own)


def kinds_in(place: str, kind: type) -> list[Any]:
    """The recipes of a package, one file or folder each: what a file defines, has a name and is of a kind.

    Args:
        place: dotted name of the package.
        kind: their base.
    """
    kinds: dict[str, Any] = {}
    for file in pkgutil.iter_modules(import_module(place).__path__, f"{place}."):
        module = import_module(file.name)
        for own in vars(module).values():
            if isinstance(own, type) and issubclass(own, kind) and "name" in vars(own):
                kinds.setdefault(own.__dict__["name"], own)
    return list(kinds.values())


def refuse(problems: Iterable[str]) -> None:
    """Raises all problems in one error.

    Raises:
        InvalidValue: there is one.
    """
    if listed := list(problems):
        raise InvalidValue("; ".join(listed))


def not_positive(value: object, *names: str) -> list[str]:
    """Fields of a value that are no positive, finite numbers."""
    return _wrong(value, names, lambda own: _is_number(own) and math.isfinite(own) and own > 0, "positive and finite")


def not_counts(value: object, *names: str) -> list[str]:
    """Fields of a value that are no whole numbers of at least 1."""
    return _wrong(value, names, lambda own: type(own) is int and own >= 1, "a whole number of at least 1")


def not_between(value: object, low: float, high: float, *names: str) -> list[str]:
    """Fields of a value that are no numbers from low to below high."""
    rule = f"at least {low:g} and below {high:g}"
    return _wrong(value, names, lambda own: _is_number(own) and low <= own < high, rule)


def not_one_of(value: object, name: str, allowed: Iterable[str]) -> list[str]:
    """The field, where it is none of the allowed words."""
    own, words = getattr(value, name), list(allowed)
    return [] if own in words else [f"{name} is {own!r}; allowed: {', '.join(words)}"]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _wrong(value: object, names: Iterable[str], fits: Callable[[Any], bool], rule: str) -> list[str]:
    owns = {name: getattr(value, name) for name in names}
    return [f"{name} is {own!r}; it must be {rule}" for name, own in owns.items() if not fits(own)]
