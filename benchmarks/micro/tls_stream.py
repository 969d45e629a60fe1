"""What TLS costs the broker's process for a gigabyte: `python -m benchmarks.micro.tls_stream`.

A client of OpenSSL sends, or receives, in records of 16 KiB; the server is a buffered protocol
as the broker's connections are. CPU seconds of the server's process, so that other load on the
machine matters little: plain, over the event loop's own TLS, and over ours.
"""

import argparse
import asyncio
import multiprocessing
import os
import socket
import ssl
import tempfile
from pathlib import Path
from typing import Any, cast

import uvloop

from magnetar.broker.config import BrokerConfig
from magnetar.broker.listener.tls import TlsListener, server_context
from tests.certificates import Authority

TICK_BYTES = 256 * 1024  # what the server writes in one go
PIECE_BYTES = 16 * 1024  # of which buffers
CHUNK_BYTES = 128 * 1024  # what the client writes in one go


class Server(asyncio.BufferedProtocol):
    """Takes what comes; a first byte "r" asks for that much instead."""

    taken = 0
    sends = False
    writable = True
    buffer = memoryview(bytearray(512 * 1024))
    pieces = [bytes(PIECE_BYTES)] * (TICK_BYTES // PIECE_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self.sends and self.buffer[0] == ord("r"):
            self.sends = True
            self.send()
        self.taken += nbytes

    def send(self) -> None:
        if self.writable and not self.transport.is_closing():
            self.transport.writelines(self.pieces)
            asyncio.get_running_loop().call_soon(self.send)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.send()


async def serve(kind: str, settings: dict[str, Any], told: Any) -> None:
    config = BrokerConfig().with_keys(settings)
    loop = asyncio.get_running_loop()
    if kind == "ours":
        port = await TlsListener(config, Server, backlog=16).start("127.0.0.1", 0, "benchmark")
    else:
        context = server_context(config) if kind == "loop" else None
        server = await loop.create_server(Server, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
    told.send(port)
    while True:
        await asyncio.sleep(0.01)
        if told.poll():
            told.recv()
            told.send((os.times().user, os.times().system))


def server_process(kind: str, settings: dict[str, Any], told: Any) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(kind, settings, told))


def cpu_s_per_gb(
    kind: str, settings: dict[str, Any], authority: Path, sends: bool
) -> tuple[float, float]:
    """In the program, in the kernel."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=server_process, args=(kind, settings, there), daemon=True)
    process.start()
    there.close()  # if it dies, recv ends
    client: socket.socket = socket.create_connection(("127.0.0.1", here.recv()))
    if kind != "plain":
        context = ssl.create_default_context(cafile=authority)
        client = context.wrap_socket(client, server_hostname="localhost")
    size, chunk = 1 << 29, bytes(CHUNK_BYTES)
    buffer = bytearray(CHUNK_BYTES)
    here.send("time")
    user_s, system_s = here.recv()
    if sends:
        client.sendall(b"r")
        for _ in range(size // PIECE_BYTES):
            left = PIECE_BYTES
            while left:
                left -= client.recv_into(buffer, left)
    else:
        for _ in range(size // len(chunk)):
            client.sendall(chunk)
    here.send("time")
    user_end_s, system_end_s = here.recv()
    client.close()
    process.kill()
    process.join()
    return (user_end_s - user_s) / (size / 1e9), (system_end_s - system_s) / (size / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        authority = Authority(Path(name))
        pair = authority.sign("localhost")
        settings = {
            "tlsCertificateFilePath": str(pair.certificate),
            "tlsKeyFilePath": str(pair.key),
        }
        for sends in (False, True):
            for kind in ("plain", "loop", "ours"):
                found = [
                    cpu_s_per_gb(kind, settings, authority.certificate, sends)
                    for _ in range(rounds)
                ]
                what = "server sends" if sends else "server receives"
                user, system = min(found, key=sum)
                print(
                    f"{what}, {kind}: {user:.2f} + {system:.2f} CPU s/GB (best of {rounds})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
