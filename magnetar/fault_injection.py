"""Faults that a broker under test makes: docs/guides/embedding.md. No broker elsewhere has them."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any

from magnetar.bookkeeper.storage.direct_buffers import DirectBuffers
from magnetar.bookkeeper.storage.file_system import Buffer, File
from magnetar.bookkeeper.storage.os_file_system import OsFile, OsFileSystem
from magnetar.broker.connection.connection import Connection
from magnetar.broker.connection.consumer_sink import BinaryConsumerSink
from magnetar.broker.connection.send_path import SendPath
from magnetar.broker.errors import TopicNotFoundError
from magnetar.broker.producer.producer import PublishBatch
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.subscription.consumer import KEY_SHARED, SHARED, Consumer
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.errors import ManagedLedgerFencedError
from magnetar.managed_ledger.position import Position


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How many of all messages (of all durable writes) meet a fault: 0 to 1."""

    drop_receipts: float = 0.0
    duplicate: float = 0.0
    unload: float = 0.0
    fence: float = 0.0
    slow_disk: float = 0.0
    kill: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        for field in fields(self):
            rate = getattr(self, field.name)
            if not isinstance(rate, int | float) or not 0 <= rate <= 1:
                raise ValueError(f"{field.name}={rate!r}: a rate is between 0 and 1")


class FaultPlan:
    """Which message meets which fault: the same for the same seed and the same messages.

    Each fault has a sequence of its own, so that one more kind doesn't change the others.

    Attributes:
        drawn: how far each sequence is, for the process after a kill.
    """

    def __init__(self) -> None:
        self.set(0, FaultRates())

    def set(
        self,
        seed: int,
        rates: FaultRates,
        slow_disk_s: float = 0.0,
        drawn: Mapping[str, int] | None = None,
    ) -> None:
        """Begin anew.

        Args:
            slow_disk_s: how long a slow write takes more.
            drawn: go on from there.
        """
        self._rates, self.drawn = rates, Counter(drawn)
        self.is_active, self.slow_disk_s = rates != FaultRates(), slow_disk_s
        self._chance = {field.name: Random(f"{seed} {field.name}") for field in fields(rates)}
        for fault, count in self.drawn.items():
            for _ in range(count):
                self._chance[fault].random()
        self._delivered_again: set[tuple[str, Position]] = set()

    def meets(self, fault: str) -> bool:
        """Whether the next message does."""
        rate: float = getattr(self._rates, fault)
        if not rate:
            return False
        self.drawn[fault] += 1
        return self._chance[fault].random() < rate

    def is_delivered_again(self, subscription: str, position: Position) -> bool:
        """Whether this message does, that is delivered now; once for each subscription."""
        if (subscription, position) in self._delivered_again or not self.meets("duplicate"):
            return False
        self._delivered_again.add((subscription, position))
        return True


class FaultyService:
    """Makes the faults of one broker."""

    def __init__(self, service: BrokerService, plan: FaultPlan, kill: Callable[[], None]) -> None:
        """``kill`` ends the process at once."""
        self._service, self.plan, self._kill = service, plan, kill
        service.connection_type = _connection_type(self)

    async def unload(self, topic: str) -> None:
        """Close a topic or its partitions here; the next client has them loaded again."""
        for each in self._loaded(topic):
            await self._service.loader.unload(each.full_name)

    async def fence(self, topic: str) -> None:
        """As if another broker had opened the topic: what is on its way fails."""
        for each in self._loaded(topic):
            self.fence_now(each)
            await self._service.loader.unload(each.full_name)

    def fence_now(self, topic: PersistentTopic) -> None:
        topic.ledger.fence(ManagedLedgerFencedError("a fault: another owner has taken over"))

    def after_stored(self, topic: Any) -> None:
        """A message of ``topic`` was stored, and its producer knows or never will."""
        service = self._service
        if self.plan.meets("unload"):
            service.run(service.loader.unload(topic.full_name))
        if self.plan.meets("fence") and isinstance(topic, PersistentTopic):
            service.loop.call_soon(self.fence_now, topic)
        if self.plan.meets("kill"):
            self._kill()

    def _loaded(self, topic: str) -> list[PersistentTopic]:
        """Raises TopicNotFoundError: no part of it is loaded."""
        name = TopicName.parse(topic)
        parts = [
            each
            for each in self._service.topics.values()
            if isinstance(each, PersistentTopic) and name in (each.name, each.name.base)
        ]
        if not parts:
            raise TopicNotFoundError(f"{name} isn't loaded, or isn't persistent")
        return parts


def _connection_type(faults: FaultyService) -> type[Connection]:
    """Each service has its own: brokers of one process have faults of their own."""

    class FaultyConnection(Connection):
        sink_type = FaultySink

        def __init__(self, service: BrokerService, received: bytes = b"") -> None:
            super().__init__(service, received)
            self.sends = FaultySendPath(self, faults)

    return FaultyConnection


class FaultySendPath(SendPath):
    """Loses receipts: the message is stored, and the connection breaks before its producer knows.

    So it is with a network: a receipt is never lost alone.
    """

    def __init__(self, connection: Connection, faults: FaultyService) -> None:
        super().__init__(connection)
        self.faults = faults

    def publish_done(
        self, batch: PublishBatch, offset: int, count: int, ledger_id: int, first_entry_id: int
    ) -> None:
        faults, step = self.faults, 1 if ledger_id >= 0 else 0
        if not faults.plan.is_active:
            super().publish_done(batch, offset, count, ledger_id, first_entry_id)
            return
        for index in range(count):
            if not self._connection.closed and faults.plan.meets("drop_receipts"):
                self._connection.close("a fault: its receipt is lost")
            super().publish_done(batch, offset + index, 1, ledger_id, first_entry_id + step * index)
            faults.after_stored(batch.producer.topic)


class FaultySink(BinaryConsumerSink):
    """Delivers messages twice, as a broker does whose client has lost its connection."""

    def deliver(
        self,
        consumer: Consumer,
        batch: EntryBatch,
        picks: Sequence[int] | None,
        redelivery_counts: Sequence[int] | None,
        ack_sets: Mapping[int, Sequence[int]] | None,
    ) -> None:
        super().deliver(consumer, batch, picks, redelivery_counts, ack_sets)
        sends, subscription = self.connection.sends, consumer.subscription
        assert isinstance(sends, FaultySendPath)
        plan = sends.faults.plan
        if not plan.is_active:
            return
        indexes = range(len(batch.bodies)) if picks is None else picks
        positions = [(batch.ledger_id, batch.first + index) for index in indexes]
        again = [each for each in positions if plan.is_delivered_again(str(subscription), each)]
        if again:
            # Of one active consumer nothing less than all that it hasn't acknowledged.
            some = again if subscription.sub_type in (SHARED, KEY_SHARED) else None
            self.connection.service.loop.call_soon(subscription.redeliver, consumer, some)


class SlowFile(OsFile):
    """Its durable writes take longer, as ``plan`` says."""

    def __init__(self, path: Path, flags: int, buffers: DirectBuffers, plan: FaultPlan) -> None:
        super().__init__(path, flags, buffers)
        self._plan = plan

    @property
    def durable_descriptor(self) -> int:
        return -1  # each write comes by here

    def pwritev(
        self, buffers: Sequence[Buffer], offset: int, *, sync_point: str | None = None
    ) -> None:
        super().pwritev(buffers, offset, sync_point=sync_point)
        if sync_point is not None:
            self._wait()

    def sync(self, sync_point: str) -> None:
        super().sync(sync_point)
        self._wait()

    def _wait(self) -> None:
        if self._plan.meets("slow_disk"):
            time.sleep(self._plan.slow_disk_s)


class SlowFileSystem(OsFileSystem):
    """Makes a `SlowFile` of every file."""

    def __init__(self, root: Path, plan: FaultPlan) -> None:
        super().__init__(root)
        self._plan = plan

    def create(self, path: str) -> File:
        return SlowFile(self.root / path, os.O_CREAT | os.O_EXCL, self._buffers, self._plan)

    def open(self, path: str) -> File:
        return SlowFile(self.root / path, 0, self._buffers, self._plan)
