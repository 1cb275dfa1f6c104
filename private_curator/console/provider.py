"""Sign-in at the hospital's OpenID provider: the authorization code flow with PKCE, a state and a nonce, by Authlib."""

from __future__ import annotations

import logging
import secrets
import ssl
import time
from pathlib import Path
from typing import Any

import httpx2
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.starlette_client import OAuth
from joserfc.errors import JoseError
from starlette.requests import Request
from starlette.responses import Response

from dpswd.private_curator.console.people import Person, SignInRefused, claimed
from dpswd.private_curator.settings.groups import ConsoleSettings
from dpswd.shared.core.errors import SettingsError

_log = logging.getLogger(__name__)

_FLOW_S, _MOST_FLOWS = 600, 64  # how long, and how many at a time, people may be at the provider
_LEEWAY_S = 60  # that two clocks may differ
_ALGORITHMS = {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
"""By which the provider alone can sign: by no key that it shares, and never by none."""
_FAILURES = (AuthlibBaseError, JoseError, httpx2.HTTPError, OSError, ValueError, KeyError, TypeError, RuntimeError)


class Provider:
    """One OpenID provider; raises SettingsError where a file of the settings, relative to the home, cannot be used."""

    def __init__(self, chosen: ConsoleSettings, *, home: Path) -> None:
        self._chosen, self._issuer = chosen, str(chosen.issuer)
        self._flows: dict[str, tuple[float, dict[str, Any]]] = {}  # what a browser left with, by its cookie
        own = {} if chosen.client_secret_file else {"token_endpoint_auth_method": "none"}
        try:
            trusted = ssl.create_default_context(cafile=chosen.ca_file and home / chosen.ca_file)
            secret = chosen.client_secret_file and (home / chosen.client_secret_file).read_text("utf-8").strip()
        except OSError as error:
            raise SettingsError(f"a file of the console's settings cannot be used: {error}") from error
        self._app = OAuth().register(
            "provider",
            client_id=chosen.client_id,
            client_secret=secret,
            server_metadata_url=f"{self._issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs={"scope": "openid profile", "code_challenge_method": "S256", "verify": trusted, **own},
        )

    async def leave(self, request: Request, *, back: str) -> tuple[Response, str]:
        """The way to the provider, and the cookie by which the same browser is recognised when it comes back."""
        now, cookie = time.monotonic(), secrets.token_urlsafe(32)
        flows = [(key, flow) for key, flow in self._flows.items() if flow[0] > now]
        self._flows = dict(flows[1 - _MOST_FLOWS :])
        _, request.scope["session"] = self._flows[cookie] = now + _FLOW_S, {}
        try:
            await self._look()
            return await self._app.authorize_redirect(request, back), cookie
        except _FAILURES as error:
            raise self._refused(error) from error

    async def enter(self, request: Request, cookie: str | None) -> Person:
        """Who has come back; raises SignInRefused unless the browser that left brings what was signed for it."""
        # Taken out at once: a code, a state and a nonce are good for one answer.
        until, flow = self._flows.pop(cookie or "", (0.0, {}))
        request.scope["session"] = flow if until > time.monotonic() else {}
        held = {"iss": self._issuer, "aud": self._chosen.client_id}
        options: Any = {name: {"essential": True, "value": value} for name, value in held.items()}
        options |= {name: {"essential": True} for name in ("sub", "exp", "nonce")}
        try:
            await self._look()
            token = await self._app.authorize_access_token(request, claims_options=options, leeway=_LEEWAY_S)
            claims = token["userinfo"]
            sub, values = str(claims["sub"]), claimed(claims, self._chosen.role_claim)
        except _FAILURES as error:
            raise self._refused(error) from error
        name = next((claims[each] for each in ("name", "preferred_username") if claims.get(each)), sub)
        return Person.of(sub, values, self._chosen, name=str(name))

    async def _look(self) -> None:
        """Reads what the provider publishes, and believes no more of it than it must."""
        published = await self._app.load_server_metadata()
        if published.get("issuer") != self._issuer:
            raise ValueError("the provider calls itself by another name than console.issuer")
        offered = published.get("id_token_signing_alg_values_supported") or ["RS256"]
        published["id_token_signing_alg_values_supported"] = sorted(_ALGORITHMS.intersection(offered))

    def _refused(self, error: Exception) -> SignInRefused:
        _log.warning("no sign-in by %s: %s: %.300r", self._issuer, type(error).__qualname__, str(error))
        return SignInRefused(f"the provider vouches for nobody ({type(error).__name__}); begin again")
