"""Several curators under the interface of one: two hospitals with different shifts and budgets.

Usage::

    with Federation.connect({"north": "north:50051", "south": "south:50051"}, credentials="credentials/") as hospitals:
        plans = hospitals.plan(epsilon={"north": 1.0, "south": 0.5})
        model = DomainAdaptation(extractor, classifier, curator=hospitals, plan=plans)
        model.fit(source_loader)
        model.save("adapted.safetensors")  # adapted-north.safetensors, adapted-south.safetensors

Budgets stay apart: each curator charges its own ledger, and a record is protected by the guarantee of the hospital that
holds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from torch import Tensor, nn

from public_client.curator.description import Description
from public_client.curator.stub import Curator
from public_client.methods.alignment import Alignment
from public_client.plans.critic_plan import CriticPlan
from public_client.plans.declarable import Declarable
from public_client.plans.plan import Plan
from public_client.plans.run_plan import RunPlan
from public_client.training.sites import Group, Site
from shared.errors import DpswdError, InvalidValue, ProtocolError, SettingsError

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
_Plan = TypeVar("_Plan", bound=RunPlan)


class Plans(dict[str, _Plan]):
    """One plan for each site, printable."""

    def __str__(self) -> str:
        return "\n".join(f"{name}: {plan}" for name, plan in self.items())


class Federation:
    """Connections to several curators, by name. Use as a context manager.

    Args:
        curators: at least one; the names are the team's own.
        weights: of each site in a model that they train together; equal by default.

    Attributes:
        curators: those that answer.
        lost: why a site was left out, by name.
    """

    def __init__(self, curators: Mapping[str, Curator], *, weights: Mapping[str, float] | None = None) -> None:
        if not curators:
            raise SettingsError("a federation needs at least one curator")
        self.curators = dict(curators)
        self.lost: dict[str, DpswdError] = {}
        self.weights = {name: float((weights or {}).get(name, 1.0)) for name in curators}
        unknown = sorted(set(weights or {}) - set(curators))
        if unknown or not all(0.0 < weight < float("inf") for weight in self.weights.values()):
            raise SettingsError(
                f"weights are {dict(weights or {})}; each must be positive and finite, for the sites "
                f"{', '.join(curators)}"
            )
        self._plans: Plans[Plan] | None = None
        self._groups: dict[int, tuple[nn.Module, Group]] = {}

    @classmethod
    def connect(
        cls,
        addresses: Mapping[str, str],
        *,
        credentials: str | Path | Mapping[str, str | Path],
        weights: Mapping[str, float] | None = None,
        run_directory: str | Path | None = None,
        server_names: Mapping[str, str | None] | None = None,
        **options: Any,
    ) -> Federation:
        """Connects to all sites in parallel; one that does not answer is left out, with a warning.

        Args:
            addresses: host:port by name.
            credentials: of each by name; or one directory with a folder for each name.
            weights: see the class.
            run_directory: each site's receipts go to ``sites/NAME`` below it.
            server_names: the name in a curator's certificate, where it differs from its address.
            **options: of `Curator.connect`, the same for all.

        Raises:
            SettingsError: credentials are missing.
            ProtocolError: no site can be used; the first one's error, with the others' as notes.
        """
        if not addresses:
            raise SettingsError("a federation needs at least one curator's address")
        where = {
            name: Path(credentials[name] if isinstance(credentials, Mapping) else Path(credentials) / name)
            for name in addresses
            if not isinstance(credentials, Mapping) or name in credentials
        }
        if len(where) != len(addresses):
            raise SettingsError(f"there are no credentials for {', '.join(sorted(set(addresses) - set(where)))}")

        def one(name: str) -> Curator:
            directory = None if run_directory is None else Path(run_directory) / "sites" / name
            return Curator.connect(
                addresses[name],
                credentials=where[name],
                **{"run_directory": directory, "server_name": (server_names or {}).get(name), **options},
            )

        connected, lost = _in_parallel(list(addresses), one)
        if not connected:
            first, *others = lost.items()
            for name, error in others:
                first[1].add_note(f"{name}: {error}")
            raise first[1]
        federation = cls(connected, weights={n: w for n, w in (weights or {}).items() if n in connected})
        for name, error in lost.items():
            federation._leave_out(name, error)
        return federation

    def __enter__(self) -> Federation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self.curators)

    def close(self) -> None:
        """Closes all connections; runs stay as they are at the curators."""
        for curator in self.curators.values():
            curator.close()

    def describe(self) -> dict[str, Description]:
        """What each site offers; free. A site that does not answer is left out from now on.

        Raises:
            ProtocolError: none answers.
        """
        found, lost = _in_parallel(list(self.curators), lambda name: self.curators[name].describe())
        for name, error in lost.items():
            self._leave_out(name, error)
        if not found:
            raise next(iter(lost.values()))
        return found

    @property
    def record_shape(self) -> tuple[int, ...]:
        """The shape of one record, the same at all sites.

        Raises:
            InvalidValue: the sites' records have different shapes.
        """
        shapes = {name: description.record_shape for name, description in self.describe().items()}
        if len(set(shapes.values())) > 1:
            raise InvalidValue(
                f"the sites hold records of different shapes ({shapes}); train against sites of one shape at a time"
            )
        return next(iter(shapes.values()))

    def plan(self, **wishes: Any) -> Plans[Plan]:
        """Plans a run at each site; nothing is spent.

        Args:
            **wishes: of `Curator.plan`; a value may be a mapping from names to values where sites differ.

        Raises:
            InvalidValue: a wish is out of range, or names a site that does not exist.
        """
        self._plans = self._planned(lambda curator, own: curator.plan(**own), wishes)
        return self._plans

    def plan_critic(self, **wishes: Any) -> Plans[CriticPlan]:
        """Plans a domain critic's run at each site; nothing is spent. As `plan`, of `Curator.plan_critic`."""
        return self._planned(lambda curator, own: curator.plan_critic(**own), wishes)

    def _planned(self, make: Callable[[Curator, dict[str, Any]], _Plan], wishes: Mapping[str, Any]) -> Plans[_Plan]:
        """A plan for each site, by its own part of the wishes."""
        for wish, value in wishes.items():
            if isinstance(value, Mapping) and (unknown := sorted(set(value) - set(self.curators) - set(self.lost))):
                raise InvalidValue(f"{wish} names {', '.join(unknown)}; the sites are {', '.join(self.curators)}")

        def one(name: str) -> _Plan:
            own = {
                wish: value[name] if isinstance(value, Mapping) else value
                for wish, value in wishes.items()
                if not isinstance(value, Mapping) or name in value
            }
            if "epsilon" not in own:
                raise InvalidValue(f"no epsilon is planned for {name}")
            return make(self.curators[name], own)

        return Plans({name: one(name) for name in self.curators})

    def alignment_loss(
        self, extractor: nn.Module, source_features: Tensor, *, plan: Mapping[str, Plan] | None = None
    ) -> Tensor:
        """One private step at every site as one scalar loss, the weighted mean; see `Curator.alignment_loss`.

        A site that fails, or has used its steps, is left out from then on.

        Raises:
            ProtocolError: no site is left, or there is no plan.
            PrivacyError: no site admits its run.
        """
        known = self._groups.get(id(extractor))
        if known is None:
            plans = plan or self._plans
            if not plans:
                raise ProtocolError("alignment_loss needs plans; call plan(...) first or pass plan=")
            group = Group(
                [Site(name, self.curators[name], p, self.weights[name]) for name, p in plans.items()], store=None
            )
            own = source_features.detach()
            declarable = Declarable.of(extractor, self.record_shape, next(iter(plans.values())))

            def begin(site: Site) -> None:
                site.begin(
                    Alignment(site.curator, extractor, plans[site.name], source_features=own, declarable=declarable)
                )

            group.each(begin)
            self._groups[id(extractor)] = (extractor, group)
        else:
            _, group = known
        if not group.unfinished:  # each run says so itself: RunFinished
            group.each(lambda site: site.run.draw(source_features))
        answers = group.step(source_features)
        shares = group.shares([site for site in group.sites if site.name in answers])
        total = source_features.new_zeros(())
        for name, answer in answers.items():
            total = total + shares[name] * answer.loss
        return total

    def _leave_out(self, name: str, error: DpswdError) -> None:
        self.lost[name] = error
        self.curators.pop(name, None)
        _log.warning("%s is left out (%s: %s)", name, type(error).__name__, error)


def _in_parallel(names: list[str], ask: Callable[[str], _Answer]) -> tuple[dict[str, _Answer], dict[str, DpswdError]]:
    """Answers and errors by name; settings that cannot work are the caller's and end it at once."""

    def attempt(name: str) -> _Answer | DpswdError:
        try:
            return ask(name)
        except SettingsError:
            raise
        except DpswdError as error:
            return error

    with ThreadPoolExecutor(len(names), thread_name_prefix="site") as pool:
        found = dict(zip(names, pool.map(attempt, names), strict=True))
    lost = {name: value for name, value in found.items() if isinstance(value, DpswdError)}
    return {name: value for name, value in found.items() if not isinstance(value, DpswdError)}, lost
