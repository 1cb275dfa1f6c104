"""Sends mutated requests of every RPC to a whole curator and holds each answer against what must be true of it.

    python -m benchmarks.fuzz [--inputs 1000000] [--seed 0] [--isolation in-process] [--page FILE]

After every single request: the answer is of the RPC's type or a refusal with a known reason and a text (never an
incident), it came within 20 s, the budget changed only if a run was opened, and never beyond what the operator set. A
request that breaks one of these is written to --findings with the RPC's name, and the exit status is 1.
"""

from __future__ import annotations

import argparse
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

SHARES = {"Describe": 1, "UploadExtractor": 5, "UploadSource": 4, "OpenRun": 2, "DrawStep rows": 4,
          "DrawStep quantiles": 2, "DrawStep gradient of rows": 5, "DrawStep gradient of quantiles": 3,
          "DrawStep evaluation": 3, "DrawStep critic": 4, "RequestBudget": 1}  # fmt: skip
"""How often each kind of request is drawn. A run of new parameters takes up to a second, others about a millisecond."""

KINDS = tuple(SHARES)
"""The RPCs, and of steps the runs."""

_REPORT_S = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop early after as long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--isolation", choices=("in-process", "process"), default="in-process")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm") if Path("/dev/shm").is_dir() else None)
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--page", type=Path, help="a Markdown file for the page")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="dpswd-fuzz-", dir=options.directory) as directory,
        Site(Path(directory), isolation=options.isolation) as site,
    ):
        campaign = Campaign(site, options.seed, options.findings)
        campaign.run(options.inputs, seconds=options.seconds)
    isolation = "" if options.isolation == "in-process" else f" --isolation {options.isolation}"
    page = campaign.page(f"python -m benchmarks.fuzz --inputs {options.inputs} --seed {options.seed}{isolation}")
    print(page)
    if options.page:
        options.page.write_text(page, encoding="utf-8")
    return 1 if campaign.findings else 0


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

    def page(self, command: str) -> str:
        """The table of outcomes as Markdown."""
        sent = f"{sum(self.outcomes.values()):,} mutated requests in {self.seconds:,.0f} s"
        early, late = (f"{size / 2**20:,.0f} MiB" for size in self.memory)
        lines = [
            "# Fuzzing the curator",
            "",
            f"`{command}`: {sent}; {len(self.findings)} broke a promise.",
            f"{self.opened:,} opened a run and were charged for it; no other changed the budget.",
            f"Resident memory: {early} after a tenth of them, {late} at the end.",
            "",
            "| request | answered | refused | undecodable | slowest | refusals by reason |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for kind in KINDS:
            reasons = Counter({reason: n for (of, reason), n in self.outcomes.items() if of == kind})
            answered, broken = reasons.pop("OK", 0), reasons.pop("UNDECODABLE", 0)
            by_reason = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common())
            lines.append(
                f"| {kind} | {answered:,} | {reasons.total():,} | {broken:,} | "
                f"{1e3 * self.slowest.get(kind, 0.0):,.0f} ms | {by_reason} |"
            )
        return "\n".join([*lines, "", *(f"- {finding}" for finding in self.findings), ""]).rstrip() + "\n"


def method_of(kind: str) -> str:
    """The RPC that takes requests of a kind."""
    return kind.partition(" ")[0]


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
