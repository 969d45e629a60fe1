"""Long polls of real bookies, and a tail in a process of its own (L6, L8)."""

import asyncio
import contextlib
import random
import re
import sys
from pathlib import Path

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import (
    ClientConfig,
    LedgerConfig,
    ReadConfig,
    SpeculationConfig,
    WriteConfig,
)
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.layout.find_layout import open_layout
from magnetar.bookkeeper.transport import ReadReply, ReadRequest
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.bookkeeper.transport_grpc.connector import BookieConnector
from magnetar.metadata.factory import connect_store
from tests.bookie_process import BookieProcess
from tests.child_process import ChildProcess
from tests.integration.bookie_node import KEY
from tests.integration.bookkeeper_network import Network, eventually
from tests.integration.test_bookkeeper_network import add

SESSION = ("--set", "metadataStoreSessionTimeoutMillis=4000")


# ---- one bookie over gRPC


async def test_a_poll_brings_the_entry_it_waited_for(network: Network) -> None:
    client = network.remote("b0")
    assert await add(client, 7, 0) == codes.OK
    poll = asyncio.create_task(client.wait_lac(7, 0, 30.0))
    assert await add(client, 7, 1) == codes.OK
    assert await add(client, 7, 2) == codes.OK  # carries 1
    reply = await poll
    assert reply.next_packet is not None
    assert bytes(reply.next_packet).endswith(b"x")
    assert int.from_bytes(bytes(reply.next_packet)[8:16], "big") == 1


async def test_a_poll_ends_when_the_ledger_is_fenced(network: Network) -> None:
    client = network.remote("b0")
    assert await add(client, 7, 0) == codes.OK
    bookie = network.served["b0"].bookie
    poll = asyncio.create_task(client.wait_lac(7, 5, 60.0))
    await eventually(lambda: bool(bookie._lac_watch))
    await client.read_lac(7, fence=True, master_key=KEY)
    async with asyncio.timeout(30):
        assert (await poll).code == codes.OK
    late = asyncio.create_task(client.wait_lac(7, 5, 0.05))  # was fenced before: it waits
    assert (await late).code == codes.OK


async def test_a_poll_ends_when_the_ledger_is_dropped(network: Network) -> None:
    client = network.remote("b0")
    assert await add(client, 7, 0) == codes.OK
    bookie = network.served["b0"].bookie
    poll = asyncio.create_task(client.wait_lac(7, 5, 60.0))
    await eventually(lambda: bool(bookie._lac_watch))
    bookie.storage.forget(7, 1)
    bookie.on_ledgers_dropped([7])
    async with asyncio.timeout(30):
        assert (await poll).code == codes.NO_LEDGER


async def test_pending_requests_are_counted(network: Network) -> None:
    client = network.remote("b0")
    assert client.pending_requests == 0
    polls = [asyncio.create_task(client.wait_lac(7, 5, 0.2)) for _ in range(3)]
    adds = [asyncio.create_task(add(client, 7, entry_id)) for entry_id in range(4)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reads = [asyncio.create_task(client.read_entries(ReadRequest(7, 0, 1, 100))) for _ in range(2)]
    await asyncio.sleep(0)
    assert client.pending_requests == 6  # polls wait on purpose
    await asyncio.gather(*polls, *adds, *reads)
    assert client.pending_requests == 0


async def test_the_loser_of_a_race_is_not_waited_for(network: Network) -> None:
    network.client = BookKeeperClient(
        *(network.store, network.pool, network.client._placement),
        clock=lambda: 0,
        rng=random.Random(1),
        config=ClientConfig(reads=ReadConfig(speculation=SpeculationConfig(20, 20))),
    )
    writer = await network.client.create_ledger(LedgerConfig(3, 3, 3))
    writer.append([b""], [b"wanted"])
    await eventually(lambda: writer.last_confirmed == 0)
    await writer.close()
    reader = await network.client.open_ledger(writer.ledger_id, recover=False)
    slow = network.served[reader.metadata.last_segment.bookies[reader._start]].bookie
    asked, answers = asyncio.Event(), asyncio.Event()
    read_entries = slow.read_entries

    async def hang(request: ReadRequest) -> ReadReply:
        asked.set()
        await answers.wait()
        return await read_entries(request)

    slow.read_entries = hang  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        run = await reader.read(0, 0, 100)
        assert [bytes(body) for body in run.bodies] == [b"wanted"]
        await asked.wait()
        answers.set()  # what comes too late is left out, and the connection goes on
        assert len((await reader.read(0, 0, 100)).bodies) == 1


async def test_a_tail_across_an_ensemble_change(network: Network) -> None:
    writer = await network.client.create_ledger(LedgerConfig(2, 2, 2))
    reader = await network.client.open_ledger(writer.ledger_id, recover=False)
    lost = writer.metadata.last_segment.bookies[0]

    async def write() -> None:
        for number in range(100):
            if number == 40:
                await network.stop(lost)
            writer.append([b""], [b"%d" % number])
            await eventually(lambda number=number: writer.last_confirmed == number)
        await writer.close()

    writing = asyncio.create_task(write())
    found: list[bytes] = []
    async with asyncio.timeout(60):
        while not reader.is_closed or len(found) <= reader.last_confirmed:
            if len(found) <= reader.last_confirmed:
                run = await reader.read(len(found), reader.last_confirmed, 1 << 20)
                found += map(bytes, run.bodies)
            else:
                await reader.wait(len(found) - 1, 30.0)
    await writing
    assert found == [b"%d" % number for number in range(100)]


# ---- another process


class TailProcess(ChildProcess):
    """``tests/tail_process.py`` on one ledger."""

    def __init__(self, log_path: Path, url: str, ledger_id: int) -> None:
        super().__init__(log_path)
        self._arguments = (url, str(ledger_id))

    def start(self) -> None:
        self._process = self.popen([sys.executable, "-m", "tests.tail_process", *self._arguments])
        self.wait_for_line(re.compile("^ready$", re.MULTILINE), "tail", 0)

    def seen(self) -> list[str]:
        return [line for line in self.log.splitlines() if line[:1].isdigit()]


async def test_another_process_sees_every_acknowledged_entry(
    url: str, bookies: list[BookieProcess], tmp_path: Path
) -> None:
    """Without a further add: by the explicit LAC. With one: by that. And the end by the close."""
    with contextlib.ExitStack() as stack:
        store = await connect_store(url, None, session_timeout_s=10.0, operation_timeout_s=30.0)
        layout = await open_layout(store)
        connector = BookieConnector(store, TransportConfig(), layout=layout)
        pool = BookiePool(store, connector.connect)
        await pool.start()
        rng = random.Random(1)
        client = BookKeeperClient(
            *(store, pool, RandomPlacement(rng)),
            clock=lambda: 0,
            rng=rng,
            config=ClientConfig(writes=WriteConfig(explicit_lac_interval_ms=20)),
            layout=layout,
        )
        writer = await client.create_ledger(LedgerConfig(3, 3, 2))
        tail = stack.enter_context(TailProcess(tmp_path / "tail.log", url, writer.ledger_id))
        expected: list[str] = []

        async def write(count: int) -> None:
            for _ in range(count):
                expected.append(f"{writer.next_entry} body-{writer.next_entry}")
                writer.append([b""], [b"body-%d" % writer.next_entry])
            await eventually(lambda: writer.last_confirmed == len(expected) - 1)

        await write(1)
        await eventually(lambda: tail.seen() == expected)  # alone: nothing follows it
        await write(20)
        await eventually(lambda: tail.seen() == expected)
        bookies[1].pause()  # a member that answers nobody
        await write(5)
        # Whoever asks that one waits for a call's time-out, and again on a slow machine.
        await eventually(lambda: tail.seen() == expected)
        bookies[1].resume()
        await _close(writer)
        await eventually(lambda: tail.log.endswith("end\n"))
        assert tail.seen() == expected
        assert tail.take().wait(30) == 0
        await pool.close()
        await connector.close()
        await store.close()


async def _close(writer: AsyncLedgerWriter) -> None:
    metadata = await writer.close()
    assert metadata.last_entry == writer.last_confirmed
