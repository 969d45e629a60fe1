"""``magnetar probe`` against whatever may listen on a port."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magnetar.broker.cli.main import main


@contextmanager
def answering(said: bytes) -> Iterator[str]:
    """The URL of a port where one request gets these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/readyz"
        finally:
            thread.join()


@pytest.mark.parametrize(
    ("said", "code", "out"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nready", 0, "ready\n"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 3\r\n\r\nwhy", 1, "why\n"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 1, "\n"),
        (b"\x00 another protocol \x00\r\n", 1, ""),
        (b"", 1, ""),
    ],
    ids=["ready", "not ready", "not 200", "no HTTP", "closed"],
)
def test_only_an_answer_of_200_is_good(
    said: bytes, code: int, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(said) as url:
        assert main(["probe", url]) == code
    printed = capsys.readouterr()
    assert printed.out == out
    assert (printed.err == "") == (code == 0)
    assert "Traceback" not in printed.err


def test_a_file_is_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page").write_text("ready")
    assert main(["probe", (tmp_path / "page").as_uri()]) == 1
    assert "not an HTTP URL" in capsys.readouterr().err
