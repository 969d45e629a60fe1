"""The zone of a process's node, asked of an API server over TLS with the pod's token."""

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from magnetar.bookkeeper.network_location import ZONE_LABEL
from magnetar.bookkeeper.node_zone import ZoneUnknownError, zone_of
from tests.certificates import Authority
from tests.free_port import free_port

TOKEN = "a-token-of-the-pod"


class ApiServer(ThreadingHTTPServer):
    """Knows nodes by name; ``failures`` requests are answered 500 first."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        authority = Authority(folder)
        pair = authority.sign("kubernetes")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.labels: dict[str, dict[str, str]] = {}
        self.failures = self.asked = 0
        self.account = folder / "account"
        self.account.mkdir()
        (self.account / "token").write_text(f"{TOKEN}\n")
        (self.account / "ca.crt").write_bytes(authority.certificate.read_bytes())

    @property
    def variables(self) -> dict[str, str]:
        port = str(self.server_port)
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}


class _Handler(BaseHTTPRequestHandler):
    server: ApiServer

    def do_GET(self) -> None:
        server = self.server
        server.asked += 1
        name = self.path.removeprefix("/api/v1/nodes/")
        if server.failures:
            server.failures -= 1
            self._answer(500, {})
        elif self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer(403, {"reason": "Forbidden"})
        elif name not in server.labels:
            self._answer(404, {"reason": "NotFound"})
        else:
            self._answer(200, {"metadata": {"name": name, "labels": server.labels[name]}})

    def _answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not on the test's output."""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def ask(api: ApiServer, node: str, zone: str = "", label: str = ZONE_LABEL) -> str:
    return zone_of(
        zone, node, label, api.variables, account=api.account, pause=lambda _: None, seconds_max=60
    )


def test_the_node_s_label_is_the_zone(api: ApiServer) -> None:
    api.labels = {"node-1": {ZONE_LABEL: "east-1a", "own/zone": "row-7"}}
    assert ask(api, "node-1") == "east-1a"
    assert ask(api, "node-1", label="own/zone") == "row-7"


def test_a_zone_that_is_set_is_not_asked_for(api: ApiServer) -> None:
    assert ask(api, "node-1", zone="west") == "west"
    assert ask(api, "") == ""
    assert api.asked == 0


def test_a_node_without_the_label_has_no_zone(api: ApiServer) -> None:
    api.labels = {"node-1": {}}
    assert ask(api, "node-1") == ""


def test_a_server_in_trouble_is_asked_again(api: ApiServer) -> None:
    api.labels, api.failures = {"node-1": {ZONE_LABEL: "east"}}, 2
    assert ask(api, "node-1") == "east"
    assert api.asked == 3


def test_a_refusal_ends_the_start_at_once(api: ApiServer) -> None:
    (api.account / "token").write_text("another one")
    with pytest.raises(ZoneUnknownError, match=r"403 .* may the service account get nodes"):
        ask(api, "node-1")
    assert api.asked == 1


def test_a_server_of_another_authority_is_not_believed(api: ApiServer, tmp_path: Path) -> None:
    api.labels = {"node-1": {ZONE_LABEL: "east"}}
    other = Authority(tmp_path, "other")
    (api.account / "ca.crt").write_bytes(other.certificate.read_bytes())
    with pytest.raises(ZoneUnknownError, match="CERTIFICATE_VERIFY_FAILED"):
        zone_of("", "node-1", ZONE_LABEL, api.variables, account=api.account, seconds_max=0)
    assert api.asked == 0


def test_what_cannot_be_asked_is_told(tmp_path: Path) -> None:
    with pytest.raises(ZoneUnknownError, match="KUBERNETES_SERVICE_HOST"):
        zone_of("", "node-1", ZONE_LABEL, {}, account=tmp_path, seconds_max=60)
    variables = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(free_port()),
    }
    with pytest.raises(ZoneUnknownError, match="token"):
        zone_of("", "node-1", ZONE_LABEL, variables, account=tmp_path, seconds_max=0)
