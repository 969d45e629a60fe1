"""What failing logins cost others: `python -m benchmarks.micro.login_flood`.

One client publishes message after message, each waiting for its receipt, while strangers open 2,000
connections a second, show a token that is wrong, and are told so. Server, strangers and client are
three processes of one machine, so that on two cores the strangers' own work counts, too.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import jwt

import magnetar
from broker.protocol import pulsar_api_pb2 as pb
from broker.protocol.framing import encode_command
from tests.raw_client import RawClient

RATE, SECONDS, SECRET = 2_000, 8.0, os.urandom(32)
TOPIC = "persistent://public/default/flooded"


def connect_frame(token: str) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.client_version, command.connect.protocol_version = "flood", 19
    command.connect.auth_method_name, command.connect.auth_data = "token", token.encode()
    return encode_command(command)


def flood(service_url: str, seconds: float) -> None:
    """Strangers for so long; prints how many of them there were."""
    host, port = service_url.removeprefix("pulsar://").split(":")
    frame = connect_frame(jwt.encode({"sub": "joe"}, os.urandom(32), "HS256"))
    answered = 0

    async def one() -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(frame)
        await reader.read()
        answered += 1
        writer.close()

    async def run() -> None:
        began, started, tasks = time.perf_counter(), 0, set()
        while (passed_s := time.perf_counter() - began) < seconds:
            for _ in range(int(passed_s * RATE) - started):
                started += 1
                task = asyncio.create_task(one())
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(0.005)
        print(f"  strangers: {started / seconds:.0f} a second, {answered} answered")
        for task in tasks:
            task.cancel()

    asyncio.run(run())


def latencies_ms(service_url: str, seconds: float) -> list[float]:
    client = RawClient(service_url, connect=False)
    client.send_bytes(connect_frame(jwt.encode({"sub": "joe"}, SECRET, "HS256")))
    client.expect(pb.BaseCommand.CONNECTED)
    client.create_producer(TOPIC)
    found: list[float] = []
    end_s = time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < end_s:
        client.send_bytes(client.send_frame(len(found), b"x" * 1024))
        client.expect(pb.BaseCommand.SEND_RECEIPT)
        found.append((time.perf_counter() - began_s) * 1000)
    client.close()
    return found


def show(name: str, values: list[float]) -> None:
    values.sort()
    p50, p99 = values[len(values) // 2], values[len(values) * 99 // 100]
    print(f"{name}: {len(values)} messages, p50 {p50:.2f} ms, p99 {p99:.2f} ms")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder) / "key"
        key.write_bytes(SECRET)
        with magnetar.embedded(
            mode="process",
            authenticationEnabled=True,
            authenticationProviders="token",
            tokenSecretKey=f"file://{key}",
        ) as broker:
            for _ in range(2):
                show("alone", latencies_ms(broker.service_url, SECONDS / 2))
                spawn = multiprocessing.get_context("spawn")
                strangers = spawn.Process(target=flood, args=(broker.service_url, SECONDS + 2))
                strangers.start()
                time.sleep(1.5)
                show("beside strangers", latencies_ms(broker.service_url, SECONDS / 2))
                strangers.join()


if __name__ == "__main__":
    main()
