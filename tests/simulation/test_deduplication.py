"""Producers send until everything is acknowledged, while storage loses answers: all is stored once.

A real broker with de-duplication over a model bookie, in virtual time. What goes wrong: an entry is
stored and its answer is an error; the bookie is away, for seconds or for longer than the search for
a ledger's end takes; metadata refuses, or writes and doesn't say so; the topic is unloaded. So
appends fail whose entries turn up in the log later, or not at all. Producers do what the official
clients do: at CLOSE_PRODUCER, an ERROR or a SEND_ERROR they come back and send again what wasn't
answered. Their entries are messages, batches and chunks.

At the end each (name, sequence id) is in the log once, in order, and so is all that was
acknowledged. Replay one seed: MAGNETAR_SEED=41 MAGNETAR_SEEDS=1 pytest FILE
"""

import asyncio
import logging
from collections import Counter

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.transport import AddRequest
from magnetar.broker.producer.deduplication import Deduplication
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import parse_entry_body
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.errors import MetadataError, OutcomeUnknownError
from magnetar.metadata.store import Versioned
from tests.simulation.simulator import Simulator, run_simulation, seeds
from tests.simulation.test_bundles_ownership import commit_inline
from tests.unit.broker.doubles import Broker, Client, message

NAME = TopicName.parse("persistent://public/default/t")
MESSAGES = 30
"""Of each producer."""


class Faults:
    """What storage does wrong while ``on``."""

    def __init__(self, broker: Broker, simulator: Simulator) -> None:
        self.on = False
        self._rng, self._bookie = simulator.rng, broker.cluster.bookie
        self._loses = 0.0
        self._refuses = 0.0
        self.lost = 0
        link = broker.cluster.connections[0]
        answer, self._put = link._answer, broker.cluster.sessions[0].put

        def answer_or_lose(request: AddRequest) -> None:
            if self.on and self._bookie.up and self._rng.random() < self._loses:
                self.lost += 1
                self._bookie.add(request)
                self._bookie.up = self._rng.random() < 0.5  # the connection breaks, or the bookie
                request.done(request, codes.UNAVAILABLE)
            else:
                answer(request)

        link._answer = answer_or_lose  # type: ignore[method-assign]  # the fault
        broker.cluster.sessions[0].put = self.put  # type: ignore[method-assign]  # the fault

    async def put(
        self, path: str, value: bytes, expected_version: int | None = None, **more: object
    ) -> Versioned:
        if not self.on or self._rng.random() >= self._refuses:
            return await self._put(path, value, expected_version, **more)  # type: ignore[arg-type]
        if self._rng.random() < 0.5:
            await self._put(path, value, expected_version, **more)  # type: ignore[arg-type]
            raise OutcomeUnknownError(path)
        raise MetadataError(f"{path}: connection loss")

    async def run(self) -> None:
        """Periods of faults, each with something of its own, and pauses."""
        rng = self._rng
        for _ in range(rng.randint(2, 5)):
            self._loses, self._refuses = rng.choice([0.02, 0.2]), rng.choice([0.0, 0.3, 0.9])
            self.on = True
            await asyncio.sleep(rng.choice([1, 20]))
            self._bookie.up = rng.random() < 0.7
            await asyncio.sleep(rng.choice([1, 20, 60]))
            self.on, self._bookie.up = False, True
            await asyncio.sleep(rng.choice([0, 5]))


class Producing:
    """A client that sends everything until it is acknowledged."""

    def __init__(self, broker: Broker, simulator: Simulator, number: int) -> None:
        self._broker, self._rng = broker, simulator.rng
        self.name, self._number = f"p{number}", number
        self.frames: list[tuple[int, bytes]] = []  # (sequence id that its receipt has, SEND)
        self.acked = 0  # frames that were answered: always the first ones
        sequence_id = 0
        while sequence_id < MESSAGES:
            sequence_id += self._add(sequence_id)

    def _add(self, first: int) -> int:
        """The next entry, or a message in chunks; how many sequence ids it has."""
        kind, name = self._rng.choice(["message", "message", "batch", "chunks"]), self.name
        fields: dict[str, object] = {"producer_name": name}
        if kind == "batch":
            count = self._rng.randint(2, 4)
            highest = first + count - 1 if self._rng.random() < 0.5 else 0  # C++ gives none
            fields |= {"num_messages_in_batch": count, "highest_sequence_id": highest}
            self.frames.append((first, self._frame(first, highest, fields)))
            return count
        chunks = 1 if kind == "message" else 3
        if chunks > 1:
            fields |= {"num_chunks_from_msg": chunks, "uuid": f"{name}-{first}"}
            fields |= {"total_chunk_msg_size": 300}
        for chunk in range(chunks):
            fields |= {"chunk_id": chunk} if chunks > 1 else {}
            self.frames.append((first, self._frame(first, 0, fields)))
        return 1

    def _frame(self, first: int, highest: int, fields: dict[str, object]) -> bytes:
        return message(first, b"x" * 100, highest=highest, **fields)  # type: ignore[arg-type]

    async def run(self) -> None:
        port = 5000 + 1000 * self._number
        while self.acked < len(self.frames):
            client = self._broker.client(port=(port := port + 1))
            await self._session(client)
            client.lose()
            await asyncio.sleep(self._rng.choice([0.1, 1.0]))

    async def _session(self, client: Client) -> None:
        """One connection, until something goes wrong or all is done."""
        client.send(client.producer_command("t", producer_name=self.name))
        sent, is_ready = self.acked, False
        for _ in range(2000):
            await asyncio.sleep(0.02)
            for command in client.take():
                if command.type == pb.BaseCommand.PRODUCER_SUCCESS:
                    is_ready = True
                elif command.type == pb.BaseCommand.SEND_RECEIPT:
                    assert command.send_receipt.sequence_id == self.frames[self.acked][0]
                    self.acked += 1
                elif command.type not in (pb.BaseCommand.CONNECTED, pb.BaseCommand.PING):
                    return  # CLOSE_PRODUCER, ERROR, SEND_ERROR
            if self.acked == len(self.frames):
                return
            if is_ready and sent < len(self.frames) and self._rng.random() < 0.3:
                count = self._rng.randint(1, 4)
                client.feed(b"".join(frame for _, frame in self.frames[sent : sent + count]))
                sent += count


async def stored(topic: PersistentTopic) -> dict[str, list[int]]:
    """Sequence ids in the log by name, of each message that its readers see."""
    found: dict[str, list[int]] = {}
    position = EARLIEST
    while (batch := await topic.ledger.read(position, 100, 1 << 20)) is not None:
        for body in batch.bodies:
            head, _ = parse_entry_body(bytes(body))
            if head.num_chunks_from_msg and head.chunk_id < head.num_chunks_from_msg - 1:
                continue
            first = head.sequence_id
            found.setdefault(head.producer_name, []).extend(
                range(first, first + (head.num_messages_in_batch or 1))
            )
        position = (batch.ledger_id, batch.last + 1)
    return found


async def scenario(simulator: Simulator) -> Counter[str]:
    rng = simulator.rng
    broker = Broker(
        broker_deduplication_enabled=True,
        broker_deduplication_entries_interval=rng.choice([3, 1000]),
        managed_ledger_max_entries_per_ledger=rng.choice([5, 50_000]),
        managed_ledger_min_ledger_rollover_time_minutes=0,
        broker_delete_inactive_topics_enabled=False,
    )
    commit_inline(broker.cluster.store, simulator.seed)
    await broker.start()
    topic = await broker.service.loader.load(NAME, create=True)
    await topic.create_subscription("keeper", EARLIEST)
    faults = Faults(broker, simulator)
    producers = [Producing(broker, simulator, n) for n in range(3)]
    works = [simulator.start(each.run()) for each in producers]
    counts: Counter[str] = Counter()
    seek = Deduplication._seek_end

    def count_searches(self: Deduplication) -> None:
        counts["ends searched for"] += not self.seeks_end
        seek(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deduplication, "_seek_end", count_searches)
        works.append(simulator.start(faults.run()))
        if rng.random() < 0.3:
            await asyncio.sleep(rng.uniform(0, 60))
            await broker.service.loader.unload(str(NAME))
        await asyncio.wait(works, timeout=3600)
    for work in works:
        simulator.check(work.done(), "a producer isn't done though storage is well again")
        if work.done():
            work.result()
    topic = await broker.service.loader.load(NAME, create=False)
    assert isinstance(topic, PersistentTopic)
    found = await stored(topic)
    for producer in producers:
        ids = found[producer.name]
        whole = list(range(ids[-1] + 1)) if ids else []
        simulator.check(ids == whole and len(ids) >= MESSAGES, f"{producer.name}: {ids}")
        last = topic.last_sequence_id(producer.name)
        simulator.check(last == ids[-1], f"{producer.name}: {last} is known, {ids[-3:]} stored")
    counts["answers lost"] = faults.lost
    await broker.close()
    return counts


SEEDS = seeds(40)


def test_every_message_is_stored_once() -> None:
    logging.disable(logging.CRITICAL)
    try:
        counts: Counter[str] = Counter()
        for seed in SEEDS:
            counts += run_simulation(seed, scenario)
    finally:
        logging.disable(logging.NOTSET)
    print(counts)
    if len(SEEDS) >= 40:
        assert counts["answers lost"] > 50
        assert counts["ends searched for"] > 5, "the seeds meet no append that is undecided"
