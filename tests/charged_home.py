"""Charges runs to a curator's ledger as its service would, without a service: no step of them is computed."""

from __future__ import annotations

import uuid

from declarations import Declared

from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.core.ledger.statements import Request, Run
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, ModelFacts, RunSize
from dpswd.shared.core.privacy.events import RunEvent, StepEvent
from dpswd.shared.core.wire.messages import RunParameters, run_digest
from dpswd.shared.published_mechanisms import ALL_MECHANISMS


def charged(
    ledger: Ledger, declared: Declared, *, client: str = "ml-team", batch: int, steps: int = 1, purpose: str = ""
) -> Run:
    """Opens a run of a graph of four features."""
    mechanism, declaration = declared
    parameters = RunParameters("a" * 64, "b" * 64, mechanism, declaration.to_bytes(), batch, steps)
    facts = Facts(DataSetFacts(ledger.records, (4,)), ModelFacts((4,), 4, {}))
    parts = ALL_MECHANISMS[mechanism].parts(declaration, RunSize(batch, steps), facts)
    request = Request(client=client, request_id=str(uuid.uuid4()), digest=run_digest(parameters))
    event = RunEvent(StepEvent(ledger.records, batch, parts), steps)
    return ledger.open_run(request, event=event, parameters=parameters.to_bytes(), purpose=purpose)
