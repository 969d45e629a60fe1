"""What the command line says to do when nobody answers, or a server says no."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magnetar.broker.cli.advice import on_listener, on_refusal
from magnetar.broker.cli.global_options import ADMIN, CLIENTS
from magnetar.broker.cli.listener import Listener, find_listener
from magnetar.broker.cli.main import main
from tests.certificates import Authority

PULSAR = b"\0\0\0\x09\0\0\0\x05\x08\x03\x1a\x01x"
Answer = Callable[[bytes], bytes]


def test_a_port_that_nobody_listens_on_is_named_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        assert main(["admin", "--admin-url", url, "tenants", "list"]) == 1
        first, *advice = capsys.readouterr().err.splitlines()
        assert first.startswith(f"magnetar: {url} does not answer: ")
        assert advice == [
            f"Nothing listens on port {port} of 127.0.0.1.",
            "Start a broker on this machine: magnetar standalone",
            "Name another one: --admin-url URL, --profile NAME (magnetar profiles list) "
            "or MAGNETAR_ADMIN_URL.",
        ]
        assert main(["produce", "--url", f"pulsar://127.0.0.1:{port}", "t", "-m", "a"]) == 1
        shown = capsys.readouterr().err
        assert f"Nothing listens on port {port} of 127.0.0.1." in shown
        assert "--url URL" in shown


@pytest.mark.parametrize(
    ("url", "found", "said"),
    [
        ("http://h:8443", Listener.HTTPS, "h:8443 speaks TLS: --admin-url https://h:8443"),
        ("https://h:8080", Listener.HTTP, "h:8080 speaks no TLS: --admin-url http://h:8080"),
        ("pulsar://h", Listener.PULSAR_TLS, "h:6650 speaks TLS: --url pulsar+ssl://h:6650"),
        ("pulsar+ssl://h", Listener.PULSAR, "h:6651 speaks no TLS: --url pulsar://h:6651"),
        ("ws://[::1]:8443", Listener.HTTPS, "[::1]:8443 speaks TLS: --url wss://[::1]:8443"),
        ("ws://h:6650", Listener.PULSAR, "binary protocol: --url pulsar://h:6650"),
        ("http://h:6650", Listener.PULSAR, "--admin-url http://HOST:8080"),
        ("pulsar://h:8080", Listener.HTTP, "--url pulsar://HOST:6650; or WebSocket: --url ws://h"),
        ("http://h", Listener.NO_HOST, "No address is known for h"),
        ("http://h", Listener.NO_ROUTE, "No connection to port 80 of h"),
        ("http://h:22", Listener.SILENT, "another port?"),
        ("http://h", Listener.HTTP, "It answers now"),
    ],
)
def test_what_listens_there_is_told(url: str, found: Listener, said: str) -> None:
    assert said in next(on_listener(url, found, ADMIN | CLIENTS))


def test_an_address_that_a_broker_gave_is_corrected_at_the_broker() -> None:
    lines = list(on_listener("pulsar://in", Listener.NO_HOST, CLIENTS, named_by="pulsar://out"))
    assert lines[1].startswith("pulsar://out gave this address: its advertisedAddress")
    assert len(lines) == 2


def test_a_command_without_such_options_is_not_told_of_them() -> None:
    assert len(list(on_listener("http://h", Listener.NO_HOST, frozenset()))) == 1


@pytest.mark.parametrize(
    ("status", "has_credentials", "said"),
    [
        (401, False, "No credentials were sent"),
        (403, False, "No credentials were sent"),
        (401, True, "magnetar tokens show"),
        (403, True, "grant-permission"),
    ],
)
def test_a_refusal_says_what_is_missing(status: int, has_credentials: bool, said: str) -> None:
    assert said in "".join(on_refusal(status, has_credentials=has_credentials))
    assert list(on_refusal(409, has_credentials=has_credentials)) == []


@pytest.mark.parametrize(
    ("answer", "over_tls", "found"),
    [
        (lambda asked: PULSAR if asked[:4] == b"\0\0\0\x0f" else b"", False, Listener.PULSAR),
        (lambda asked: PULSAR if asked[:4] == b"\0\0\0\x0f" else b"", True, Listener.PULSAR_TLS),
        (lambda asked: b"HTTP/1.0 404 \r\n" if b"HTTP" in asked else b"", False, Listener.HTTP),
        (lambda asked: b"HTTP/1.0 404 \r\n" if b"HTTP" in asked else b"", True, Listener.HTTPS),
        (lambda asked: b"SSH-2.0-OpenSSH_9.2\r\n", False, Listener.SILENT),
    ],
)
def test_a_port_is_asked_what_it_speaks(
    answer: Answer, over_tls: bool, found: Listener, tmp_path: Path
) -> None:
    context = None
    if over_tls:
        pair = Authority(tmp_path).sign("server")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
    with _served(answer, context) as port:
        assert find_listener("127.0.0.1", port) is found


def test_a_certificate_that_nobody_trusts_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = Authority(tmp_path).sign("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with _served(lambda asked: b"", context) as port:
        for words in (
            ["admin", "--admin-url", f"https://127.0.0.1:{port}", "tenants", "list"],
            ["produce", "--url", f"pulsar+ssl://127.0.0.1:{port}", "t", "-m", "a"],
        ):
            assert main(words) == 1
            assert "--tls-trust-cert-path FILE names" in capsys.readouterr().err


@contextlib.contextmanager
def _served(answer: Answer, context: ssl.SSLContext | None) -> Iterator[int]:
    """A port that answers the first bytes of each connection and closes it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with contextlib.suppress(OSError), connection:
                    end = context.wrap_socket(connection, True) if context else connection
                    with end:
                        end.sendall(answer(end.recv(4096)))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
