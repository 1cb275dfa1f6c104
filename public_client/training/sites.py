"""The curators of one training: what each was asked, how far it came, and what happens when one drops out.

A training asks one curator or several. Each is a `Site`; sites that train together are a `Group`. A site
that cannot be reached, is exhausted or refuses is set aside and reported, and the training goes on with the rest; only
when none is left does its error end the training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import nn

from dpswd.public_client.curator.description import Description
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.plans.declarable import Declarable, quoted
from dpswd.public_client.plans.plan import Plan
from dpswd.public_client.plans.recipe import refuse
from dpswd.public_client.training.asking import ask_each
from dpswd.public_client.training.checkpoint import Checkpoint
from dpswd.public_client.training.run import Release
from dpswd.shared.core.errors import (
    CuratorFault,
    CuratorUnavailable,
    DpswdError,
    InvalidValue,
    LedgerCorrupt,
    RequestInProgress,
)
from dpswd.shared.protocol.contract import DataContract

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")
_Run = TypeVar("_Run", bound=Release[Any])

ALONE = "curator"
"""The name of a training's only site."""
ADAPTED = "adapted"
"""The outcome of a site whose own training's model is delivered."""
_UNHEARD = (CuratorUnavailable, RequestInProgress, CuratorFault, LedgerCorrupt)
"""After these nobody here knows what the curator did."""
STRAGGLER_S = 20.0
"""How much longer than twice what half of the sites took one may take, by default, before it is set aside: seconds."""


@dataclass(frozen=True)
class HistoryPoint:
    """Where training stood after a step.

    Attributes:
        step: steps drawn so far.
        distance: estimated distance F, averaged since the last point.
        epsilon: what the steps so far would cost alone; the whole run was charged when it opened.
        accuracy: percent, where an evaluation was given; else NaN.
    """

    step: int
    distance: float
    epsilon: float
    accuracy: float


@dataclass(frozen=True)
class Model:
    """What a site's records go through.

    Attributes:
        extractor: records to features.
        classifier: features to scores.
    """

    extractor: nn.Module
    classifier: nn.Module

    def whole(self) -> nn.Sequential:
        """From records to scores, these very modules, in evaluation mode."""
        return nn.Sequential(self.extractor, self.classifier).eval()


@dataclass(eq=False)
class Site:
    """One curator's part in a training.

    Attributes:
        name: the team's name for it.
        curator: the connection.
        plan: of its run.
        weight: its share in a model that several sites train together, before it is divided by the sum of all.
        store: its directory, or None.
        model: what was trained for it; None before its run is open.
        opened: its run, once it is open.
        steps: that were drawn and applied.
        request_id: of the last of them; empty before the first.
        stale: the step that is under way was asked with weights of long ago; its answer is drawn and dropped.
        history: where it stood after some of its steps.
        lost: why it was set aside; None while it takes part.
        perhaps_charged: nothing came back of the request that charges its run, or it was asked before this process took
            the training up and the site is not reached now: the ledger may hold it.
        contract: what its operator declares of the records' values, once it was described; None before.
        outcome: what was done with its model: `ADAPTED`; of a replay, which of
            `dpswd.public_client.replay.verdict.Outcome`; of pseudo-labels "kept" where it is not adapted.
        plain: why, in one plain clause; empty where the method has none.
        finding: why, with the evidence, where the releases were found to say something.
    """

    name: str
    curator: Curator
    plan: Plan
    weight: float = 1.0
    store: Checkpoint | None = None
    model: Model | None = None
    opened: Release[Any] | None = None
    steps: int = 0
    request_id: str = ""
    stale: bool = False
    history: list[HistoryPoint] = field(default_factory=list)
    lost: DpswdError | None = None
    perhaps_charged: bool = False
    contract: DataContract | None = None
    outcome: str = ADAPTED
    plain: str = ""
    finding: str = ""

    @property
    def run(self) -> Release[Any]:
        """The open run."""
        assert self.opened is not None, "the run is opened before it is used"
        return self.opened

    def run_of(self, kind: type[_Run]) -> _Run:
        """The open run, which this site's method opened as one of its own kind."""
        assert isinstance(self.run, kind), "another kind of run belongs to another method"
        return self.run

    def begin(self, run: Release[Any]) -> None:
        """Takes an opened run, and its plan with the noise."""
        self.opened, self.plan = run, run.plan

    @property
    def state(self) -> str:
        """In words: "finished", "set aside", "refused" (nothing was charged) or "perhaps charged"."""
        if self.lost is None:
            return "finished"
        if self.opened is not None:
            return "set aside"
        return "perhaps charged" if self.perhaps_charged else "refused"

    def report(self) -> dict[str, Any]:
        """Plain values: what was charged here, how far it came, and why no further.

        Where the state is "perhaps charged", the epsilon is what the ledger may hold; ask the operator.
        """
        charged = self.plan.epsilon if self.perhaps_charged else 0.0
        return {
            "site": self.name,
            "state": self.state,
            "steps": self.steps,
            "planned_steps": self.plan.steps,
            "outcome": self.outcome if self.lost is None else "",
            "plain": self.plain or self.finding,
            "finding": self.finding,
            "charged_epsilon": charged if self.opened is None else self.opened.run.quote.epsilon,
            "reason": None if self.lost is None else f"{type(self.lost).__name__}: {self.lost}",
        }


class Group:
    """Sites that train together, one model or models that learn from each other; often one site alone.

    Args:
        sites: at least one.
        store: where the state of the shared model is kept, or None.
        straggler_s: see `ask_each`.

    Attributes:
        sites: all of them, also those set aside.
    """

    def __init__(self, sites: Sequence[Site], store: Checkpoint | None, *, straggler_s: float | None = None) -> None:
        self.sites = list(sites)
        self.store = store
        self._straggler_s = straggler_s

    def __str__(self) -> str:
        return ", ".join(site.name for site in self.sites)

    @property
    def live(self) -> list[Site]:
        """Those that still take part."""
        return [site for site in self.sites if site.lost is None]

    def shares(self, sites: Sequence[Site]) -> dict[str, float]:
        """Each site's part of a sum over these sites."""
        total = sum(site.weight for site in sites)
        return {site.name: site.weight / total for site in sites}

    def each(self, act: Callable[[Site], _Answer], sites: Sequence[Site] | None = None) -> dict[str, _Answer]:
        """Asks sites in parallel, and sets aside those that fail.

        Args:
            act: asks one site.
            sites: which; by default all that take part.

        Returns:
            The answers by name, without those of sites that were set aside.

        Raises:
            DpswdError: the last site was set aside; the error is the first that ended one.
            SettingsError: of any site: the caller's settings are wrong, other sites do not help.
        """
        asked = {site.name: site for site in (self.live if sites is None else sites)}
        return self._heard(asked, act, straggler_s=self._straggler_s)

    def charge_each(self, begin: Callable[[Site], Release[Any]]) -> None:
        """Opens the run of every site that takes part, and sets aside those that fail.

        All are waited for, stragglers too: a thread that was left behind would go on and charge a run that nobody has.

        Args:
            begin: opens (hence charges) one site's run.

        Raises:
            DpswdError, SettingsError: see `each`.
        """

        def act(site: Site) -> None:
            try:
                site.begin(begin(site))
            except _UNHEARD:
                site.perhaps_charged = True
                raise

        self._heard({site.name: site for site in self.live}, act, to_the_end=True)

    def _heard(
        self,
        asked: Mapping[str, Site],
        act: Callable[[Site], _Answer],
        *,
        straggler_s: float | None = None,
        to_the_end: bool = False,
    ) -> dict[str, _Answer]:
        """See `each`."""
        answers, failed = ask_each(
            list(asked),
            lambda name: act(asked[name]),
            parallel=Ranks.current().size == 1,  # ranks ask together, so all of them ask in one order
            straggler_s=straggler_s,
            to_the_end=to_the_end,
        )
        for name, error in failed.items():
            self._set_aside(asked[name], error)
        if not self.live:
            raise next(site.lost for site in self.sites if site.lost is not None)
        return answers

    def record_shape(self) -> tuple[int, ...]:
        """Of one record, as the sites that take part tell it now; those that do not answer are set aside.

        Raises:
            DpswdError: none answers; the first one's error.
        """
        shapes = self.each(lambda site: site.curator.describe().record_shape)
        return next(iter(shapes.values()))

    def _set_aside(self, site: Site, error: DpswdError) -> None:
        site.lost = error
        if site.opened is None and site.store is not None and isinstance(error, _UNHEARD):
            site.perhaps_charged = site.perhaps_charged or site.store.begun
        if site.name != ALONE:
            perhaps = "; its run may have been charged" if site.perhaps_charged else ""
            _log.warning(
                "%s is set aside after %d of %d steps%s (%s: %s)",
                site.name, site.steps, site.plan.steps, perhaps, type(error).__name__, error,
            )  # fmt: skip


def ask_first(
    sites: Sequence[Site],
    declarable: Callable[[tuple[int, ...]], Declarable],
    check: Callable[[Description], None],
    *,
    straggler_s: float | None = None,
    all_or_none: bool = False,
) -> None:
    """Prices each site's plan at its curator; those that refuse are set aside.

    Args:
        sites: of one training; those whose run is declared already are not asked.
        declarable: what would be declared for records of a shape.
        check: refuses a data set that does not go with the source.
        straggler_s: see `ask_each`.
        all_or_none: refuses the training where a site would be set aside.

    Raises:
        DpswdError: no site is left, or one is not; the first one's error, such as `BudgetExhausted`, or the method's
            that a release would be for nothing.
    """
    everybody = Group(sites, None, straggler_s=straggler_s)
    new = [site for site in sites if site.store is None or not site.store.begun]
    if not new:
        return
    described = everybody.each(lambda site: site.curator.describe(), new)
    shape = next(iter(described.values())).record_shape
    ready = declarable(shape)

    def ask(site: Site) -> None:
        description = described[site.name]
        site.contract = description.contract
        if description.record_shape != shape:
            raise InvalidValue(
                f"{site.name} holds records of shape {description.record_shape}, the others of {shape}; train for it "
                "apart"
            )
        check(description)
        plan, _ = quoted(site.curator, ready, site.plan, required=True)
        refuse(plan.method.worthless(plan))

    everybody.each(ask, [site for site in new if site.lost is None])
    for site in sites:
        if all_or_none and site.lost is not None:
            site.lost.add_note(f'{site.name} is needed (absent="refuse"); nothing was spent')
            raise site.lost


def train_groups(groups: Sequence[Group], begin: Callable[[Group], None], train: Callable[[Group], None]) -> None:
    """Begins groups one after the other and trains them in parallel, each in a thread; ranks, in one order.

    A group that loses all its sites leaves the others alone.

    Args:
        groups: at least one.
        begin: traces extractors, which no other thread may run meanwhile, and opens runs.
        train: the rest.

    Raises:
        DpswdError: no group could finish; the first one's error, with the others' as notes.
    """
    failed: list[tuple[Group, DpswdError]] = []

    def attempt(act: Callable[[Group], None], group: Group) -> None:
        try:
            act(group)
        except DpswdError as error:
            if group.live:  # not the sites' doing
                raise
            failed.append((group, error))

    for group in groups:
        attempt(begin, group)
    begun = [group for group in groups if group.live]
    if len(begun) == 1 or Ranks.current().size > 1:
        for group in begun:
            attempt(train, group)
    elif begun:
        with ThreadPoolExecutor(len(begun), thread_name_prefix="group") as pool:
            list(pool.map(lambda group: attempt(train, group), begun))
    if len(failed) == len(groups):
        _, first = failed[0]
        for group, error in failed[1:]:
            first.add_note(f"{group}: {error}")
        raise first
