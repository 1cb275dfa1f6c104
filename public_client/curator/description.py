"""What a curator says about its data set and about the caller's budget, printable and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dpswd.shared.accounting.persons import promised_to_person
from dpswd.shared.core.errors import InvalidValue, rounded
from dpswd.shared.core.ledger.keys import LedgerKeys
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Limits
from dpswd.shared.core.wire.v1 import curator_pb2 as pb
from dpswd.shared.protocol.contract import DataContract


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta) under replace-one-record neighbours, and what is used of it.

    Attributes:
        epsilon: the whole budget.
        delta: of the whole budget.
        spent: epsilon spent so far at that delta, rounded up.
        remaining: epsilon left at that delta, rounded down.
        closed: the operator has ended spending.
    """

    epsilon: float
    delta: float
    spent: float
    remaining: float
    closed: bool

    @classmethod
    def from_message(cls, message: pb.BudgetStatus) -> Budget:
        """Decodes the wire's form."""
        return cls(message.epsilon, message.delta, message.epsilon_spent, message.epsilon_remaining, message.closed)

    def __str__(self) -> str:
        """One line; costs are rounded up and what is left down."""
        state = ", closed by the operator" if self.closed else ""
        return (
            f"epsilon {self.epsilon:g} at delta {self.delta:g}: spent {rounded(self.spent, up=True)}, "
            f"left {rounded(self.remaining, up=False)}{state}"
        )


@dataclass(frozen=True)
class Description:
    """A data set as its curator offers it.

    Attributes:
        data_set: the operator's name for it.
        records: n, public under replace-one neighbours.
        record_shape: the shape of one record.
        data_set_budget: over all clients.
        client_budget: the caller's own share.
        neighbouring_relation: of every guarantee.
        mechanisms: names of what may be released (`dpswd.shared.core.mechanisms`).
        limits: bounds of requests.
        grid_exponent: the grid step of a release is its sigma times 2 to the minus this.
        ledger_public_key: raw Ed25519 key that signs receipts, in hexadecimal.
        client_name: how the operator knows the caller.
        software_version: of the curator.
        classes: number of classes of the labels; 0 where nothing can be evaluated.
        partly_labelled: whether some records may have no label.
        labelled: how many of the records have one, by the operator's word; 0: all, or their number is private.
        records_per_person: k, how many of the records one person has at most.
        contract: what the operator declares of the records' values.
    """

    data_set: str
    records: int
    record_shape: tuple[int, ...]
    data_set_budget: Budget
    client_budget: Budget
    neighbouring_relation: str
    mechanisms: tuple[str, ...]
    limits: Limits
    grid_exponent: int
    ledger_public_key: str
    client_name: str
    software_version: str
    classes: int = 0
    partly_labelled: bool = False
    labelled: int = 0
    records_per_person: int = 1
    contract: DataContract = field(default_factory=DataContract)
    key_changes: tuple[str, ...] = ()

    @property
    def ledger_keys(self) -> LedgerKeys:
        """The key, with those that it had before."""
        return LedgerKeys.of(bytes.fromhex(self.ledger_public_key), self.key_changes)

    @classmethod
    def from_message(cls, message: pb.DescribeResponse) -> Description:
        """Decodes the wire's form."""
        values = {own.name: getattr(message, own.name) for own in fields(cls)}
        values |= {"ledger_public_key": message.ledger_public_key.hex()}
        values |= {"contract": DataContract.from_message(message.contract)}
        limits = Limits(**{own.name: getattr(message.limits, own.name) for own in fields(Limits)})
        return cls._of(values, budget=Budget.from_message, limits=limits)

    @classmethod
    def _of(cls, values: Mapping[str, Any], *, budget: Callable[[Any], Budget], limits: Limits) -> Description:
        """From the fields as a message or JSON spells them, which have lists for tuples."""
        lists = {name: tuple(values.get(name, ())) for name in ("record_shape", "mechanisms", "key_changes")}
        budgets = {name: budget(values[name]) for name in ("data_set_budget", "client_budget")}
        return cls(**{**values, **lists, **budgets, "limits": limits})

    @property
    def facts(self) -> DataSetFacts:
        """What prices and plans depend on."""
        return DataSetFacts(**{own.name: getattr(self, own.name) for own in fields(DataSetFacts)})

    @property
    def remaining(self) -> float:
        """Epsilon that the caller may still spend: the smaller of its own share and the data set's."""
        if self.data_set_budget.closed or self.client_budget.closed:
            return 0.0
        return min(self.data_set_budget.remaining, self.client_budget.remaining)

    @property
    def spent(self) -> float:
        """Epsilon that the data set has spent over all clients."""
        return self.data_set_budget.spent

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``--format json``."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Description:
        """The inverse of `to_json`, as ``dpswd-client describe --format json`` prints it.

        Raises:
            InvalidValue: fields are missing or unknown.
        """
        try:
            limits, contract = Limits(**values["limits"]), DataContract.from_json(values.get("contract", {}))
            return cls._of({**values, "contract": contract}, budget=lambda stated: Budget(**stated), limits=limits)
        except (KeyError, TypeError) as error:
            raise InvalidValue(
                f"this is no description of a curator ({error}); write one with: dpswd-client describe --format json"
            ) from error

    def __str__(self) -> str:
        """A few lines for a terminal."""
        shape = " x ".join(map(str, self.record_shape))
        bounds = self.limits
        limits = (
            f"{bounds.max_directions} directions, {bounds.max_coefficients} coefficients, batches of "
            f"{bounds.min_batch_size} to {min(bounds.max_batch_size, self.records)}, "
            f"{bounds.max_adapted_parameters} adapted parameters"
        )
        values = [("values", str(self.contract))] if self.contract != DataContract() else []
        lines = [
            *values,
            ("data set's budget", str(self.data_set_budget)),
            ("your budget", str(self.client_budget)),
            ("guarantee", f"{self.neighbouring_relation}, over the data set's whole life and all clients"),
            *self._of_persons(),
            ("offers", ", ".join(self.mechanisms) + self._labels()),
            ("limits", limits),
            ("curator", f"dpswd {self.software_version}, ledger key {self.ledger_public_key[:16]}..."),
        ]
        head = f"{self.data_set}: {self.records} records of shape {shape}, known here as {self.client_name!r}"
        return "\n".join((head, *(f"  {name:<18} {text}" for name, text in lines)))

    def _labels(self) -> str:
        if not self.classes:
            return ""
        some = f", of {self.labelled} of the records" if self.labelled else ", of some records only"
        return f" ({self.classes} classes{some * self.partly_labelled})"

    def _of_persons(self) -> tuple[tuple[str, str], ...]:
        """What the whole budget promises a person, where one may have several records."""
        if self.records_per_person <= 1:
            return ()
        whole = self.data_set_budget
        epsilon, delta = promised_to_person(whole.epsilon, whole.delta, self.records_per_person)
        text = (
            f"one has at most {self.records_per_person} of the records; the data set's budget, which counts records, "
            f"promises a person epsilon {epsilon:g} at delta {delta:g}"
        )
        return (("persons", text),)
