"""Several hospitals under the interface of one: two with different shifts and budgets.

Usage::

    with Federation.connect({"north": "north:50051", "south": "south:50051"}, credentials="credentials/") as hospitals:
        plans = hospitals.plan(epsilon={"north": 1.0, "south": 0.5})
        model = DomainAdaptation(extractor, classifier, hospital=hospitals, plan=plans)
        model.fit(source_loader)
        model.save("adapted.safetensors")  # adapted-north.safetensors, adapted-south.safetensors

Budgets stay apart: each curator charges its own ledger, and a record is protected by the guarantee of the hospital that
holds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, TypeVar, get_args

from dpswd.public_client.adaptation.hospital import Hospital
from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.training.asking import ask_each
from dpswd.public_client.training.distributed import shared_curators
from dpswd.public_client.training.method import Method
from dpswd.public_client.training.sites import STRAGGLER_S
from dpswd.shared.core.errors import CuratorUnavailable, DpswdError, InvalidValue, ProtocolError, SettingsError

Absent = Literal["set aside", "refuse"]
"""What is done where a site is down before anything is charged."""
_Value = TypeVar("_Value")
_log = logging.getLogger(__name__)


class Plans(dict[str, Plan]):
    """One plan for each site, printable."""

    def __str__(self) -> str:
        return "\n".join(f"{name}: {plan}" for name, plan in self.items())


class Federation(AbstractContextManager["Federation"]):
    """Several hospitals, by name. Use as a context manager.

    Args:
        hospitals: at least one; the names are the team's own.
        weights: of each site in a model that they train together; equal by default. They have no part in models
            that each site has for itself.
        straggler_s: where sites are asked together, each has twice as long as half of them took, and so many seconds
            more; one that takes longer is set aside like one that is down.
        absent: what happens where a site is down before anything is charged: it is set aside, and the others go on; or
            "refuse": nothing is begun without it. Once runs are charged, a site that fails is set aside.

    Attributes:
        hospitals: those that answer.
        lost: why a site was left out, by name.
    """

    def __init__(
        self,
        hospitals: Mapping[str, Hospital],
        *,
        weights: Mapping[str, float] | None = None,
        straggler_s: float = STRAGGLER_S,
        absent: Absent = "set aside",
    ) -> None:
        if absent not in get_args(Absent):
            raise SettingsError(f'absent is {absent!r}; needed is "set aside" or "refuse"')
        if not hospitals:
            raise SettingsError("a federation needs at least one hospital")
        self.straggler_s = straggler_s
        self.absent = absent
        self.hospitals = dict(hospitals)
        self.lost: dict[str, DpswdError] = {}
        self.weights = {name: float((weights or {}).get(name, 1.0)) for name in hospitals}
        unknown = sorted(set(weights or {}) - set(hospitals))
        if unknown or not all(0.0 < weight < float("inf") for weight in self.weights.values()):
            raise SettingsError(
                f"weights are {dict(weights or {})}; each must be positive and finite, for the sites "
                f"{', '.join(hospitals)}"
            )

    @classmethod
    def connect(
        cls,
        addresses: Mapping[str, str],
        *,
        credentials: str | Path | Mapping[str, str | Path],
        weights: Mapping[str, float] | None = None,
        run_directory: str | Path | None = None,
        server_names: Mapping[str, str | None] | None = None,
        timeout_s: float = 120.0,
        patience_s: float = 15.0,
        start_s: float | None = None,
        straggler_s: float = STRAGGLER_S,
        absent: Absent = "set aside",
        purpose: str = "",
    ) -> Federation:
        """Connects to all sites in parallel; one that does not answer is left out, with a warning.

        In several processes (torchrun) rank 0 alone holds the connections, and all ranks are answered alike. A dead
        site holds the others up for seconds: `patience_s` is shorter than a single hospital's.

        Args:
            addresses: host:port by name.
            credentials: of each by name; or one directory with a folder for each name.
            weights: see the class.
            run_directory: each site's receipts go to ``sites/NAME`` below it.
            server_names: the name in a curator's certificate, where it differs from its address.
            timeout_s: deadline of one attempt, in seconds.
            patience_s: how long a lost connection is tried again before the site is set aside, in seconds; longer
                where curators restart in the middle of trainings.
            start_s: how long a curator that does not answer yet is waited for here, in seconds, where some start
                slowly; by default 10, or `patience_s` if that is less.
            straggler_s: see the class.
            absent: see the class.
            purpose: why runs are opened, for the hospitals' ledgers: one line of at most 200 characters.

        Returns:
            The sites that answered, on every rank, and `lost` alike.

        Raises:
            SettingsError: credentials are missing.
            ProtocolError: no site can be used, or one cannot and `absent` is "refuse"; the first one's error, with the
                others' as notes.
        """
        if not addresses:
            raise SettingsError("a federation needs at least one curator's address")
        where = credentials
        if not isinstance(where, Mapping):
            where = {name: Path(where) / name for name in addresses}
        if lacking := sorted(set(addresses) - set(where)):
            raise SettingsError(f"there are no credentials for {', '.join(lacking)}")

        def one(name: str) -> Curator:
            return Curator.connect(
                addresses[name],
                credentials=where[name],
                timeout_s=timeout_s,
                patience_s=patience_s,
                start_s=start_s,
                run_directory=None if run_directory is None else Path(run_directory) / "sites" / name,
                server_name=(server_names or {}).get(name),
                purpose=purpose,
            )

        lost: dict[str, DpswdError] = {}

        def connect() -> dict[str, Curator]:
            made, failed = cls._reached(list(addresses), one)
            lost.update(failed)
            if failed and (absent == "refuse" or not made):
                for curator in made.values():
                    curator.close()
                raise _first_of(failed)
            return made

        curators = shared_curators(connect)
        federation = cls(
            {name: Hospital(curator) for name, curator in curators.items()},
            weights={name: weight for name, weight in (weights or {}).items() if name in curators},
            straggler_s=straggler_s,
            absent=absent,
        )
        for name, error in _of_rank_0(lost).items():
            federation._leave_out(name, error)
        return federation

    @staticmethod
    def _reached(
        names: Sequence[str], connect: Callable[[str], Curator]
    ) -> tuple[dict[str, Curator], dict[str, DpswdError]]:
        """The curators that answer, and the errors of the others, by name."""
        return ask_each(names, connect)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self.hospitals)

    def close(self) -> None:
        """Closes all connections; runs stay as they are at the curators."""
        for hospital in self.hospitals.values():
            hospital.close()

    def describe(self) -> dict[str, Description]:
        """What each site offers; free. A site that does not answer is left out from now on.

        Returns:
            The descriptions by site's name.

        Raises:
            ProtocolError: none answers.
        """
        return self._ask(lambda name: self.hospitals[name].describe())

    def plan(
        self,
        method: Method | None = None,
        *,
        epsilon: float | Mapping[str, float],
        steps: int | Mapping[str, int] | None = None,
        batch_size: int | Mapping[str, int] | None = None,
    ) -> Plans:
        """Plans a run at each site; nothing is spent. A site that does not answer is left out from now on.

        Args:
            method: the same for all; see `Hospital.plan`.
            epsilon: what each run may cost; a mapping from names to values where sites differ.
            steps: T, likewise.
            batch_size: b, likewise.

        Returns:
            The plans by site's name; ``print`` shows them.

        Raises:
            InvalidValue: a number is out of range, or names a site that does not exist.
            ProtocolError: no site answers.
        """
        for wish, value in (("epsilon", epsilon), ("steps", steps), ("batch_size", batch_size)):
            if isinstance(value, Mapping) and (unknown := sorted(set(value) - set(self.hospitals) - set(self.lost))):
                raise InvalidValue(f"{wish} names {', '.join(unknown)}; the sites are {', '.join(self.hospitals)}")

        def one(name: str) -> Plan:
            own = _of_site(epsilon, name)
            if own is None:
                raise InvalidValue(f"no epsilon is planned for {name}")
            return self.hospitals[name].plan(
                method, epsilon=own, steps=_of_site(steps, name), batch_size=_of_site(batch_size, name)
            )

        return Plans(self._ask(one))

    def check_planned(self, plans: Mapping[str, Plan]) -> None:
        """Refuses plans for sites that are not connected.

        Args:
            plans: by site's name.

        Raises:
            SettingsError: there are such plans, or none at all.
        """
        unknown = sorted(set(plans) - set(self.hospitals))
        if unknown or not plans:
            raise SettingsError(f"there are plans for {unknown}; the connected sites are {sorted(self.hospitals)}")

    def _ask(self, ask: Callable[[str], _Value]) -> dict[str, _Value]:
        """Asks all sites something free; those that cannot be reached are left out, or needed."""
        alone = Ranks.current().size == 1  # ranks ask together, in one order
        answers, lost = ask_each(list(self.hospitals), ask, parallel=alone, straggler_s=self.straggler_s)
        for error in lost.values():
            if not isinstance(error, ProtocolError):
                raise error
        if lost and self.absent == "refuse":
            raise _first_of(lost)
        for name, error in lost.items():
            self._leave_out(name, error)
        if not answers:
            raise next(iter((lost or self.lost).values()))
        return answers

    def _leave_out(self, name: str, error: DpswdError) -> None:
        self.lost[name] = error
        self.hospitals.pop(name, None)
        _log.warning("%s is left out (%s: %s)", name, type(error).__name__, error)


def _first_of(lost: Mapping[str, DpswdError]) -> DpswdError:
    """The first site's error, which names the others'."""
    (name, first), *others = lost.items()
    first.add_note(f"this is what {name} said" + "".join(f"; {other}: {error}" for other, error in others))
    return first


def _of_rank_0(lost: Mapping[str, DpswdError]) -> Mapping[str, DpswdError]:
    """The sites that rank 0 could not reach, on every rank: what is planned for them is no mistake on any.

    Errors do not travel whole; the others get the name of theirs, and its words.
    """
    ranks = Ranks.current()
    words = ranks.share(lambda: {name: f"{type(error).__name__}: {error}" for name, error in lost.items()})
    return lost if ranks.first else {name: CuratorUnavailable(text) for name, text in words.items()}


def _of_site(value: _Value | Mapping[str, _Value] | None, name: str) -> _Value | None:
    """A site's own value, or the common one."""
    return value.get(name) if isinstance(value, Mapping) else value
