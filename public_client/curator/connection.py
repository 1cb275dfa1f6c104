"""One channel to one curator: mutual TLS, deadlines, and retries that keep the request id.

A request that may have been charged is only ever repeated with the same bytes, hence the same id: the curator then
answers with the stored reply, free. That is why the retry stands here, below everything that makes requests.
"""

from __future__ import annotations

import datetime as dt
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from dpswd.public_client.curator.identity import AUTHORITY, CERTIFICATE, KEY, read_identity
from dpswd.shared.core import errors
from dpswd.shared.core.wire.limits import MAX_MESSAGE_BYTES
from dpswd.shared.protocol.status import from_rpc_error

_Reply = TypeVar("_Reply", bound=Message)

CREDENTIAL_FILES = (AUTHORITY, CERTIFICATE, KEY)
"""What a credentials directory holds: the curator's authority, the client's certificate and its private key."""

_SAID_AFTER_S = 3.0  # a curator that restarts, or is busy for a moment, is nobody's business

_log = logging.getLogger(__name__)

_WORDS = {
    "UNAVAILABLE": "the curator does not run, its TCP port cannot be reached, or the TLS handshake was refused "
    "(client.crt expired, or another authority's): `dpswd-client describe` looks for the cause",
    "DEADLINE_EXCEEDED": "the curator did not answer in time, or is busy: `dpswd-client describe` looks for the cause",
}
_RETRYABLE = (errors.CuratorUnavailable, errors.RequestInProgress)


@dataclass(frozen=True)
class Patience:
    """How long to wait, and how to come back.

    Attributes:
        timeout_s: deadline of one attempt.
        total_s: no new attempt starts later than this after the first one, or after the last sign of life: the curator
            says that it computes this very request.
        signs: whether an attempt that ended at its deadline is such a sign, once until the next one; off where
            nobody was ever reached.
        first_pause_s: the pause after the first failure; each further pause is twice as long.
        longest_pause_s: the pause stops growing here.
        quiet: whoever waits knows already why.
    """

    timeout_s: float = 120.0
    total_s: float = 180.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0
    quiet: bool = False
    signs: bool = True

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.first_pause_s <= 0 or self.total_s < 0:
            raise errors.SettingsError(
                f"timeout_s ({self.timeout_s}) and first_pause_s ({self.first_pause_s}) must be positive seconds, "
                f"total_s ({self.total_s}) at least 0"
            )


def open_channel(address: str, *, credentials: Path, server_name: str | None = None) -> grpc.Channel:
    """A mutually authenticated channel.

    Args:
        address: ``host:port``.
        credentials: a directory with ca.crt, client.crt and client.key (PEM).
        server_name: the name in the curator's certificate, where it differs from the address (a tunnel, an IP).

    Raises:
        SettingsError: a file is missing or the address has no port.
        CredentialsInvalid: the client's certificate is not valid now.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise errors.SettingsError(f"the curator's address is {address!r}; write host:port, such as localhost:50051")
    missing = [name for name in CREDENTIAL_FILES if not (credentials / name).is_file()]
    if missing:
        raise errors.SettingsError(
            f"the credentials directory {credentials} has no {', '.join(missing)}; it must hold "
            f"{', '.join(CREDENTIAL_FILES)}, as the curator's operator hands them out"
        )
    read_identity(credentials).check(dt.datetime.now(dt.UTC))
    authority, certificate, key = ((credentials / name).read_bytes() for name in CREDENTIAL_FILES)
    options: list[tuple[str, int | str]] = [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # Our own retry keeps the request id and the order of pauses; two layers of retries would multiply.
        ("grpc.enable_retries", 0),
        # A curator that restarts is found again within about a second, not after gRPC's default two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    if server_name is not None:
        options.append(("grpc.ssl_target_name_override", server_name))
    channel_credentials = grpc.ssl_channel_credentials(
        root_certificates=authority, private_key=key, certificate_chain=certificate
    )
    return grpc.secure_channel(address, channel_credentials, options=options)


def call(
    method: Callable[..., Message],
    request: Message,
    reply_type: type[_Reply],
    *,
    patience: Patience,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> _Reply:
    """Sends one request until it is answered, refused for good, or patience ends.

    Every attempt sends the same message. Pauses double, with a random factor between 1/2 and 1 so that many clients
    of a restarted curator do not return at once. A wait that lasts is said in the log, which by itself goes to the
    terminal, once, and so is its end.

    Raises:
        DpswdError: the curator's refusal as its typed error; after the last retryable failure, that failure.
    """
    begun = alive = clock()
    wait_s, said, signs = patience.first_pause_s, patience.quiet, patience.signs
    while True:
        try:
            reply = method(request, timeout=patience.timeout_s)
        except grpc.RpcError as failure:
            error = from_rpc_error(failure)
            if isinstance(error, errors.RequestInProgress):
                alive, signs = clock(), patience.signs
            elif signs and failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED:  # a long step, or a curator that hangs
                alive, signs = clock(), False
            if not isinstance(error, _RETRYABLE) or clock() + wait_s - alive > patience.total_s:
                raise _in_words(error) from failure
            if not said and clock() - begun >= _SAID_AFTER_S:
                said = True
                text = "waiting for the curator, for up to %.0f s without a sign of life: %s"
                _log.warning(text, patience.total_s, _in_words(error))
        else:
            if said:
                _log.warning("the curator answers again, after %.0f s", clock() - begun)
            assert isinstance(reply, reply_type)
            return reply
        pause(wait_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, guards nothing
        wait_s = min(2 * wait_s, patience.longest_pause_s)


def never_answered(error: errors.CuratorUnavailable) -> bool:
    """Whether the error is gRPC's own, not a curator's words: nobody there, no handshake, no answer in time."""
    code = str(error).partition(":")[0]
    return type(error) is errors.CuratorUnavailable and (
        code in grpc.StatusCode.__members__ or str(error) in _WORDS.values()
    )


def _in_words(error: errors.DpswdError) -> errors.DpswdError:
    """Plain words for gRPC's own, which stay its cause."""
    words = _WORDS.get(str(error).partition(":")[0])
    return errors.CuratorUnavailable(words) if words and type(error) is errors.CuratorUnavailable else error
