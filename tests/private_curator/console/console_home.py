"""A curator's home with a year behind it: teams, charges, requests, an extension, a pause; and a console over it."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import numpy as np
from made_home import made_home

from private_curator.ledger.ledger import Ledger
from private_curator.ledger.statements import Request
from private_curator.storage.asks import Ask
from private_curator.storage.home_directory import HomeDirectory
from shared.privacy.budget import PrivacyBudget
from shared.privacy.events import QuantileCoefficients, RunEvent, SanitizedGradient, StepEvent
from shared.protocol.messages import RunParameters, run_digest

RECORDS = 4096
OPENED = dt.datetime(2026, 3, 2, 9, 0, tzinfo=dt.UTC)
SCRIPT = "<script>alert(1)</script>"
PURPOSES = (
    "Spring study: adapt the pneumonia screener to the northern site",
    f"Check of {SCRIPT} & 'quotes' \u202etxt.exe",
    "Fairness audit over age groups, agreed with the board on 12 May",
    "",
)


class Clock:
    """Tells the time that it is given."""

    def __init__(self) -> None:
        self.now = OPENED

    def __call__(self) -> dt.datetime:
        return self.now

    def after(self, days: float) -> None:
        self.now += dt.timedelta(days=days)


def home_with_a_past(directory: Path, *, operator: str = "Dr. Weiss") -> HomeDirectory:
    """Three teams, six charges, an extension, two requests of which one waits, refusals."""
    clock = Clock()
    made = made_home(directory, np.zeros((RECORDS, 4), dtype=np.float32), epsilon=2.0, clients={})
    home, key = HomeDirectory(made.path, operator=operator), made.read_ledger_key()
    home.ledger.unlink()
    home.ledger_witness().unlink()
    told = {"clock": clock, "by": operator, "witness": home.ledger_witness()}
    first = PrivacyBudget(epsilon=2.0, delta=1e-5)
    with Ledger.create(home.ledger, key=key, records=RECORDS, budget=first, **told) as books:
        for name, share in (("ml-team", None), ("audit-group", 0.8), ("radiology.lab", 1.0)):
            issued, _ = home.authority.make_client(name=name)
            books.add_client(name, issued.fingerprint, None if share is None else replace(first, epsilon=share))
            home.asks.record(Ask(time=OPENED, operation="Describe", client=name, outcome="OK", fingerprint=issued.fingerprint, peer="10.1.4.7"))
        for number, (team, sigma, days) in enumerate(
            [("ml-team", 0.35, 12), ("audit-group", 0.5, 30), ("ml-team", 0.45, 25), ("ml-team", 0.6, 40)]
        ):
            clock.after(days)
            charge(books, team, number=number, sigma=sigma, purpose=PURPOSES[number])
        clock.after(20)
        books.extend_budget(replace(first, epsilon=3.0), reason="second study, approved, minute 13")
        clock.after(6)
        charge(books, "ml-team", number=10, sigma=0.4, purpose=PURPOSES[0])
        asked = books.request_budget(client="audit-group", epsilon=0.5, because="two more age groups")
        clock.after(1)
        books.decide_request(asked.number, granted=0.25, reason="one group now")
        clock.after(9)
        charge(books, "audit-group", number=11, sigma=30.0, purpose=PURPOSES[2], gradient=True)
        books.request_budget(client="ml-team", epsilon=0.4, because=f"A last run before the paper {SCRIPT}")
        ask = Ask(time=clock.now, operation="OpenRun", client="radiology.lab", outcome="BUDGET_EXHAUSTED", mechanism="rows")
        for _ in range(3):
            home.asks.record(replace(ask, epsilon=4.2, purpose=SCRIPT, fingerprint="ee" * 32, peer="10.1.4.9"))
    return home


def charge(books: Ledger, client: str, *, number: int, sigma: float, purpose: str, gradient: bool = False):
    """One run, charged without a service."""
    part = SanitizedGradient(256, 1.0, sigma) if gradient else QuantileCoefficients(64, 32, 8, sigma)
    event = RunEvent(StepEvent(records=RECORDS, batch=RECORDS if not gradient else 256, parts=(part,)), 1 if not gradient else 40)
    parameters = RunParameters(
        graph_digest="ab" * 32,
        weights_digest="cd" * 32,
        mechanism="gradient" if gradient else "quantiles",
        declaration=b"",
        batch_size=event.step.batch,
        steps=event.steps,
    )
    request = Request(client=client, request_id=f"request-{number}", digest=run_digest(parameters))
    return books.open_run(request, event=event, parameters=parameters.to_bytes(), purpose=purpose)
