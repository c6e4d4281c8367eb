"""OpenID Connect against a provider that runs here: real requests, real signatures."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from django.test import Client

from ledger.models import ApiToken, Holder, HolderKind, Membership, Tenant, User
from ledger.services.tokens import create_api_token

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

CLIENT_ID, CLIENT_SECRET = "ledger", "a secret of both"


@dataclass
class Provider:
    """What the stub provider knows, and what it was asked."""

    claims: dict[str, Any]
    key: Any = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))
    signs_with: Any = None
    audience: str = CLIENT_ID
    address: str = ""
    nonce: str = ""
    challenge: str = ""
    redirect_uri: str = ""

    def id_token(self) -> str:
        now = int(time.time())
        content = {**self.claims, "aud": self.audience, "iat": now, "exp": now + 60, "nonce": self.nonce}
        return jwt.encode(content, self.signs_with or self.key, algorithm="RS256", headers={"kid": "one"})

    def jwks(self) -> dict[str, Any]:
        jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return {"keys": [{**jwk, "kid": "one", "alg": "RS256", "use": "sig"}]}


@pytest.fixture
def provider(settings: Any) -> Iterator[Provider]:
    provider = Provider({"sub": "ann-1", "email": "ann@example.org", "groups": ["money"]})

    class Door(BaseHTTPRequestHandler):
        def answer(self, content: Any, status: int = 200) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.answer(provider.jwks() if self.path == "/jwks" else provider.claims)

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            digest = hashlib.sha256(form["code_verifier"][0].encode()).digest()
            is_right = (
                form["code"] == ["the-code"]
                and form["client_secret"] == [CLIENT_SECRET]
                and form["redirect_uri"] == [provider.redirect_uri]
                and base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == provider.challenge
            )
            if is_right:
                self.answer(
                    {"access_token": "access", "token_type": "Bearer", "id_token": provider.id_token()}
                )
            else:
                self.answer({"error": "invalid_grant"}, 400)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    provider.address = f"http://127.0.0.1:{server.server_port}"
    settings.OIDC_RP_CLIENT_ID, settings.OIDC_RP_CLIENT_SECRET = CLIENT_ID, CLIENT_SECRET
    settings.OIDC_OP_AUTHORIZATION_ENDPOINT = f"{provider.address}/authorize"
    settings.OIDC_OP_TOKEN_ENDPOINT = f"{provider.address}/token"
    settings.OIDC_OP_USER_ENDPOINT = f"{provider.address}/userinfo"
    settings.OIDC_OP_JWKS_ENDPOINT = f"{provider.address}/jwks"
    yield provider
    server.shutdown()
    server.server_close()


def walk(provider: Provider, **changed: str) -> tuple[Client, Any]:
    """From the button to the answer of the callback."""
    client = Client()
    away = client.get("/oidc/start/?next=/months/")
    assert away.status_code == 302
    asked = {name: values[0] for name, values in parse_qs(urlsplit(away["Location"]).query).items()}
    assert away["Location"].startswith(f"{provider.address}/authorize?")
    assert (asked["client_id"], asked["response_type"], asked["code_challenge_method"]) == (
        CLIENT_ID,
        "code",
        "S256",
    )
    provider.nonce, provider.challenge, provider.redirect_uri = (
        asked["nonce"],
        asked["code_challenge"],
        asked["redirect_uri"],
    )
    return client, client.get("/oidc/callback/", {"code": "the-code", "state": asked["state"], **changed})


def roles_of(name: str) -> set[tuple[str, str | None]]:
    memberships = Membership.objects.filter(user__username=name).select_related("tenant__holder")
    return {(one.role, one.tenant.slug if one.tenant else None) for one in memberships}


def test_somebody_new_is_let_in_without_any_role(provider: Provider) -> None:
    client, answer = walk(provider)
    assert (answer.status_code, answer["Location"]) == (302, "/months/")
    user = User.objects.get(username="ann-1")
    assert client.session["_auth_user_id"] == str(user.pk)
    assert not user.has_usable_password()
    assert roles_of("ann-1") == set()
    assert client.get("/months/").status_code in (403, 404)


def test_groups_give_roles_and_take_them_away(provider: Provider, settings: Any) -> None:
    holder = Holder.objects.create(kind=HolderKind.TENANT, slug="acme")
    Tenant.objects.create(holder=holder, name="Acme")
    settings.OIDC_ROLES = {
        "money": "finance",
        "acme-people": "tenant_viewer:acme",
        "odd": "tenant_admin:nobody",
    }
    walk(provider)
    assert roles_of("ann-1") == {("finance", None)}
    provider.claims["groups"] = ["acme-people", "odd", "unknown"]
    walk(provider)
    assert roles_of("ann-1") == {("tenant_viewer", "acme")}
    assert User.objects.filter(username="ann-1").count() == 1


def test_an_email_address_opens_nobody_elses_account(provider: Provider) -> None:
    other = User.objects.create_user("boss", email="ann@example.org", password="correct horse battery")
    client, _ = walk(provider)
    assert client.session["_auth_user_id"] != str(other.pk)


@pytest.mark.parametrize("spoil", ["signature", "nonce", "state", "code", "no name", "inactive"])
def test_what_is_not_right_lets_nobody_in(provider: Provider, spoil: str) -> None:
    changed = {}
    if spoil == "signature":
        provider.signs_with = rsa.generate_private_key(65537, 2048)
    elif spoil == "state":
        changed["state"] = "made-up"
    elif spoil == "code":
        changed["code"] = "made-up"
    elif spoil == "no name":
        provider.claims["sub"] = ""
    elif spoil == "inactive":
        User.objects.create_user("ann-1", is_active=False)
    elif spoil == "nonce":
        provider.id_token = lambda: _with_other_nonce(provider)  # type: ignore[method-assign]
    client, answer = walk(provider, **changed)
    assert (answer.status_code, answer["Location"]) == (302, "/login/?refused=1")
    assert "did not let you in" in client.get("/login/?refused=1").content.decode()
    assert "_auth_user_id" not in client.session


def _with_other_nonce(provider: Provider) -> str:
    return jwt.encode(
        {**provider.claims, "nonce": "other"}, provider.key, algorithm="RS256", headers={"kid": "one"}
    )


def test_without_a_provider_there_is_no_such_address(settings: Any) -> None:
    settings.OIDC_RP_CLIENT_ID = ""
    client = Client()
    assert client.get("/oidc/start/").status_code == 404
    assert client.get("/oidc/callback/?code=x&state=y").status_code == 404
    assert "organisation" not in client.get("/login/").content.decode()


def test_a_password_that_somebody_set_here_opens_nothing_once_the_provider_did(
    provider: Provider, settings: Any
) -> None:
    """Else whoever makes an account beforehand, under a name that the provider uses, could sign in as that person."""
    made = User.objects.create_user("ann-1", password="known to whoever made it")
    _, secret = create_api_token("of-ann", "auditor", created_by=made)
    settings.OIDC_ROLES = {"money": "finance"}
    walk(provider)
    assert roles_of("ann-1") == {("finance", None)}
    assert not User.objects.get(pk=made.pk).has_usable_password()
    signs_in = {"username": "ann-1", "password": "known to whoever made it"}
    assert Client().post("/login/", signs_in).status_code == 200
    token = ApiToken.objects.get()
    assert (token.revoked_at, secret.startswith(token.prefix)) == (None, True)
    provider.claims["groups"] = []  # who loses the role loses the tokens that needed it
    walk(provider)
    token.refresh_from_db()
    assert token.revoked_at is not None
