"""A curator's home with half a year behind it: clients, charges, requests, an extension, refusals."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import numpy as np
from charged_home import charged
from declarations import quantiles, rows
from made_home import made_home
from set_clock import SetClock

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.storage.asks import Ask
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.core.privacy.budget import PrivacyBudget

RECORDS = 4096
OPENED = dt.datetime.now(dt.UTC).replace(hour=9, minute=0, second=0, microsecond=0) - dt.timedelta(days=165)
SCRIPT = "<script>alert(1)</script>"
PURPOSES = (
    "Spring study: adapt the pneumonia screener to the northern site",
    f"Check of {SCRIPT} & 'quotes' \u202etxt.exe",
    "Fairness audit over age groups, agreed with the board on 12 May",
    "",
)


def made_home_without_a_past(directory: Path) -> HomeDirectory:
    """A curator that nobody has asked anything."""
    return made_home(directory, np.zeros((RECORDS, 4), dtype=np.float32), clients={})


def home_with_a_past(directory: Path, *, operator: str = "Dr. Weiss") -> HomeDirectory:
    """Three clients, six charges, an extension, two requests of which one waits, refusals."""
    clock = SetClock(OPENED)
    made = made_home(directory, np.zeros((RECORDS, 4), dtype=np.float32), epsilon=2.0, clients={})
    home, key = HomeDirectory(made.path, operator=operator), made.read_ledger_key()
    home.ledger.unlink()
    home.ledger_witness().unlink()
    common = {"clock": clock, "by": operator, "witness": home.ledger_witness()}
    first = PrivacyBudget(epsilon=2.0, delta=1e-5)
    with Ledger.create(home.ledger, key=key, records=RECORDS, budget=first, **common) as books:
        for name, share in (("ml-team", None), ("audit-group", 0.8), ("radiology.lab", 1.0)):
            issued, _ = home.authority.make_client(name=name)
            books.add_client(name, issued.fingerprint, None if share is None else replace(first, epsilon=share))
            seen = Ask(time=OPENED, operation="Describe", client=name, outcome="OK", peer="10.1.4.7")
            home.asks.record(replace(seen, fingerprint=issued.fingerprint))
        for number, (client, sigma, days) in enumerate(
            [("ml-team", 0.9, 12), ("audit-group", 1.2, 30), ("ml-team", 1.1, 25), ("ml-team", 1.4, 40)]
        ):
            clock.now += dt.timedelta(days=days)
            charged(books, quantiles(8, sigma), client=client, batch=RECORDS, purpose=PURPOSES[number])
        clock.now += dt.timedelta(days=20)
        books.extend_budget(replace(first, epsilon=3.0), reason="second study, approved, minute 13")
        clock.now += dt.timedelta(days=6)
        charged(books, quantiles(8, 1.0), batch=RECORDS, purpose=PURPOSES[0])
        asked = books.request_budget(client="audit-group", epsilon=0.5, purpose="two more age groups")
        clock.now += dt.timedelta(days=1)
        books.decide_request(asked.number, granted=0.25, reason="one group now")
        clock.now += dt.timedelta(days=9)
        charged(books, rows(8.0), client="audit-group", batch=256, steps=40, purpose=PURPOSES[2])
        books.request_budget(client="ml-team", epsilon=0.4, purpose=f"A last run before the paper {SCRIPT}")
        refused = replace(seen, time=clock.now, operation="OpenRun", outcome="BUDGET_EXHAUSTED", mechanism="rows")
        for _ in range(3):
            home.asks.record(replace(refused, epsilon=4.2, purpose=SCRIPT, fingerprint="ee" * 32))
    home.asks.close()
    return home
