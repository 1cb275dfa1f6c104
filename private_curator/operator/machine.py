"""What the machine says of itself before a curator serves: its clock, and which addresses are free."""

from __future__ import annotations

import ctypes
import socket

from dpswd.shared.core.errors import SettingsError

_UNSYNCHRONISED = 5  # adjtimex(2): TIME_ERROR


def clock_is_synchronised() -> bool:
    """What the kernel knows of the clock (adjtimex(2)); true where it cannot be asked."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex"):
        return True
    # struct timex is 208 bytes on 64-bit Linux; modes = 0 asks and sets nothing.
    state: int = libc.adjtimex(ctypes.create_string_buffer(256))
    return state != _UNSYNCHRONISED


def check_free(host: str, port: int, *, section: str) -> None:
    """Holds an address to be one of this machine's that nobody listens at.

    Args:
        host: name or address.
        port: 0 is any.
        section: of the settings, for the error.

    Raises:
        SettingsError: it is none, or taken.
    """
    name = f"{section}.host {host!r} and {section}.port {port}"
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise SettingsError(
            f"{name}: the host has no address ({error.strerror}); write one of this machine's"
        ) from error
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise SettingsError(
                f"{name} cannot be bound ({error.strerror}); end what listens there, or choose another"
            ) from error
