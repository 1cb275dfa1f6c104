"""Which mechanisms a client may use: the operator's word, held against what the curator knows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from dpswd.private_curator.settings.groups import PermissionSettings
from dpswd.shared.core.errors import RequestInvalid, SettingsError
from dpswd.shared.core.mechanisms.interface import AnyMechanism
from dpswd.shared.mechanisms import PUBLISHED, SWITCH, mechanisms

_Mechanism = TypeVar("_Mechanism")


def switched_on(settings: PermissionSettings) -> Mapping[str, AnyMechanism]:
    """What a curator is composed with: the core's mechanisms, and those of published methods if they are on."""
    return mechanisms(published=settings.published_mechanisms)


def check_permissions(settings: PermissionSettings, mechanisms: Mapping[str, _Mechanism]) -> None:
    """Refuses permissions for what the curator does not know: a misspelt name would allow less than was meant.

    Raises:
        SettingsError: with all unknown names and the known ones.
    """
    named = {name for entry in settings.mechanisms for name in entry.partition("=")[2].split(",")}
    if off := sorted((named - set(mechanisms)) & set(PUBLISHED)):
        raise SettingsError(
            f"clients.mechanisms names {', '.join(off)}, which only published methods need, and those are off: set "
            f"{SWITCH} = true as well, or take them out"
        )
    if unknown := sorted(named - set(mechanisms)):
        raise SettingsError(
            f"clients.mechanisms names {', '.join(unknown)}; this curator knows {', '.join(mechanisms)}"
        )


def permitted(
    settings: PermissionSettings, mechanisms: Mapping[str, _Mechanism], *, client: str
) -> Mapping[str, _Mechanism]:
    """The mechanisms that a client may use, in their order."""
    allowed = settings.allowed_to(client)
    return mechanisms if allowed is None else {name: mechanisms[name] for name in mechanisms if name in allowed}


def require_permitted(
    settings: PermissionSettings, mechanisms: Mapping[str, _Mechanism], mechanism: str, *, client: str
) -> None:
    """Refuses a mechanism that this curator has, but not for this client, and one that is off.

    Raises:
        RequestInvalid: with what the client may use.
    """
    allowed = permitted(settings, mechanisms, client=client)
    if mechanism in PUBLISHED and mechanism not in mechanisms:
        text = f"{mechanism!r} is of published methods, which are off here; on are {', '.join(allowed)}"
        raise RequestInvalid((("parameters.mechanism", f"{text}. Ask the operator to turn them on ({SWITCH})"),))
    if mechanism in mechanisms and mechanism not in allowed:
        text = f"{mechanism!r} is not allowed to {client}; the operator allows {', '.join(allowed)}"
        raise RequestInvalid((("parameters.mechanism", f"{text} (clients.mechanisms); ask the operator"),))
