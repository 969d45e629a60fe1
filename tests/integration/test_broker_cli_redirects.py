"""Where credentials go when a server sends a call elsewhere: by our HTTP clients, over sockets."""

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jwt
import pytest

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.cli.admin_client import AdminClient
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.main import main
from magnetar.pipeline.admin import Admin, parse_access
from magnetar.pipeline.errors import SegmentsUnavailableError
from tests.certificates import Authority, Pair

CREDENTIALS = {"Authorization": "Bearer secret"}
PATH = "/admin/v2/persistent/public/default/t/segments"


class Server:
    """Answers every request in one way, and notes who was shown what.

    Attributes:
        seen: method, path, body and credentials of each request.
        location: where all are sent, with ``status``; "": they get ``answer``.
        answers_first: so many get ``answer`` all the same.
    """

    def __init__(self, pair: Pair | None = None) -> None:
        self.seen: list[tuple[str, str, bytes, str | None]] = []
        self.location = ""
        self.status = 307
        self.answers_first = 0
        self.answer: Any = {"from": "here"}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        if pair is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pair.certificate, pair.key)
            # The handshake is made by the thread of the connection, which may fail.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        scheme = "http" if pair is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                shown = self.headers.get("Authorization")
                server.seen.append((self.command, self.path, body, shown))
                goes_on = server.location and len(server.seen) > server.answers_first
                data = b"" if goes_on else json.dumps(server.answer).encode()
                self.send_response(server.status if goes_on else 200)
                if goes_on:
                    self.send_header("Location", server.location)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = _serve

            def handle(self) -> None:
                try:
                    super().handle()
                except OSError:  # a client that doesn't trust us leaves
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                """Nothing: tests are quiet."""

        return Handler


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Makes servers that run until the test ends."""
    with ExitStack() as stack:
        yield lambda pair=None: stack.enter_context(Server(pair))


def test_brokers_send_a_call_on_with_all_of_it(serve: Callable[..., Server]) -> None:
    first, owner = serve(), serve()
    first.location = f"{owner.url}{PATH}?a=1&authoritative=true"
    with AdminClient(first.url, headers=CREDENTIALS) as client:
        assert client.json("POST", f"{PATH}?a=1", {"b": 2}) == owner.answer
    shown = CREDENTIALS["Authorization"]
    assert owner.seen == [("POST", f"{PATH}?a=1&authoritative=true", b'{"b": 2}', shown)]

    # The path may be quoted in another way, and the bundle of a split be told by a word.
    asked = "/admin/v2/namespaces/t/n%2d1/LARGEST/split"
    first.location = f"{owner.url}/admin/v2/namespaces/t/n-1/0x00000000_0x40000000/split"
    with AdminClient(first.url, headers=CREDENTIALS) as client:
        assert client.call("PUT", asked).ok
    assert owner.seen[-1][3] == shown


@pytest.mark.parametrize(
    "elsewhere",
    ["/login?next=/admin", "/", "", "/admin/v2/persistent/public/default/other/segments"],
)
def test_credentials_stay_where_something_else_is_asked_for(
    serve: Callable[..., Server], elsewhere: str
) -> None:
    first, other = serve(), serve()
    first.location = other.url + elsewhere
    with (
        AdminClient(first.url, headers=CREDENTIALS) as client,
        pytest.raises(CliError, match=rf"{first.url} leads to {other.url}.* not shown there"),
    ):
        client.call("GET", PATH)
    assert other.seen == []
    with AdminClient(first.url) as client:  # nothing to lose
        assert client.json("GET", PATH) == other.answer
    assert len(other.seen) == 1


def test_a_server_may_name_another_path_of_its_own(serve: Callable[..., Server]) -> None:
    server = serve()
    server.location = "/elsewhere"
    with AdminClient(server.url, headers=CREDENTIALS) as client:
        assert client.call("GET", PATH).status == 307  # in the end: it goes on for ever
    assert {path for _, path, _, _ in server.seen[1:]} == {"/elsewhere"}
    assert {shown for _, _, _, shown in server.seen} == {CREDENTIALS["Authorization"]}


def test_tls_is_never_left(serve: Callable[..., Server], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, plain = serve(authority.sign("localhost")), serve()
    first.location = plain.url + PATH
    tls = ClientAuth(trusted=str(authority.certificate)).tls()
    for headers in (CREDENTIALS, {}):  # a certificate may be what we show
        with (
            AdminClient(first.url, headers=headers, tls=tls) as client,
            pytest.raises(CliError, match="credentials would be readable"),
        ):
            client.call("GET", PATH)
    assert len(first.seen) == 2
    assert plain.seen == []


def test_over_tls_only_whom_our_authority_signed_is_shown_credentials(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "theirs")
    first, second = serve(ours.sign("a")), serve(ours.sign("b"))
    other_server = serve(theirs.sign("c"))
    tls = ClientAuth(trusted=str(ours.certificate)).tls()
    with AdminClient(first.url, headers=CREDENTIALS, tls=tls) as client:
        first.location = second.url + PATH
        assert client.json("GET", PATH) == second.answer
        first.location = other_server.url + PATH
        with pytest.raises(CliError, match="certificate verify failed"):
            client.call("GET", PATH)
    assert second.seen[0][3] == CREDENTIALS["Authorization"]
    assert other_server.seen == []


def test_the_pipeline_shows_its_token_to_owners_only(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.pipeline.admin._PAUSES_S", (0.0,))
    first, owner = serve(), serve()
    path = "/admin/v2/persistent/public/default/t/partitions"
    owner.answer = {"partitions": 3}
    options = {"adminUrl": first.url, "authPlugin": "token", "authParams": "token:secret"}
    with Admin(parse_access(options)) as admin:
        first.location = owner.url + path
        assert admin.partitions("persistent://public/default/t") == 3
        assert [shown for *_, shown in owner.seen] == ["Bearer secret"]
        first.location = f"{owner.url}/login"
        with pytest.raises(SegmentsUnavailableError, match=r"leads to .*/login, which is another"):
            admin.partitions("persistent://public/default/t")
    assert len(owner.seen) == 1


@pytest.mark.parametrize("status", [302, 307])
def test_the_token_of_a_bookie_is_for_this_bookie(
    serve: Callable[..., Server], capsys: pytest.CaptureFixture[str], status: int
) -> None:
    bookie, other = serve(), serve()
    bookie.answer, other.answer = {"done": False}, {"done": True}
    # It says that there are writers; the look that follows is sent elsewhere.
    bookie.location, bookie.status = f"{other.url}/api/v1/bookie/drain", status
    bookie.answers_first = 1
    token = jwt.encode({"sub": "drainer"}, bytes(32), "HS256")
    words = ["bookie-drain", bookie.url, "--token", f"token:{token}", "--timeout", "60"]
    assert main(words) == 1
    assert f": {status}" in capsys.readouterr().err
    assert [(method, shown) for method, _, _, shown in bookie.seen] == [
        ("PUT", f"Bearer {token}"),
        ("GET", f"Bearer {token}"),
    ]
    assert other.seen == []


def test_the_secret_of_an_issuer_stays_on_tls(serve: Callable[..., Server], tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issuer, plain = serve(authority.sign("localhost")), serve()
    key = base64.b64encode(b'{"client_id": "a", "client_secret": "s"}').decode()
    params = {
        "issuerUrl": issuer.url,
        "privateKey": f"data:application/json;base64,{key}",
        "trustCertsFilePath": str(authority.certificate),
    }
    plain.answer = {"token_endpoint": f"{plain.url}/token", "access_token": "t"}
    issuer.location, issuer.status = f"{plain.url}/.well-known/openid-configuration", 302
    with pytest.raises(ClientAuthError, match=f"leads to {plain.url}.*: not an https URL"):
        ClientAuth("oauth2", json.dumps(params)).headers()
    issuer.location, issuer.answer = "", plain.answer
    with pytest.raises(ClientAuthError, match=f"leads to {plain.url}/token: not an https URL"):
        ClientAuth("oauth2", json.dumps(params)).headers()
    assert plain.seen == []
