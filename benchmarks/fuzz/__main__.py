"""Sends mutated requests of every RPC to a whole curator and holds each answer against what must be true of it.

    python -m benchmarks.fuzz [--inputs 1000000] [--seeds 0] [--isolation in-process] [--page FILE]

After every single request: the answer is of the RPC's type or a refusal with a known reason and a text (never an
incident), it came within 20 s, the budget changed only if a run was opened, and never beyond what the operator set. A
request that breaks one of these is written to --findings with the RPC's name, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import functools
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.fuzz import seeds
from benchmarks.fuzz.mutation import Mutator
from benchmarks.fuzz.site import Finding, Site
from benchmarks.records import Row, Rows, options, table, written

RESULTS = Path(__file__).parents[1] / "results" / "fuzz.json"
SHARES = {"Describe": 1, "UploadExtractor": 9, "OpenRun": 2, "DrawStep rows": 4,
          "DrawStep quantiles": 2, "DrawStep gradient of rows": 5, "DrawStep gradient of quantiles": 3,
          "DrawStep evaluation": 3, "DrawStep labelled_gradient": 4, "RequestBudget": 1}  # fmt: skip
"""How often each kind of request is drawn. A run of new parameters takes up to a second, others about a millisecond."""

KINDS = tuple(SHARES)
"""The RPCs, and of steps the runs."""

_REPORT_S = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of each seed")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop a seed early after as long")
    parser.add_argument("--isolation", choices=("in-process", "process"), default="in-process")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm") if Path("/dev/shm").is_dir() else None)
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--page", type=Path, help="a Markdown file for the page")
    options(parser, RESULTS, seeds=(0,))
    chosen = parser.parse_args()
    every = [{"seed": seed, "inputs": chosen.inputs, "isolation": chosen.isolation} for seed in chosen.seeds]
    rows = Rows(RESULTS, chosen.results).run([(asked, functools.partial(measured, chosen, **asked)) for asked in every])
    written("\n".join(map(page, rows)), chosen.page)
    return 1 if any(row["findings"] for row in rows) else 0


def measured(chosen: argparse.Namespace, *, seed: int, inputs: int, isolation: str) -> Row:
    """One campaign against a curator of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="dpswd-fuzz-", dir=chosen.directory) as directory,
        Site(Path(directory), isolation=isolation) as site,
    ):
        campaign = Campaign(site, seed, chosen.findings)
        campaign.run(inputs, seconds=chosen.seconds)
    return campaign.figures()


class Campaign:
    """One sequence of requests against one site."""

    def __init__(self, site: Site, seed: int, findings: Path | None = None) -> None:
        rng = random.Random(seed)
        self._site = site
        self._mutator = Mutator(seeds.make(site), rng)
        self._rng = rng
        self._directory = findings
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.slowest: dict[str, float] = {}
        self.opened = 0
        self.findings: list[str] = []
        self.seconds = 0.0
        self.memory = [0, 0]

    def run(self, inputs: int, *, seconds: float = float("inf")) -> None:
        """Sends as many requests, or as many as fit into the time."""
        begun = reported = time.monotonic()
        weights = list(SHARES.values())
        for number in range(inputs):
            (kind,) = self._rng.choices(KINDS, weights)
            data = self._mutator.request(kind)
            try:
                outcome = self._site.send(method_of(kind), data)
            except Finding as finding:
                self._keep(kind, data, str(finding))
                continue
            self.outcomes[kind, outcome.reason] += 1
            self.opened += outcome.spent
            self.slowest[kind] = max(self.slowest.get(kind, 0.0), outcome.seconds)
            if number == inputs // 10:
                self.memory[0] = _resident()
            if time.monotonic() - begun > seconds:
                break
            if time.monotonic() - reported > _REPORT_S:
                reported = time.monotonic()
                print(f"{number + 1:,} of {inputs:,}, {len(self.findings)} findings", file=sys.stderr, flush=True)
        self.seconds, self.memory[1] = time.monotonic() - begun, _resident()

    def _keep(self, kind: str, data: bytes, text: str) -> None:
        self.findings.append(f"{kind}: {text}")
        if self._directory is not None:
            self._directory.mkdir(exist_ok=True)
            (self._directory / f"{len(self.findings):04d}-{method_of(kind)}.bin").write_bytes(data)
            print(f"finding {len(self.findings)}: {text[:400]}", file=sys.stderr, flush=True)

    def figures(self) -> Row:
        """What became of the requests, by kind; memory in MiB after a tenth of them and at the end."""
        by_kind: dict[str, Row] = {}
        for kind in KINDS:
            reasons = Counter({reason: n for (of, reason), n in self.outcomes.items() if of == kind})
            answered, broken = reasons.pop("OK", 0), reasons.pop("UNDECODABLE", 0)
            slowest_ms = 1e3 * self.slowest.get(kind, 0.0)
            counted = {"answered": answered, "refused": reasons.total(), "undecodable": broken}
            by_kind[kind] = {**counted, "slowest_ms": slowest_ms, "reasons": dict(reasons.most_common())}
        return {
            "sent": self.outcomes.total(),
            "sent_s": self.seconds,
            "opened": self.opened,
            "mib": [size / 2**20 for size in self.memory],
            "findings": self.findings,
            "kinds": by_kind,
        }


_COLUMNS = {
    "request": "{kind}",
    "answered": "{answered:,}",
    "refused": "{refused:,}",
    "undecodable": "{undecodable:,}",
    "slowest": "{slowest_ms:,.0f} ms",
    "refusals by reason": "{by_reason}",
}


def page(row: Row) -> str:
    """The table of outcomes as Markdown."""
    isolation = "" if row["isolation"] == "in-process" else f" --isolation {row['isolation']}"
    command = f"python -m benchmarks.fuzz --inputs {row['inputs']} --seeds {row['seed']}{isolation}"
    early, late = row["mib"]
    kinds = [
        {"kind": kind, "by_reason": ", ".join(f"{reason} {n:,}" for reason, n in each["reasons"].items()), **each}
        for kind, each in row["kinds"].items()
    ]
    return f"""# Fuzzing the curator

`{command}`: {row["sent"]:,} mutated requests in {row["sent_s"]:,.0f} s; {len(row["findings"])} broke a promise.
{row["opened"]:,} opened a run and were charged for it; no other changed the budget.
Resident memory: {early:,.0f} MiB after a tenth of them, {late:,.0f} MiB at the end.

{table(kinds, _COLUMNS)}{"".join(f"- {finding}{chr(10)}" for finding in row["findings"])}"""


def method_of(kind: str) -> str:
    """The RPC that takes requests of a kind."""
    return kind.partition(" ")[0]


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
