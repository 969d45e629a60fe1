"""Counts the product files that one operation crosses, and the calls between them.

    python scripts/count_ways.py [--calls]

A standalone broker in this process serves one client over sockets: a SEND up to its receipt, a
MESSAGE up to the answer to its acknowledgment, and the change of a policy of a namespace with a
loaded topic. Calls of all threads count; of five runs the shortest does, since the broker's timers
may fall into the others.
"""

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cache, partial
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from magnetar.broker.config import BrokerConfig
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import FrameReader, encode, encode_body
from magnetar.broker.server.standalone import Standalone

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "persistent://public/default/ways"
RUNS = 5


@cache
def product_file(path: str) -> str | None:
    """A file of the product, from the root; None: another one."""
    if not path.startswith(f"{ROOT}/") or "/.venv/" in path:
        return None
    found = str(Path(path).resolve().relative_to(ROOT))
    return None if found.startswith("scripts/") else found


class Recorder:
    """A profile function; it counts calls between product files while ``calls`` is set."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        called = product_file(frame.f_code.co_filename) if event == "call" else None
        if self.calls is None or called is None:
            return
        outer, caller = frame.f_back, None
        while outer is not None and (caller := product_file(outer.f_code.co_filename)) is None:
            outer = outer.f_back
        if caller != called:
            self.calls[caller or "event loop", called] += 1

    async def shortest(
        self, operations: list[Callable[[], Awaitable[object]]]
    ) -> Counter[tuple[str, str]]:
        found = []
        for operation in operations:
            await asyncio.sleep(0.2)  # until what the one before has left behind is done
            self.calls = Counter()
            await operation()
            calls, self.calls = self.calls, None
            found.append(calls)
        return min(found, key=lambda calls: (len(files_of(calls)), calls.total()))


def files_of(calls: Counter[tuple[str, str]]) -> set[str]:
    return {called for _, called in calls}


class Client:
    """A socket; what it sends is framed before anything is counted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, *requests: bytes) -> bytes:
        """Send each, and wait for its answer; the last one's."""
        answer = b""
        for request in requests:
            self._writer.write(request)
            answer = await self._reader.read(1 << 16)
        return answer

    async def open(self) -> None:
        await self.ask(
            encode(pb.CommandConnect(client_version="ways", protocol_version=19)),
            encode(pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)),
            encode(
                pb.CommandSubscribe(
                    topic=TOPIC,
                    subscription="s",
                    subType=pb.CommandSubscribe.Shared,
                    consumer_id=1,
                    request_id=2,
                )
            ),
        )


def send(number: int) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=number, publish_time=1)
    command = pb.CommandSend(producer_id=1, sequence_id=number)
    return encode(command, encode_body(metadata, b"x"))


def flow_and_ack(ledger_id: int, number: int) -> tuple[bytes, bytes]:
    ack = pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, request_id=number)
    ack.message_id.add(ledgerId=ledger_id, entryId=number)
    return encode(pb.CommandFlow(consumer_id=1, messagePermits=1)), encode(ack)


def put(seconds: int) -> bytes:
    body = str(seconds)
    return (
        f"POST /admin/v2/namespaces/public/default/messageTTL HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def count(recorder: Recorder, data: str) -> dict[str, Counter[tuple[str, str]]]:
    """The calls of each way."""
    config = BrokerConfig(data_dir=data, broker_service_port=0, web_service_port=0)
    standalone = Standalone(config)
    await standalone.start()
    try:
        addresses = (standalone.service_url, standalone.web_url)
        ports = [urlsplit(each).port for each in addresses]
        binary, web = [Client(*await asyncio.open_connection("127.0.0.1", port)) for port in ports]
        await binary.open()
        sends = [send(number) for number in range(RUNS + 1)]
        ((receipt, _),) = FrameReader().feed(await binary.ask(sends.pop(0)))
        ledger_id = receipt.send_receipt.message_id.ledgerId
        await web.ask(put(60))
        return {
            "SEND": await recorder.shortest([partial(binary.ask, each) for each in sends]),
            "MESSAGE and its ack": await recorder.shortest(
                [partial(binary.ask, *flow_and_ack(ledger_id, n)) for n in range(RUNS)]
            ),
            "policy": await recorder.shortest([partial(web.ask, put(61 + n)) for n in range(RUNS)]),
        }
    finally:
        await standalone.close()


def main() -> None:
    recorder = Recorder()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    with tempfile.TemporaryDirectory() as data:
        ways = asyncio.run(count(recorder, data))
    for name, calls in ways.items():
        print(f"{name}: {len(files_of(calls))} files, {calls.total()} calls between files")
        if "--calls" in sys.argv:
            for (caller, called), number in calls.items():
                print(f"  {caller} > {called}: {number}")


if __name__ == "__main__":
    main()
