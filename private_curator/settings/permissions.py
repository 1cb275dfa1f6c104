"""Which mechanisms a client may use: the operator's word, held against what the curator knows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from dpswd.private_curator.settings.groups import PermissionSettings
from dpswd.shared.core.errors import RequestInvalid, SettingsError

_Mechanism = TypeVar("_Mechanism")


def check_permissions(settings: PermissionSettings, mechanisms: Mapping[str, _Mechanism]) -> None:
    """Refuses permissions for what the curator does not know: a misspelt name would allow less than was meant.

    Raises:
        SettingsError: with all unknown names and the known ones.
    """
    named = {name for entry in settings.mechanisms for name in entry.partition("=")[2].split(",")}
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
    """Refuses a mechanism that this curator has, but not for this client.

    Raises:
        RequestInvalid: with what the client may use.
    """
    allowed = permitted(settings, mechanisms, client=client)
    if mechanism in mechanisms and mechanism not in allowed:
        text = f"{mechanism!r} is not allowed to {client}; the operator allows {', '.join(allowed)}"
        raise RequestInvalid((("parameters.mechanism", f"{text} (clients.mechanisms); ask the operator"),))
