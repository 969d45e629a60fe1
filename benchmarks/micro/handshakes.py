"""TLS handshakes, whole and resumed: `python -m benchmarks.micro.handshakes`.

One client makes one after the other. The figure is the CPU of the server's process for each, so
that other load on the machine matters little; in brackets how long the loop was kept by each.
"loop" is the event loop's own TLS server.
"""

import argparse
import asyncio
import datetime
import multiprocessing
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from magnetar.broker.config import BrokerConfig
from magnetar.broker.listener.tls import TlsListener, server_context

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
KEYS: Final[dict[str, Callable[[], PrivateKey]]] = {
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "RSA 2048": lambda: rsa.generate_private_key(65537, 2048),
}


class Greeting(asyncio.Protocol):
    """A byte for everybody, so that the client reads its session ticket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        transport.write(b"x")
        transport.close()


async def serve(kind: str, settings: dict[str, Any], told: Any) -> None:
    config = BrokerConfig().with_keys(settings)
    loop = asyncio.get_running_loop()
    if kind == "ours":
        port = await TlsListener(config, Greeting, backlog=64).start("127.0.0.1", 0, "benchmark")
    else:
        server = await loop.create_server(Greeting, "127.0.0.1", 0, ssl=server_context(config))
        port = server.sockets[0].getsockname()[1]
    told.send(port)
    while True:
        await asyncio.sleep(0.01)
        if told.poll():
            told.recv()
            times = os.times()
            told.send((times.user + times.system, time.thread_time()))


def server_process(kind: str, settings: dict[str, Any], told: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(kind, settings, told))


def cost_us(kind: str, settings: dict[str, Any], resumes: bool, count: int) -> tuple[float, float]:
    """Of the process and of the loop's thread."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=server_process, args=(kind, settings, there), daemon=True)
    process.start()
    there.close()  # if it dies, recv ends
    port = here.recv()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    session: ssl.SSLSession | None = None
    resumed = 0
    before = (0.0, 0.0)
    for number in range(-20, count):
        if number == 0:
            here.send("time")
            before = here.recv()
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, session=session if resumes else None) as client,
        ):
            assert client.recv(1) == b"x"
            session = client.session
            resumed += bool(client.session_reused)
    here.send("time")
    after = here.recv()
    process.kill()
    process.join()
    assert resumed >= count if resumes else resumed == 0
    return (after[0] - before[0]) / count * 1e6, (after[1] - before[1]) / count * 1e6


def self_signed(folder: Path, key: PrivateKey) -> dict[str, Any]:
    """A certificate for a key, as settings."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    (folder / "broker.pem").write_bytes(certificate.public_bytes(encoding))
    (folder / "broker.key").touch(0o600)
    (folder / "broker.key").write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return {
        "tlsCertificateFilePath": str(folder / "broker.pem"),
        "tlsKeyFilePath": str(folder / "broker.key"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| key | handshake | loop's TLS: us (on the loop) | ours: us (on the loop) |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for key, make in KEYS.items():
            settings = self_signed(Path(name), make())
            for resumes in (False, True):
                cells = []
                for kind in ("loop", "ours"):
                    whole, on_loop = min(
                        cost_us(kind, settings, resumes, options.count)
                        for _ in range(options.rounds)
                    )
                    cells.append(f"{whole:.0f} ({on_loop:.0f})")
                what = "resumed" if resumes else "whole"
                print(f"| {key} | {what} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
