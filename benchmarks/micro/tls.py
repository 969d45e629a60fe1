"""What TLS costs the broker's process, for a handshake and for a gigabyte.

    python -m benchmarks.micro.tls [--count 500] [--rounds 3]

CPU of the server's process, so that other load on the machine matters little: plain, over the event
loop's own TLS, and over ours. One client makes handshakes one after the other, whole and resumed,
with keys of P-256; in brackets how long each kept the loop. Then a client of OpenSSL sends, or
receives, in records of 16 KiB; the server is a buffered protocol as the broker's connections are.
"""

import argparse
import asyncio
import multiprocessing
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from magnetar.broker.config import BrokerConfig
from magnetar.broker.listener.tls import TlsListener, server_context
from tests.certificates import Authority

TICK_BYTES: Final = 256 * 1024  # what the server writes in one go
PIECE_BYTES: Final = 16 * 1024  # of which buffers
CHUNK_BYTES: Final = 128 * 1024  # what the client writes in one go
SIZE: Final = 1 << 29


class Server(asyncio.BufferedProtocol):
    """Takes what comes; a first byte "r" asks for that much instead, "x" for a byte and an end."""

    sends = False
    writable = True
    buffer = memoryview(bytearray(512 * 1024))
    pieces = [bytes(PIECE_BYTES)] * (TICK_BYTES // PIECE_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.buffer[0] == ord("x"):
            self.transport.write(b"x")
            self.transport.close()
        elif not self.sends and self.buffer[0] == ord("r"):
            self.sends = True
            self.send()

    def send(self) -> None:
        if self.writable and not self.transport.is_closing():
            self.transport.writelines(self.pieces)
            asyncio.get_running_loop().call_soon(self.send)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.send()


async def serve(kind: str, settings: dict[str, Any], told: Connection) -> None:
    config = BrokerConfig().with_keys(settings)
    loop = asyncio.get_running_loop()
    if kind == "ours":
        port = await TlsListener(config, Server, backlog=64).start("127.0.0.1", 0, "benchmark")
    else:
        context = server_context(config) if kind == "loop" else None
        server = await loop.create_server(Server, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
    told.send(port)
    while True:
        await asyncio.sleep(0.01)
        if told.poll():
            told.recv()
            times = os.times()
            told.send((times.user, times.system, time.thread_time()))


def server_process(kind: str, settings: dict[str, Any], told: Connection) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(kind, settings, told))


@contextmanager
def serving(kind: str, settings: dict[str, Any]) -> Iterator[tuple[int, Connection]]:
    """The port of a server, and a pipe that answers with the processor time of its process:
    seconds in the program, in the kernel, and of the loop's thread.
    """
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=server_process, args=(kind, settings, there), daemon=True)
    process.start()
    there.close()  # if it dies, recv ends
    try:
        yield here.recv(), here
    finally:
        process.kill()
        process.join()


def times_of(server: Connection) -> tuple[float, float, float]:
    server.send("time")
    return cast("tuple[float, float, float]", server.recv())


def handshake_us(
    kind: str, settings: dict[str, Any], authority: Path, count: int, *, resumes: bool
) -> tuple[float, float]:
    """Of the process and of the loop's thread."""
    context = ssl.create_default_context(cafile=authority)
    session: ssl.SSLSession | None = None
    resumed = 0
    with serving(kind, settings) as (port, server):
        before = times_of(server)
        for number in range(-20, count):
            if number == 0:
                before = times_of(server)
            with (
                socket.create_connection(("127.0.0.1", port)) as plain,
                context.wrap_socket(
                    plain, server_hostname="localhost", session=session if resumes else None
                ) as client,
            ):
                client.sendall(b"x")
                assert client.recv(1) == b"x"  # and the session's ticket
                session = client.session
                resumed += bool(client.session_reused)
        user, system, loop = (b - a for a, b in zip(before, times_of(server), strict=True))
    assert resumed >= count if resumes else resumed == 0
    return (user + system) / count * 1e6, loop / count * 1e6


def cpu_s_per_gb(
    kind: str, settings: dict[str, Any], authority: Path, *, sends: bool
) -> tuple[float, float]:
    """In the program, in the kernel."""
    buffer = bytearray(CHUNK_BYTES)
    with serving(kind, settings) as (port, server):
        client: socket.socket = socket.create_connection(("127.0.0.1", port))
        if kind != "plain":
            context = ssl.create_default_context(cafile=authority)
            client = context.wrap_socket(client, server_hostname="localhost")
        before = times_of(server)
        if sends:
            client.sendall(b"r")
            for _ in range(SIZE // PIECE_BYTES):
                left = PIECE_BYTES
                while left:
                    left -= client.recv_into(buffer, left)
        else:
            for _ in range(SIZE // CHUNK_BYTES):
                client.sendall(buffer)
        user, system, _ = (b - a for a, b in zip(before, times_of(server), strict=True))
        client.close()
    return user / (SIZE / 1e9), system / (SIZE / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=500, help="handshakes")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        authority = Authority(Path(name))
        pair = authority.sign("localhost")
        settings = {
            "tlsCertificateFilePath": str(pair.certificate),
            "tlsKeyFilePath": str(pair.key),
        }
        for resumes in (False, True):
            for kind in ("loop", "ours"):
                us, loop_us = min(
                    handshake_us(
                        kind, settings, authority.certificate, options.count, resumes=resumes
                    )
                    for _ in range(options.rounds)
                )
                what = "resumed" if resumes else "whole"
                print(f"a handshake, {what}, {kind}: {us:.0f} us ({loop_us:.0f})", flush=True)
        for sends in (False, True):
            for kind in ("plain", "loop", "ours"):
                user, system = min(
                    (
                        cpu_s_per_gb(kind, settings, authority.certificate, sends=sends)
                        for _ in range(options.rounds)
                    ),
                    key=sum,
                )
                what = "server sends" if sends else "server receives"
                print(f"{what}, {kind}: {user:.2f} + {system:.2f} CPU s/GB", flush=True)


if __name__ == "__main__":
    main()
