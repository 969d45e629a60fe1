"""The server under test where nobody is trusted, and a tenant of each test's own in it."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pulsar

from tests.certificates import Pair
from tests.interop.auth_material import Material
from tests.official_client import open_client
from tests.open_id_issuer import Issuer

WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Secured:
    """Either server, with the settings of ``material``; its superuser is ``admin``."""

    service_url: str
    service_url_tls: str
    admin_url: str
    admin_url_tls: str
    material: Material
    issuer: Issuer
    is_magnetar: bool

    def token(self, role: str, **options: Any) -> pulsar.Authentication:
        return pulsar.AuthenticationToken(self.material.token(role, **options))

    @contextmanager
    def client(
        self, authentication: pulsar.Authentication | None, *, tls: bool = False, **options: Any
    ) -> Iterator[pulsar.Client]:
        options.setdefault("operation_timeout_seconds", int(WAIT_S))
        if tls:
            options.setdefault("tls_trust_certs_file_path", str(self.material.authority))
            options.setdefault("tls_validate_hostname", True)
        client = open_client(
            options.pop("url", self.service_url_tls if tls else self.service_url),
            authentication=authentication,
            **options,
        )
        try:
            yield client
        finally:
            client.close()

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.material.authority)
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context

    def http(self, token: str | None, **headers: str) -> httpx.Client:
        """Without a token: with these headers alone."""
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return httpx.Client(base_url=self.admin_url, headers=headers, timeout=WAIT_S)

    def ask(
        self, method: str, path: str, body: Any = None, *, role: str = "admin"
    ) -> httpx.Response:
        with self.http(self.material.token(role)) as client:
            # Not httpx's own JSON: it would send no body at all for None
            content = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json"}
            return client.request(method, f"/admin/v2{path}", content=content, headers=headers)

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """What the superuser gets; it must succeed."""
        answer = self.ask(method, path, body)
        assert answer.status_code < 300, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None


@dataclass(frozen=True, slots=True)
class Namespace:
    """Of one test; nobody but superusers and ``ten``, the tenant's admin, has rights in it."""

    secured: Secured
    name: str

    def topic(self, name: str) -> str:
        return f"persistent://{self.name}/{name}"

    def grant(self, role: str, *actions: str, topic: str | None = None) -> None:
        self.secured.admin("POST", self._permissions(role, topic), list(actions))

    def revoke(self, role: str, topic: str | None = None) -> None:
        self.secured.admin("DELETE", self._permissions(role, topic))

    def stats(self, topic: str) -> Any:
        return self.secured.admin("GET", f"/persistent/{self.name}/{topic}/stats")

    def _permissions(self, role: str, topic: str | None) -> str:
        if topic is None:
            return f"/namespaces/{self.name}/permissions/{role}"
        return f"/persistent/{self.name}/{topic}/permissions/{role}"
