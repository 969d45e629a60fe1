"""``magnetar zookeeper --certificates``: renewed files are used while the server runs."""

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509

from tests.certificates import Authority
from tests.child_process import ChildProcess
from tests.free_port import free_port
from tests.waiting import wait_until

MAGNETAR = (sys.executable, "-m", "magnetar.broker.cli.main")
_WAIT_S = 60.0


class _Server(ChildProcess):
    """Its files are as a kubelet gives a Secret's: links to links."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "log")
        self.folder, self.secret = folder, folder / "secret"
        self.port, self.election_port = free_port(), free_port()
        self.authority = Authority(folder)
        self.secret.mkdir()
        self.renew("first")
        for name in ("ca.crt", "tls-combined.pem"):
            (self.secret / name).symlink_to(f"..data/{name}")

    def renew(self, name: str) -> None:
        pair = self.authority.sign(name)
        there = self.secret / f"..{name}"
        there.mkdir()
        both = pair.key.read_bytes() + pair.certificate.read_bytes()
        (there / "tls-combined.pem").write_bytes(both)
        (there / "ca.crt").write_bytes(self.authority.certificate.read_bytes())
        link = self.secret / "..data_tmp"
        link.symlink_to(there.name)
        link.rename(self.secret / "..data")

    def start(self) -> None:
        settings = {
            "secureClientPort": str(self.port),
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "sslQuorum": "true",
        }
        # Of two servers the other one isn't there: this one waits for it.
        own, other = (
            f"1=127.0.0.1:{free_port()}:{self.election_port}",
            f"2=127.0.0.1:{free_port()}:1",
        )
        command = [*MAGNETAR, "zookeeper", "--client-port", "-1", "--id", "1"]
        command += ["--server", own, "--server", other]
        command += ["--data", str(self.folder / "data"), "--certificates", str(self.secret)]
        command += [word for pair in settings.items() for word in ("--set", "=".join(pair))]
        self._process = self.popen(command)
        wait_until(partial(self.shows, "first"), "the server shows its certificate", _WAIT_S)

    def stop(self, seconds_max: float = 60.0) -> int:
        process = self.take()
        process.terminate()
        return process.wait(seconds_max)

    def shows(self, name: str) -> bool:
        return [self._shown(port) for port in (self.port, self.election_port)] == [name, name]

    def _shown(self, port: int) -> str | None:
        """Common name of the certificate that it shows; None: it doesn't listen."""
        context = ssl.create_default_context(cafile=self.authority.certificate)
        context.load_cert_chain(self.secret / "tls-combined.pem")
        try:
            with (
                socket.create_connection(("127.0.0.1", port), 10) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as wrapped,
            ):
                found = wrapped.getpeercert(binary_form=True)
        except OSError:
            return None
        assert found is not None
        subject = x509.load_der_x509_certificate(found).subject
        return str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with _Server(tmp_path) as server:
        yield server


def test_renewed_certificates_are_used_and_keys_are_not_left(
    server: _Server, tmp_path: Path
) -> None:
    (copies,) = (tmp_path / "temporary").glob("zookeeper-*")
    modes = {path.name: path.stat().st_mode & 0o777 for path in (copies, *copies.iterdir())}
    assert modes == {copies.name: 0o700, "ca.crt": 0o600, "tls-combined.pem": 0o600}
    for name in ("second", "third"):  # what is watched once need not be watched again
        server.renew(name)
        wait_until(partial(server.shows, name), f"{name} is in use", _WAIT_S)
    server.stop()
    wait_until(lambda: not copies.exists(), "the copies are gone", _WAIT_S)


def test_without_certificates_it_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    command = [*MAGNETAR, "zookeeper", "--data", str(tmp_path / "data")]
    command += ["--certificates", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    assert done.returncode != 0
    assert "nowhere/ca.crt" in done.stderr
    assert list(temporary.iterdir()) == []
