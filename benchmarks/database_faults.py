"""Two live curators on one PostgreSQL with a synchronous standby, under faults that are drawn by seed.

    python -m benchmarks.database_faults [--minutes 25] [--seeds 1] [--results FILE]

Both servers and both curators are processes of their own; three clients open runs and draw steps over mutual TLS, each
request from either curator, and repeat it with its id until it is answered. `Site.faults` names the faults: all of
them in a new order, again and again. Between the curators, the primary and the standby are sockets that are held here,
so that a network can be cut, or hold back all that is sent; a clock is moved as in `benchmarks.cluster_faults`.

After each fault both curators answer again, or are started again, which is counted. Then the ledger is derived anew
and held to every receipt that a client has, kept replies are asked for again from both curators, and each of these is
a violation: epsilon above the budget, a request with two entries, a receipt that the ledger lacks, a reply with other
bytes, an answer where all must be refused. At the end three runs that just fit are asked for eight times at once,
while the primary dies. Any violation ends with status 1.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import itertools
import logging
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from benchmarks import records
from benchmarks.cluster_faults import ROOT, Clock
from dpswd.public_client.curator.stub import Curator
from dpswd.public_client.curator.values import new_request_id
from dpswd.shared.core import errors

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "story"))
from curator_process import CuratorProcess, Replica, upload
from declarations import quantiles
from drawn_steps import new_step, parameters
from postgres_proxy import Network
from postgres_server import DATABASE, ROLE, PostgresServer

RESULTS = Path(__file__).parent / "results" / "database-faults.json"
TEAMS = ("north", "east", "south")
EPSILON, PATIENCE_S = 9000.0, 180.0
REFUSED = "put back to an older state"


class Site:
    """Everything that is live. `primary` numbers the server that takes writes."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        folder.chmod(0o755)  # PostgreSQL runs as another user, and does not run as root
        self.folder, self.rng, self.primary = folder, rng, 0
        self.events: Counter[str] = Counter()
        self.violations: list[str] = []
        self.database_clocks = [Clock(folder, f"database-{number}") for number in range(2)]
        self.clocks = [Clock(folder, f"curator-{number}") for number in range(2)]
        self.closing = contextlib.ExitStack()
        self.numbers = itertools.count()
        self.servers = [PostgresServer(environment=self.shim(0))]
        self.closing.callback(lambda: [server.close() for server in self.servers])
        self.synchronous("*")
        # Of each curator to each server; the curators' URLs stay as they are whatever server is there.
        self.networks = [[self.network(self.servers[0].socket) for _ in range(2)] for _ in range(2)]
        self.follow()
        urls = [
            f"postgresql://{ROLE}@/{DATABASE}?host={','.join(str(each.directory) for each in mine)}"
            f"&port={self.servers[0].port}"
            for mine in self.networks
        ]
        (folder / "first").mkdir()
        values = np.random.default_rng(4).normal(size=(600, 5))
        first = CuratorProcess(
            folder / "first", values, epsilon=EPSILON, init=["--ledger-url", urls[0]], isolation="in-process"
        )
        for name in TEAMS:
            first.command("add", name, "--out", first.credentials(name))
        first.home.uploads.mkdir(exist_ok=True)
        second = Replica(first, folder / "second")
        second.home.settings.write_text(second.home.settings.read_text().replace(urls[0], urls[1]))
        self.curators = [first, second]
        for curator, clock in zip(self.curators, self.clocks, strict=True):
            curator.environment = clock.environment
            curator.start()
            self.closing.callback(self.end, curator)

    def shim(self, number: int) -> dict[str, str]:
        made = self.database_clocks[number].environment
        return {name: made[name] for name in ("LD_PRELOAD", "CLOCK_OFFSET")}

    def network(self, server: Path) -> Network:
        directory = self.folder / f"net-{next(self.numbers)}"
        directory.mkdir(mode=0o755)
        made = Network(directory, server)
        (directory / server.name).chmod(0o777)
        self.closing.callback(made.close)
        return made

    def synchronous(self, names: str, *servers: PostgresServer) -> None:
        for server in servers or (self.servers[self.primary],):
            with server.administer() as administrator:
                administrator.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
                administrator.execute("SELECT pg_reload_conf()")

    def follow(self) -> None:
        """A new standby of the primary, in the place of the other server."""
        primary, other = self.servers[self.primary], 1 - self.primary
        self.between = self.network(primary.socket)
        if len(self.servers) > 1:
            self.servers[other].close()
        made = PostgresServer(of=primary, through=self.between.directory, environment=self.shim(other))
        self.servers[other:] = [made, *self.servers[other + 1 :]]
        for mine in self.networks:
            mine[other].server = made.socket
        with primary.administer() as administrator:
            self.until(
                lambda: administrator.execute("SELECT sync_state FROM pg_stat_replication").fetchone() == ("sync",)
            )

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.05)

    def end(self, curator: CuratorProcess) -> None:
        if curator.process is not None:
            curator.process.kill()
            curator.ended()

    def restart(self, *numbers: int) -> None:
        for number in numbers:
            self.end(self.curators[number])
            self.curators[number].start()

    def pause(self, longest: float = 15.0) -> None:
        time.sleep(self.rng.uniform(1.0, longest))

    # Faults.

    def faults(self) -> dict[str, Callable[[], None]]:
        return {
            "connection terminated": self.terminated,
            "wait of a commit cancelled": self.cancelled,
            "wait cancelled, then failover": lambda: self.failover(cancelled=True),
            "curator killed": lambda: self.restart(self.rng.randrange(2)),
            "curator stopped for up to 35 s": self.curator_stopped,
            "primary killed, started": lambda: self.started(PostgresServer.kill),
            "primary stopped, started": lambda: self.started(PostgresServer.stop),
            "primary stopped for up to 35 s": self.primary_stopped,
            "curator cut off its database": lambda: self.parted([self.networks[self.rng.randrange(2)]], Network.cut),
            "curator's packets held back": lambda: self.parted([self.networks[self.rng.randrange(2)]], Network.hold),
            "both curators cut off": lambda: self.parted(self.networks, Network.cut),
            "standby cut off": lambda: self.parted([[self.between]], Network.cut),
            "standby's packets held back": lambda: self.parted([[self.between]], Network.hold),
            "failover": self.failover,
            "failover, the old primary lives on": self.split,
            "late promotion of an older standby": self.late,
            "a curator's clock jumps": self.clock,
            "the database's clock jumps": self.database_clock,
            "a start with a wrong clock": self.wrong_start,
        }

    def terminated(self) -> None:
        with self.servers[self.primary].administer() as administrator:
            for _ in range(self.rng.randrange(1, 8)):
                administrator.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dpswd-curator' "
                    "ORDER BY random() LIMIT 1"
                )
                time.sleep(self.rng.uniform(0.0, 0.5))

    def cancel(self, server: PostgresServer) -> None:
        """One commit that waits for the standby."""
        waiting = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' LIMIT 1"
        with server.administer() as administrator:
            self.until(lambda: administrator.execute(waiting).fetchone())
        self.events["waits cancelled"] += 1

    def cancelled(self) -> None:
        self.between.hold()
        for _ in range(self.rng.randrange(1, 5)):
            self.cancel(self.servers[self.primary])
        self.between.mend()

    def curator_stopped(self) -> None:
        process = self.curators[self.rng.randrange(2)].process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        self.pause(35.0)
        process.send_signal(signal.SIGCONT)

    def started(self, end: Callable[[PostgresServer], None]) -> None:
        end(self.servers[self.primary])
        self.pause()
        self.servers[self.primary].start()

    def primary_stopped(self) -> None:
        self.servers[self.primary].signal(signal.SIGSTOP)
        self.pause(35.0)
        self.servers[self.primary].signal(signal.SIGCONT)

    def parted(self, networks: list[list[Network]], how: Callable[[Network], None]) -> None:
        for each in itertools.chain(*networks):
            how(each)
        self.pause(35.0)
        for each in itertools.chain(*networks):
            each.mend()

    def failover(self, *, cancelled: bool = False) -> None:
        if cancelled:  # the primary then has what its successor lacks, and what nobody was told
            self.between.cut()
            self.cancel(self.servers[self.primary])
            time.sleep(2.0)
        self.servers[self.primary].kill()
        self.pause(5.0)
        self.primary = 1 - self.primary
        self.servers[self.primary].promote()
        self.pause(5.0)
        self.follow()

    def split(self) -> None:
        """Two that take writes, one curator at each: the old one's commits wait for a standby that is none any more."""
        old, fenced = self.primary, self.rng.randrange(2)
        self.between.cut()
        self.primary = 1 - old
        self.servers[self.primary].promote()
        self.networks[fenced][old].cut()
        self.networks[1 - fenced][1 - old].cut()
        for _ in range(self.rng.randrange(3)):
            with contextlib.suppress(TimeoutError):
                self.until(lambda: self.cancel(self.servers[old]) is None, 10.0)
        self.pause(20.0)
        self.servers[old].kill()
        for mine in self.networks:
            for each in mine:
                each.mend()
        self.follow()

    def late(self) -> None:
        """The standby is no synchronous one any more and cut off; both curators refuse it whatever one has missed."""
        primary, standby = self.servers[self.primary], self.servers[1 - self.primary]
        away = self.rng.choice(([], [0], [1]))
        self.synchronous("", primary, standby)
        self.between.cut()
        before = list(self.answers)
        for number in away:
            for each in self.networks[number]:
                each.cut()
        self.until(lambda: all(self.answers[number] > before[number] + 3 for number in {0, 1} - set(away)))
        primary.kill()
        standby.promote()
        self.primary = 1 - self.primary
        had = self.entries()
        for number in away:
            for each in self.networks[number]:
                each.mend()
        begun = dict(self.heard_at)
        for number in range(2):
            self.until(lambda number=number: REFUSED in self.heard[number] and self.heard_at[number] > begun[number])
        self.pause(5.0)
        if (has := self.entries()) != had:
            self.violations.append(f"a standby that lacked charges went from {had} to {has} entries")
        self.servers[self.primary].kill()
        self.primary = 1 - self.primary
        primary.start()
        self.synchronous("*")
        self.follow()
        self.restart(0, 1)

    def entries(self) -> int:
        with self.servers[self.primary].administer() as administrator:
            return int(administrator.execute("SELECT count(*) FROM dpswd.entries").fetchone()[0])

    def clock(self) -> None:
        clock = self.clocks[self.rng.randrange(2)]
        clock.jump(self.rng.choice((-1, 1)) * self.rng.choice((120, 3_600, 86_400 * 3)))
        self.pause()
        clock.jump(0)

    def database_clock(self) -> None:
        """Within the 5 minutes by which clocks may differ."""
        clock = self.database_clocks[self.primary]
        clock.jump(self.rng.choice((-1, 1)) * self.rng.choice((5, 60, 240)))
        self.pause()
        clock.jump(0)

    def wrong_start(self) -> None:
        number = self.rng.randrange(2)
        curator, clock = self.curators[number], self.clocks[number]
        self.end(curator)
        clock.jump(self.rng.choice((-1, 1)) * self.rng.choice((3_600, 86_400 * 3)))
        before = len(curator.log.read_text())
        try:
            curator.start()
            self.violations.append("a curator started with a wrong clock")
        except AssertionError:
            if "set the clock of the machine that is wrong" not in curator.log.read_text()[before:]:
                raise
            self.events["starts with a wrong clock refused"] += 1
        self.end(curator)
        clock.jump(0)
        curator.start()

    # Clients.

    def serve_teams(self) -> None:
        self.answers, self.ending = [0, 0], threading.Event()
        self.heard, self.heard_at = {0: "", 1: ""}, {0: 0.0, 1: 0.0}
        self.met: Counter[str] = Counter()
        self.waits: list[float] = []
        self.replies: list[tuple[Any, bytes]] = []
        self.receipts: list[Any] = []
        module = nn.Linear(5, 4)
        for name in TEAMS:
            with self.curators[0].connect(name=name) as curator:
                self.uploaded = upload(curator, module)
        self.teams = [threading.Thread(target=self.team, args=(Asking(self, name),), daemon=True) for name in TEAMS]
        for team in self.teams:
            team.start()

    def team(self, asking: Asking) -> None:
        declared = parameters(self.uploaded, quantiles(2, 50.0, directions=10), batch_size=20, steps=3)
        with contextlib.suppress(Ended):
            while True:
                number = new_request_id()
                run = asking.answered(lambda own, number=number: own.open_run(declared, request_id=number))
                for _ in range(3):
                    pending = new_step(run)
                    reply = asking.answered(lambda own, pending=pending: own.send(pending)).payload
                    self.replies.append((asking.name, pending, reply))

    # What is looked at.

    def go_on(self) -> None:
        """Both curators answer new requests again."""
        for again in (False, True):
            before = list(self.answers)
            try:
                self.until(
                    lambda before=before: all(now > then + 2 for now, then in zip(self.answers, before, strict=True))
                )
            except TimeoutError:
                words = f"no answer for {PATIENCE_S:g} s: {self.heard}"
                if again:
                    raise SystemExit(words) from None
                self.events["curators were started again"] += 1
                print(words, flush=True)
                self.restart(0, 1)
            else:
                return

    def check(self, asking: Asking, *, sample: int) -> None:
        receipts, replies = list(self.receipts), list(self.replies)
        with self.curators[0].home.open_ledger(witnessed=False) as ledger:
            report, kinds = ledger.verify(receipts=receipts), Counter[tuple[Any, ...]]()
            for entry in ledger.history():
                if entry.kind in ("run-opened", "step-consumed", "step-answered"):
                    kinds[entry.kind, entry.payload["client"], entry.payload["request_id"]] += 1
        wrong = [finding.text for finding in report.findings]
        if report.epsilon_spent > EPSILON:
            wrong.append(f"epsilon {report.epsilon_spent} of {EPSILON}")
        wrong += [f"{count} entries for {what}" for what, count in kinds.items() if count > 1]
        chosen = replies[-10:] + self.rng.sample(replies, min(sample, len(replies)))
        for (name, pending, reply), number in itertools.product(chosen, range(2)):
            if asking.answered(lambda own, pending=pending: own.send(pending), number, name).payload != reply:
                wrong.append(f"other bytes for {pending}")
            self.events["replies asked for again"] += 1
        self.events["verifications"] += 1
        self.counts = Counter(kind for kind, *_ in kinds)
        self.violations += wrong

    def race(self, asking: Asking) -> None:
        """Three runs fit. They are asked for eight times, from both curators, while the primary dies."""
        plan = parameters(self.uploaded, quantiles(2, 0.5, directions=10), batch_size=20, steps=1)
        asking.answered(lambda own: own.open_run(plan))
        fitting = asking.answered(lambda own: own.price_run(replace(plan, steps=10_000_000))).steps_that_fit
        assert fitting < 10_000_000, "the budget is what bounds it"
        part, outcomes = replace(plan, steps=fitting // 3), Counter[str]()

        def spend(number: int) -> None:
            mine, own_id = Asking(self, TEAMS[number % 3]), new_request_id()
            try:
                mine.answered(lambda own: own.open_run(part, request_id=own_id), number % 2)
                outcomes["charged"] += 1
            except errors.BudgetExhausted:
                outcomes["refused"] += 1

        spending = [threading.Thread(target=spend, args=(number,)) for number in range(8)]
        for each in spending:
            each.start()
        self.failover()
        for each in spending:
            each.join()
        self.events["runs charged of eight where three fit"] = outcomes["charged"]
        if outcomes != {"charged": 3, "refused": 5}:
            self.violations.append(f"three runs fitted: {outcomes}")


class Ended(Exception):
    """The clients' time is over."""


class Asking:
    """A client's connections to both curators, at whatever address they have now."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, name
        self._open: dict[tuple[int, str], tuple[str, Curator]] = {}

    def _curator(self, number: int, name: str) -> Curator:
        served = self.site.curators[number]
        try:
            address = served.address
        except FileNotFoundError:
            raise errors.CuratorUnavailable("it is being started") from None
        held, curator = self._open.get((number, name), ("", None))
        if curator is None or held != address:
            if curator is not None:
                curator.close()
                del self._open[number, name]
            curator = Curator.connect(
                address,
                credentials=self.site.curators[0].credentials(name),
                timeout_s=20.0,
                patience_s=10.0,
                start_s=2.0,
            )
            curator.receipts = self.site.receipts  # type: ignore[assignment] it is only appended to
            self._open[number, name] = address, curator
        return curator

    def answered(self, act: Callable[[Curator], Any], number: int | None = None, name: str | None = None) -> Any:
        """The answer, however often it must be asked for, from either curator or from one."""
        site, begun = self.site, time.monotonic()
        while True:
            if site.ending.is_set() and threading.current_thread() in site.teams:
                raise Ended
            asked = random.randrange(2) if number is None else number
            try:
                answer = act(self._curator(asked, name or self.name))
            except errors.BudgetExhausted:
                raise
            except errors.DpswdError as error:
                site.met[type(error).__name__] += 1
                site.heard[asked], site.heard_at[asked] = str(error), time.monotonic()
                time.sleep(0.2)
            else:
                site.answers[asked] += 1
                site.waits.append(time.monotonic() - begun)
                return answer


@contextlib.contextmanager
def live(rng: random.Random) -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="dpswd-faults-", dir="/tmp") as name:  # sockets' paths are short
        site = Site(Path(name), rng)
        try:
            yield site
        finally:
            if sys.exc_info()[0] is not None or site.violations:
                for curator in site.curators:
                    print(curator.log.read_text()[-4000:], file=sys.stderr)
            site.closing.close()


def tried(*, minutes: float, seed: int) -> dict[str, Any]:
    rng, happened = random.Random(seed), Counter[str]()
    with live(rng) as site:
        site.serve_teams()
        asking, faults, order = Asking(site, TEAMS[0]), site.faults(), collections.deque[str]()
        begun = time.monotonic()
        site.go_on()
        while time.monotonic() - begun < 60.0 * minutes and not site.violations:
            if not order:
                order.extend(rng.sample(sorted(faults), len(faults)))
            kind = order.popleft()
            since = time.monotonic()
            time.sleep(rng.uniform(0.0, 2.0))
            faults[kind]()
            site.go_on()
            site.check(asking, sample=10)
            happened[kind] += 1
            print(f"{time.monotonic() - begun:.0f} s, {kind}: {time.monotonic() - since:.1f} s", flush=True)
        site.ending.set()
        for team in site.teams:
            team.join()
        site.check(asking, sample=500)
        site.race(asking)
        site.check(asking, sample=10)
        return {
            "minutes": round((time.monotonic() - begun) / 60.0, 1), "faults": happened.total(),
            "of each kind": dict(sorted(happened.items())), "charges and answers": dict(site.counts),
            "receipts held": len(site.receipts), **site.events, "what clients were told meanwhile": dict(site.met),
            "longest wait for an answer, s": round(max(site.waits), 1), "violations": site.violations,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=25.0, help="of each seed")
    records.options(parser, RESULTS, seeds=(1,))
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    logging.getLogger("dpswd").setLevel(logging.ERROR)  # what clients are told is counted
    jobs = [
        ({"seed": seed, "asked_minutes": chosen.minutes}, functools.partial(tried, minutes=chosen.minutes, seed=seed))
        for seed in chosen.seeds
    ]
    rows = records.Rows(RESULTS, chosen.results).run(jobs)
    sys.exit(any(row["violations"] for row in rows))


if __name__ == "__main__":
    main()
