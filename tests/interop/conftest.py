"""The official Python client against the server under test (Magnetar, or Apache Pulsar by URL)."""

import itertools
import json
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

import magnetar
from tests.interop.auth_material import Material
from tests.interop.secured import Namespace, Secured
from tests.official_client import client_of

RECEIVE_MS = 30_000
"""How long a message may take that must come: only a broken server needs so long."""

_COUNTER = itertools.count()


@pytest.fixture(scope="session")
def credentials(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What clients need for a server by URL that trusts nobody: a token, and TLS if it is used."""
    folder = request.config.getoption("--auth-folder")
    if folder is None:
        return {}
    material = Material(Path(folder))
    return {
        "authentication": pulsar.AuthenticationToken(material.token("admin")),
        "tls_trust_certs_file_path": str(material.authority),
        "tls_validate_hostname": True,
    }


@pytest.fixture(scope="session")
def raw_credentials(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The same as fields of CONNECT."""
    folder = request.config.getoption("--auth-folder")
    if folder is None:
        return {}
    token = Material(Path(folder)).token("admin")
    return {"auth_method_name": "token", "auth_data": token.encode()}


@pytest.fixture
def client(service_url: str, topic: str, credentials: dict[str, Any]) -> Iterator[pulsar.Client]:
    """Asks for ``topic`` so that it is closed before the topic is deleted."""
    with client_of(service_url, operation_timeout_seconds=30, **credentials) as client:
        yield client


@pytest.fixture
def topic(admin: "Admin") -> Iterator[str]:
    """A name of this test's own; it, its partitions and what is named after it are deleted.

    A Pulsar whose bookie refuses an entry tries it again for as long as the topic exists, each time
    with a new ledger: a topic left behind would slow down everybody's later tests.
    """
    name = f"interop-{uuid.uuid4().hex[:12]}-{next(_COUNTER)}"
    yield f"persistent://public/default/{name}"
    admin.delete_topics("public/default", name)


class Admin:
    """A few words of the admin REST API, with the standard library."""

    def __init__(self, url: str, material: Material | None = None) -> None:
        """``material``: of a server that wants a token, and perhaps TLS."""
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        self._context: ssl.SSLContext | None = None
        if material is not None:
            self._headers["Authorization"] = f"Bearer {material.token('admin')}"
            if url.startswith("https"):
                self._context = ssl.create_default_context(cafile=material.authority)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30, context=self._context) as answer:
                return answer.status, _decode(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _decode(error.read())

    def topic_path(self, topic: str) -> str:
        return "/admin/v2/" + topic.replace("://", "/")

    def create_partitioned(self, topic: str, partitions: int) -> None:
        status, answer = self.call("PUT", self.topic_path(topic) + "/partitions", partitions)
        assert status == 204, answer

    def delete_topics(self, namespace: str, prefix: str) -> None:
        """Delete every topic whose name starts so, whatever is connected to it."""
        for domain in ("persistent", "non-persistent"):
            for kind, end in (("/partitioned", "/partitions"), ("", "")):
                _, topics = self.call("GET", f"/admin/v2/{domain}/{namespace}{kind}")
                for topic in topics:
                    if topic.rsplit("/", 1)[1].startswith(prefix):
                        self.call("DELETE", f"{self.topic_path(topic)}{end}?force=true")


def _decode(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")


@pytest.fixture(scope="session")
def admin(admin_url: str, request: pytest.FixtureRequest) -> Admin:
    folder = request.config.getoption("--auth-folder")
    return Admin(admin_url, None if folder is None else Material(Path(folder)))


# --- a server that trusts nobody


@pytest.fixture(scope="session")
def secured(
    request: pytest.FixtureRequest,
    external_server: tuple[str, str] | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Secured]:
    """Magnetar in a process of its own, or a server by URL that knows ``--auth-folder``."""
    option = request.config.getoption
    if external_server is None:
        material = Material.create(tmp_path_factory.mktemp("auth") / "material")
        settings: dict[str, Any] = {**material.settings()}
        with (
            material.issuer() as issuer,
            magnetar.embedded(
                mode="process",
                brokerServicePortTls=0,
                webServicePortTls=0,
                **settings,
            ) as broker,
        ):
            urls = (broker.service_url, broker.service_url_tls, broker.web_url, broker.web_url_tls)
            yield Secured(*urls, material, issuer, is_magnetar=True)
        return
    tls = option("--service-url-tls"), option("--admin-url-tls")
    if option("--auth-folder") is None or None in tls:
        pytest.skip("needs a server with --auth-folder, --service-url-tls, --admin-url-tls")
    material = Material(Path(option("--auth-folder")))
    with material.issuer() as issuer:
        urls = (external_server[0], tls[0], external_server[1], tls[1])
        yield Secured(*urls, material, issuer, is_magnetar=False)


@pytest.fixture
def needs_issuer(secured: Secured) -> None:
    if not secured.material.has_openid:
        pytest.skip("the server has no OpenID provider")


@pytest.fixture
def namespace(secured: Secured) -> Iterator[Namespace]:
    """In a tenant of this test's own, whose admin is ``ten``."""
    tenant = f"auth-{uuid.uuid4().hex[:12]}"
    info = {"adminRoles": ["ten"], "allowedClusters": ["standalone"]}
    secured.admin("PUT", f"/tenants/{tenant}", info)
    secured.admin("PUT", f"/namespaces/{tenant}/ns")
    yield Namespace(secured, f"{tenant}/ns")
    # Not checked: Pulsar may find a namespace busy that its own clients still close
    secured.ask("DELETE", f"/namespaces/{tenant}/ns?force=true")
    secured.ask("DELETE", f"/tenants/{tenant}?force=true")
