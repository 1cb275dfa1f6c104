"""A proposal's price from public values alone: no record is read, no key, no worker, and nothing is charged.

`Publishing.preview` says the same of a curator that is ready to publish, which also tries the release on made records.
"""

from __future__ import annotations

from dpswd.private_curator.books.register import Register
from dpswd.private_curator.operator.publishing import Preview
from dpswd.private_curator.serving.service import facts_of, limits_of
from dpswd.private_curator.settings.permissions import require_permitted, switched_on
from dpswd.private_curator.settings.tree import CuratorSettings
from dpswd.shared.core.errors import ExtractorNotApproved, InvalidValue
from dpswd.shared.core.mechanisms.interface import ModelFacts
from dpswd.shared.core.steps.admission import admit_run
from dpswd.shared.core.wire.checks import invalid
from dpswd.shared.protocol.publications import Proposal
from dpswd.shared.sandbox.graph import ExtractorGraph


def priced(proposal: Proposal, *, client: str, books: Register, settings: CuratorSettings, day: str) -> Preview:
    """What a proposal would release to everybody, and what it would cost now.

    Whether the extractor fits the records, and how long the release takes, is found when it is made.

    Args:
        proposal: from a team.
        client: the registered name that would be charged.
        books: as they stand.
        settings: the operator's choices.
        day: today, UTC, for a cap on the client's day.

    Raises:
        RequestInvalid: the proposal breaks a rule, or was made for another data set.
        ExtractorNotApproved: the operator lists extractors, and this one is not listed.
        GrantNotHeld: the client is not registered, shut out, or paused.
    """
    asked, records = proposal.parameters, books.records
    if asked.batch_size != records:
        text = f"is {asked.batch_size}; a publication is of all {records} records: prepare it for this data set"
        raise invalid("proposal.parameters.batch_size", text)
    mechanisms = switched_on(settings.clients)
    require_permitted(settings.clients, mechanisms, asked.mechanism, client=client)
    if settings.extractors.approval == "listed" and asked.graph_digest not in books.extractors:
        raise ExtractorNotApproved(
            f"the graph {asked.graph_digest} is not approved; `dpswd-curator extractors --approve` lists it"
        )
    try:
        model = ModelFacts.of(ExtractorGraph.from_bytes(proposal.graph))
    except InvalidValue as error:
        raise invalid("proposal.graph", str(error)) from error
    run = admit_run(
        asked,
        mechanisms=mechanisms,
        data=facts_of(settings.records, records=records, record_shape=model.input_shape),
        model=model,
        limits=limits_of(settings.limits, records=records),
    )
    quote = books.quote(client, run.event, books.charges(client, run.event), day=day)
    return Preview.of(run, quote, expected=proposal.epsilon)
