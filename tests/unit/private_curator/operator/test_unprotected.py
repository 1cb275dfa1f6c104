"""The list of what no noise protects is complete: held against the contract, the log, the metrics and the spans."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor

from dpswd.private_curator.observability.logs import FIELDS
from dpswd.private_curator.observability.metrics import CATALOGUE
from dpswd.private_curator.observability.tracing import SPAN_ATTRIBUTES
from dpswd.private_curator.operator.officer import TEXTS
from dpswd.shared.core.wire.v1 import curator_pb2 as pb

CONTRACT = pb.DESCRIPTOR
UNPROTECTED = [each["places"].split() for each in TEXTS["unprotected"]]
RELEASED = set(TEXTS["released"]["places"].split())
SENT_BY_A_TEAM = {CONTRACT.message_types_by_name["Proposal"]}
"""Stands in a reply, and holds nothing of the hospital's."""


def within(message: Descriptor) -> Iterator[Descriptor]:
    """A message and all that its fields hold."""
    yield message
    for field in message.fields:
        if field.message_type is not None and field.message_type not in SENT_BY_A_TEAM:
            yield from within(field.message_type)


def replied() -> set[Descriptor]:
    """All messages that leave a curator: replies, what a step holds, and the published file."""
    calls = [method for service in CONTRACT.services_by_name.values() for method in service.methods]
    roots = {call.output_type for call in calls}
    roots |= {one for name, one in CONTRACT.message_types_by_name.items() if name.endswith("Reply")}
    roots |= {CONTRACT.message_types_by_name[name] for name in ("StepRelease", "Publication")}
    return {inner for root in roots for inner in within(root)}


def asked() -> set[Descriptor]:
    """All messages that a team sends: requests, declarations, proposals."""
    calls = [method for service in CONTRACT.services_by_name.values() for method in service.methods]
    roots = {call.input_type for call in calls} | SENT_BY_A_TEAM
    roots |= {one for name, one in CONTRACT.message_types_by_name.items() if name.endswith(("Declaration", "Request"))}
    return {inner for root in roots for inner in within(root)}


def leaving() -> set[str]:
    fields = {f"{message.name}.{field.name}" for message in replied() for field in message.fields}
    fields |= {f"log:{name}" for name in FIELDS} | {f"metric:{name}" for name in CATALOGUE}
    return fields | {f"span:{name}" for name in SPAN_ATTRIBUTES}


def test_every_field_that_leaves_is_released_with_noise_or_in_the_list():
    listed = set().union(*UNPROTECTED) | RELEASED
    assert leaving() - listed == set(), "say in operator/officer.toml what this tells"
    assert listed - leaving() == set(), "no such field leaves any more"


def test_nothing_is_in_two_places_of_the_list():
    places = [place for places in UNPROTECTED for place in places]
    assert len(places) == len(set(places))
    assert not RELEASED & set(places)


def test_every_message_of_the_contract_is_a_reply_or_a_request():
    """A message that neither is could be sent without this test seeing it."""
    messages = replied() | asked()
    assert [name for name, one in CONTRACT.message_types_by_name.items() if one not in messages] == []


def test_only_arrays_of_noised_numbers_are_called_released():
    """Bytes that hold a reply, noised integers on a grid, or a message of them."""
    for place in RELEASED:
        message, _, name = place.partition(".")
        field = CONTRACT.message_types_by_name[message].fields_by_name[name]
        held = field.message_type and field.message_type.name
        assert field.type == field.TYPE_BYTES or held in ("GridArray", "SlicedReply", "DrawStepResponse"), place
