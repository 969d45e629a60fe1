"""Transactions of one message in one process, from a client's bytes to the answer of its commit.

Run: python -m benchmarks.micro.transactions [--profile] [--acknowledged 10] [--ends]

Printed for 1, 16 and 64 transactions at once, each with a producer of its own: microseconds of a
transaction, writes to the client's socket and appends, then the calls of Python functions by part.
``--acknowledged``: each reads so many messages first, and acknowledges them one by one.
``--ends``: instead, one transaction acknowledges as many as that; milliseconds of processor time of
the longest turn of the loop while it is committed, and of one while it is aborted.
Ledgers are in memory, so this is the broker's own work but for sockets and disks. Calls don't
depend on what else the machine does.
"""

import argparse
import asyncio
import cProfile
import gc
import pstats
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from tests.unit.broker.doubles import Broker, Client, message

ROUNDS: Final = 30
_IDS: Final = 1_000
"""Of an ACK of ``--ends``, and messages that are written at once."""
AT_ONCE: Final = (1, 16, 64)
TOPIC: Final = "persistent://public/default/t"
IN: Final = "persistent://public/default/in"
SUBSCRIPTION: Final = "s"
_ROOT: Final = Path(__file__).resolve().parents[2]
_PARTS: Final = (
    ("broker/connection/", "connection"),
    ("broker/protocol/", "connection"),
    ("broker/transaction/coordinator", "coordinator"),
    ("broker/transaction/async_coordinator", "coordinator"),
    ("broker/transaction/transaction_", "coordinator"),
    ("broker/service/", "service"),
    ("broker/cluster/", "service"),
    ("broker/transaction/", "topic"),
    ("broker/", "topic"),
    ("managed_ledger/", "managed ledger"),
    ("bookkeeper/", "bookkeeper"),
)


class Turns:
    """Seconds of processor time of the longest turn of the loop, and how many there were."""

    def __init__(self) -> None:
        self.longest_s, self.count, self._is_over = 0.0, 0, False

    def __enter__(self) -> "Turns":
        gc.collect()
        self._began = time.thread_time()
        self._next()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True

    def _next(self) -> None:
        now = time.thread_time()
        self.longest_s, self._began = max(self.longest_s, now - self._began), now
        self.count += 1
        if not self._is_over:
            asyncio.get_running_loop().call_soon(self._next)


class Loads:
    """One client; transactions at once have a producer each.

    Args:
        acknowledged: messages that each transaction reads and acknowledges.
    """

    def __init__(self, client: Client, acknowledged: int) -> None:
        self.client, self._acknowledged = client, acknowledged
        self._sequence = 0

    async def run(self, count: int) -> None:
        """So many transactions, each step of all of them in one read."""
        read = iter(await self._read(count * self._acknowledged))
        news = [self._new() for _ in range(count)]
        names = [x.newTxnResponse.txnid_least_bits for x in await self._ask(news)]
        await self._ask(map(_add, names))
        if self._acknowledged:
            await self._ask(map(_add_subscription, names))
        frames = b"".join(map(self._send, names, range(1, count + 1)))
        acks = [_ack(name, next(read)) for name in names for _ in range(self._acknowledged)]
        self.client.feed(frames)
        self.client.send(*acks)
        await self._answers(count + len(acks))
        await self._ask(map(_commit, names))

    async def end_one(self, *, commit: bool) -> Turns:
        """The turns of the end of a transaction that has only acknowledged."""
        read = await self._read(self._acknowledged)
        [answer] = await self._ask([self._new()])
        name = answer.newTxnResponse.txnid_least_bits
        await self._ask([_add_subscription(name)])
        for start in range(0, len(read), _IDS):
            await self._ask([_ack(name, *read[start : start + _IDS])])
        with Turns() as turns:
            self.client.send(_commit(name) if commit else _abort(name))
            while all(x.type != pb.BaseCommand.END_TXN_RESPONSE for x in await self._answers(1)):
                pass  # messages that are sent again
        return turns

    async def _read(self, count: int) -> list[pb.MessageIdData]:
        """Ids of so many new messages."""
        read: list[pb.MessageIdData] = []
        for start in range(0, count, _IDS):
            some = range(start, min(start + _IDS, count))
            frames = [message(number, bytes(1024), AT_ONCE[-1] + 1) for number in some]
            self.client.feed(b"".join(frames))
            answers = await self._answers(2 * len(some))
            read += [x.message.message_id for x in answers if x.type == pb.BaseCommand.MESSAGE]
        return read

    async def _ask(self, commands: Iterable[pb.BaseCommand]) -> list[pb.BaseCommand]:
        asked = list(commands)
        self.client.send(*asked)
        return await self._answers(len(asked))

    async def _answers(self, count: int) -> list[pb.BaseCommand]:
        """Unlike the client's ``receive`` it makes no turns of its own."""
        found: list[pb.BaseCommand] = []
        while len(found) < count:
            await asyncio.sleep(0)
            found += self.client.take()
        return found

    def _new(self) -> pb.BaseCommand:
        command = pb.BaseCommand(type=pb.BaseCommand.NEW_TXN)
        command.newTxn.request_id = next(self.client.request_ids)
        command.newTxn.txn_ttl_millis = 60_000
        command.newTxn.tc_id = 0
        return command

    def _send(self, least: int, producer_id: int) -> bytes:
        self._sequence += 1
        sequence, payload = self._sequence, bytes(1024)
        return message(*(sequence, payload, producer_id), txnid_most_bits=0, txnid_least_bits=least)


def _add(least: int) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.ADD_PARTITION_TO_TXN)
    add = command.addPartitionToTxn
    add.request_id, add.txnid_most_bits, add.txnid_least_bits = 1, 0, least
    add.partitions.append(TOPIC)
    return command


def _add_subscription(least: int) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.ADD_SUBSCRIPTION_TO_TXN)
    add = command.addSubscriptionToTxn
    add.request_id, add.txnid_most_bits, add.txnid_least_bits = 1, 0, least
    add.subscription.add(topic=IN, subscription=SUBSCRIPTION)
    return command


def _ack(least: int, *message_ids: pb.MessageIdData) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.ACK)
    ack = command.ack
    ack.consumer_id, ack.ack_type = 1, pb.CommandAck.Individual
    ack.request_id, ack.txnid_most_bits, ack.txnid_least_bits = 1, 0, least
    ack.message_id.extend(message_ids)
    return command


def _commit(least: int) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.END_TXN)
    end = command.endTxn
    end.request_id, end.txnid_most_bits, end.txnid_least_bits = 1, 0, least
    end.txn_action = pb.COMMIT
    return command


def _abort(least: int) -> pb.BaseCommand:
    command = _commit(least)
    command.endTxn.txn_action = pb.ABORT
    return command


async def _connect(broker: Broker, acknowledged: int) -> Loads:
    client = broker.client()
    await client.receive_one()
    command = pb.BaseCommand(type=pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST)
    command.tcClientConnectRequest.request_id = 1
    command.tcClientConnectRequest.tc_id = 0
    client.send(command)
    await client.receive_one()
    for producer_id in range(1, AT_ONCE[-1] + 1):
        await client.produce(TOPIC, producer_id)
    if acknowledged:
        await client.produce(IN, AT_ONCE[-1] + 1)
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        asked = command.subscribe
        asked.topic, asked.subscription, asked.consumer_id, asked.request_id = (
            IN,
            SUBSCRIPTION,
            1,
            2,
        )
        asked.subType = pb.CommandSubscribe.Shared
        client.send(command)
        await client.receive_one()
        command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        command.flow.consumer_id, command.flow.messagePermits = 1, 1 << 30
        client.send(command)
    return Loads(client, acknowledged)


class Calls:
    """Calls of Python functions by part of the broker, and appends to logs."""

    def __init__(self) -> None:
        self.of = Counter[str]()
        self.appends = 0

    def __enter__(self) -> "Calls":
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        self.appends += code is ManagedLedger.append.__code__
        name = code.co_filename.removeprefix(f"{_ROOT}/").removeprefix("magnetar/")
        part = next((part for start, part in _PARTS if name.startswith(start)), "")
        if part:
            self.of[part] += 1
        elif "asyncio" in name:
            self.of["asyncio"] += 1


async def main(*, profile: bool, acknowledged: int, ends: bool) -> None:
    broker = await Broker(transaction_coordinator_enabled=True).start()
    loads = await _connect(broker, acknowledged)
    if ends:
        for name, commit in (("commit", True), ("abort", False)):
            turns = await loads.end_one(commit=commit)
            print(f"{name}: longest turn {turns.longest_s * 1e3:.2f} ms of {turns.count}")
        await broker.close()
        return
    await loads.run(1)
    for at_once in AT_ONCE:
        best_s, count = float("inf"), 64 // at_once
        for _ in range(ROUNDS):
            began = time.process_time()
            for _ in range(count):
                await loads.run(at_once)
            best_s = min(best_s, time.process_time() - began)
        writes = loads.client.transport.writes
        with Calls() as calls:
            for _ in range(count):
                await loads.run(at_once)
        writes = loads.client.transport.writes - writes
        print(
            f"{at_once} at once: {best_s / 64 * 1e6:.0f} us, {writes / 64:.2f} writes,"
            f" {calls.appends / 64:.2f} appends, {calls.of.total() / 64:.0f} calls:",
            ", ".join(f"{part} {n / 64:.0f}" for part, n in sorted(calls.of.items())),
        )
    if profile:
        with cProfile.Profile() as measured:
            for _ in range(ROUNDS):
                await loads.run(AT_ONCE[-1])
        pstats.Stats(measured).sort_stats("tottime").print_stats(45)
    await broker.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--profile", action="store_true", help="functions by their own time")
    parser.add_argument("--acknowledged", type=int, default=0, help="messages of a transaction")
    parser.add_argument("--ends", action="store_true", help="the longest turn of their ends")
    options = parser.parse_args()
    asyncio.run(main(profile=options.profile, acknowledged=options.acknowledged, ends=options.ends))
