"""An OpenID provider over TLS that holds its clients to PKCE, and forges what a test asks for."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlencode

import uvicorn
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from tls_pair import tls_pair

from dpswd.private_curator.storage.home_directory import HomeDirectory

CLIENT = "dpswd-console"
CLAIMS = {"sub": "7f3a", "name": "Dr. Anna Weiss", "realm_access": {"roles": ["dpswd-operator"]}}


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class ForgingProvider:
    """One provider; `forgery` says what its next tokens are, and `claims` whom they speak of."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.forgery, self.claims = folder, "", dict(CLAIMS)
        self.key, self.other = (RSAKey.generate_key(2048, {"kid": "one"}) for _ in range(2))
        self.codes: dict[str, dict[str, str]] = {}
        self.issuer = ""
        routes = [
            Route("/.well-known/openid-configuration", self._configuration),
            Route("/jwks", lambda _: JSONResponse({"keys": [self.key.as_dict(private=False)]})),
            Route("/authorize", self._authorize),
            Route("/token", self._token, methods=["POST"]),
        ]
        self._application = Starlette(routes=routes)

    @contextlib.contextmanager
    def serving(self):
        certificate, key = tls_pair(self.folder)
        bound = socket.create_server(("127.0.0.1", 0))
        self.issuer = f"https://localhost:{bound.getsockname()[1]}"
        config = uvicorn.Config(
            self._application, ssl_certfile=str(certificate), ssl_keyfile=str(key), log_config=None, lifespan="off"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield self
        finally:
            server.should_exit = True
            thread.join()

    def _configuration(self, _request: Request) -> Response:
        stated = {
            "issuer": "https://another.example" if self.forgery == "another issuer is published" else self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        }
        return JSONResponse(stated)

    def _authorize(self, request: Request) -> Response:
        asked = request.query_params
        assert (asked["code_challenge_method"], asked["client_id"]) == ("S256", CLIENT)
        code = secrets.token_urlsafe()
        self.codes[code] = dict(asked)
        back = {"code": code, "state": asked["state"]}
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode(back)}", status_code=302)

    async def _token(self, request: Request) -> Response:
        form = await request.form()
        asked = self.codes.pop(str(form["code"]), None)
        if asked is None:
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        assert asked["redirect_uri"] == form["redirect_uri"]
        assert asked["code_challenge"] == encoded(hashlib.sha256(str(form["code_verifier"]).encode()).digest())
        return JSONResponse({"access_token": "x", "token_type": "Bearer", **self._id_token(asked["nonce"])})

    def _id_token(self, nonce: str) -> dict[str, str]:
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": nonce, **self.claims}
        changes = {
            "wrong nonce": {"nonce": "another"},
            "no nonce": {"nonce": None},
            "expired": {"iat": now - 7200, "exp": now - 3600},
            "never ends": {"exp": None},
            "another audience": {"aud": "another-client"},
            "another issuer": {"iss": "https://another.example"},
            "nobody": {"sub": None},
            "a name that is none": {"sub": "a\nb"},
        }
        claims |= changes.get(self.forgery, {})
        claims = {name: value for name, value in claims.items() if value is not None}
        header = {"alg": "RS256", "kid": "one"}
        if self.forgery == "no token":
            return {}
        if self.forgery == "algorithm none":
            parts = ({"alg": "none"}, claims)
            return {"id_token": ".".join([*(encoded(json.dumps(each).encode()) for each in parts), ""])}
        if self.forgery == "the public key as a shared one":
            shared = OctKey.import_key(self.key.as_pem(private=False))
            return {"id_token": jwt.encode({"alg": "HS256", "kid": "one"}, claims, shared)}
        if self.forgery == "changed after it was signed":
            head, _, signature = jwt.encode(header, claims, self.key).split(".")
            return {"id_token": ".".join((head, encoded(json.dumps({**claims, "sub": "other"}).encode()), signature))}
        return {"id_token": jwt.encode(header, claims, self.other if self.forgery == "another key" else self.key)}


FORGERIES = (
    "wrong nonce", "no nonce", "expired", "never ends", "another audience", "another issuer", "nobody",
    "a name that is none", "no token", "algorithm none", "the public key as a shared one",
    "changed after it was signed", "another key", "another issuer is published",
)  # fmt: skip


def with_roles(provider, *roles: str, sub: str = "7f3a", name: str = "Dr. Anna Weiss") -> None:
    provider.claims = {"sub": sub, "name": name, "realm_access": {"roles": [f"dpswd-{role}" for role in roles]}}


def write_settings(home: HomeDirectory, issuer: str, ca: Path, *more: str) -> None:
    lines = [f'issuer = "{issuer}"', f'client_id = "{CLIENT}"', f'ca_file = "{ca}"', *more]
    plain = home.settings.read_text().partition("\n[console]")[0]
    home.settings.write_text("\n".join([plain, "[console]", *lines, ""]))
