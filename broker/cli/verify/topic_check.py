"""One topic or partition of `magnetar verify`: loaded, disturbed, drained, read, judged."""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from magnetar.broker.cli.binary_client import CommandClient
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.profiles import ClusterTarget
from magnetar.broker.cli.verify.cluster_admin import ClusterAdmin
from magnetar.broker.cli.verify.reader import PassingReader, Reader
from magnetar.broker.cli.verify.sender import GROUPS_UNDER_WAY, Sender
from magnetar.broker.cli.verify.subscriber import CONSUMERS, Subscriber
from magnetar.broker.errors import BrokerError
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.verify.history import (
    Position,
    ReaderHistory,
    SubscriptionHistory,
    SubscriptionType,
    TopicHistory,
    Waited,
)
from magnetar.broker.verify.plan import (
    BATCH_MAX,
    DELAY_MS_MAX,
    MARKER,
    PRODUCERS,
    Group,
    TopicPlan,
    draw_groups,
)

_MESSAGES_A_SECOND: Final = 150
"""Of a producer: a load that leaves time to disturb it."""
_DISTURB_S: Final = 0.3, 0.9
_LOOK_AGAIN_S: Final = 1.0
_MARKER_PAUSE_S: Final = 0.1
_CALM_S: Final = 5.0
"""How long a final unload may take: a broker may refuse it while it does something else."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What each topic needs. ``admin`` None: we may not administer."""

    target: ClusterTarget
    admin: ClusterAdmin | None
    patience_s: float
    early_ms_max: int
    in_parts: bool = False
    """The brokers acknowledge parts of batches."""
    known_faults: bool = True
    """Also what Apache Pulsar is known to get wrong (docs/guides/verify.md)."""


class TopicCheck:
    """``run`` it once; then ``history`` is complete."""

    def __init__(
        self,
        around: Surroundings,
        topic: TopicName,
        seed: str,
        messages: int,
        plan: TopicPlan,
        *,
        is_added: bool = False,
    ) -> None:
        """``is_added``: a partition that was added to a topic with these subscriptions."""
        self.history = TopicHistory(
            str(topic),
            window=0 if plan.deduplicated else GROUPS_UNDER_WAY * BATCH_MAX,
            is_stored=plan.is_stored,
        )
        self.disturbances: dict[str, int] = {}
        self.waits: list[str] = []
        """Where nothing came for as long as it was waited for."""
        self._around, self._topic, self._messages = around, topic, messages
        self._plan = plan
        self._rng = random.Random(seed)
        self._clients: list[CommandClient] = []
        self._read_client = self._client()
        self._senders = [self._sender(f"producer-{n}") for n in range(PRODUCERS)]
        self._begin = self._senders[0].stored if is_added else None
        self._subscribers = [self._subscriber(kind) for kind in plan.types]
        self._keeping: list[asyncio.Task[None]] = []
        self._loaded = asyncio.Event()

    def _client(self) -> CommandClient:
        client = CommandClient(self._around.target)
        self._clients.append(client)
        return client

    def _sender(self, name: str) -> Sender:
        patience_s = self._around.patience_s
        return Sender(self._client(), self._topic, self.history, name, patience_s)

    def _subscriber(self, kind: SubscriptionType) -> Subscriber:
        history = SubscriptionHistory(kind.lower().replace("_", "-"), kind)
        self.history.subscriptions.append(history)
        rng = random.Random(self._rng.random())
        return Subscriber(
            self._client(),
            self._topic,
            history,
            rng,
            self._around.patience_s,
            in_parts=self._around.in_parts,
            sought_in_parts=self._around.known_faults,
            cumulative=not self._plan.chunked,
            begin=self._begin,
        )

    async def subscribed(self) -> None:
        """Returns when all subscriptions are there."""
        await asyncio.gather(*(each.let_in.wait() for each in self._subscribers))

    async def run(self) -> None:
        """Raises NoProgressError: there is nothing to judge."""
        try:
            await (self._run_stored() if self._plan.is_stored else self._run_unstored())
            await self._leave()
        finally:
            for task in self._keeping:
                task.cancel()
            for client in self._clients:
                client.close()

    async def _run_stored(self) -> None:
        reader = Reader(self._client(), self._topic, self._around.patience_s)
        await reader.keep()
        self._keep(CONSUMERS)
        await self._beside_consumers(self._load())
        await self._beside_consumers(self._drain())
        await self._stop_keeping()
        await self._send_marker()
        self._keep(dict.fromkeys(SubscriptionType, 1))
        await self._beside_consumers(self._wait_for_marker())
        await self._stop_keeping()
        self.history.stored = await reader.read()

    async def _run_unstored(self) -> None:
        self._keep(CONSUMERS)
        await self._beside_consumers(self.subscribed())
        await self._beside_consumers(self._load())
        await self._stop_keeping()
        self._keep(dict.fromkeys(SubscriptionType, 1))
        await self._beside_consumers(self._send_markers())
        await self._stop_keeping()

    # --- consumers, which come again by themselves

    def _keep(self, counts: dict[SubscriptionType, int]) -> None:
        self._keeping = [
            asyncio.ensure_future(each.keep(number))
            for each in self._subscribers
            for number in range(counts[each.type])
        ]

    async def _beside_consumers(self, work: Coroutine[Any, Any, None]) -> None:
        """Also ends when a consumer isn't let in any more. Raises NoProgressError."""
        task = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait(
                (task, *self._keeping), return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                each.result()
        finally:
            task.cancel()

    async def _stop_keeping(self) -> None:
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        self._keeping = []
        for subscriber in self._subscribers:
            with contextlib.suppress(BrokerError):
                await subscriber.close_all()

    # --- the load, and what disturbs it

    async def _load(self) -> None:
        count = self._messages // PRODUCERS
        disturbing = asyncio.ensure_future(self._disturb())
        try:
            await asyncio.gather(*(self._send(each, count) for each in self._senders))
            self._loaded.set()
            await disturbing  # a seek that is begun is waited for
        finally:
            disturbing.cancel()

    async def _send(self, sender: Sender, count: int) -> None:
        rng = random.Random(self._rng.random())
        groups = list(draw_groups(count, rng, chunked=self._plan.chunked))
        await sender.send_all(groups, count / _MESSAGES_A_SECOND / max(1, len(groups)))

    async def _disturb(self) -> None:
        ways = self._ways()
        while not self._loaded.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rng.uniform(*_DISTURB_S)):
                    await self._loaded.wait()
                break
            await self._look_for_forgotten()
            what = self._rng.choice(list(ways))
            self.disturbances[what] = self.disturbances.get(what, 0) + 1
            with contextlib.suppress(BrokerError, CliError):
                await ways[what]()

    def _ways(self) -> dict[str, Callable[[], Awaitable[None]]]:
        async def close_consumer() -> None:
            await self._rng.choice(self._subscribers).close_one()

        async def cut_consumers() -> None:
            self._rng.choice(self._subscribers).cut()

        async def cut_producer() -> None:
            self._rng.choice(self._senders).cut()

        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "consumer closed": close_consumer,
            "consumers' connection cut": cut_consumers,
            "producer's connection cut": cut_producer,
            "second consumer of an exclusive subscription": self._exclusive.intrude,
        }
        if self._plan.is_stored and not self._plan.chunked:
            ways |= {
                "seek by message id": lambda: self._any_subscriber().seek(by_time=False),
                "seek by time": lambda: self._any_subscriber().seek(by_time=True),
                "reader from a message id": self._read_from_somewhere,
            }
        if (admin := self._around.admin) is not None:
            ways["topic unloaded"] = lambda: self._unload(admin)
        return ways

    def _any_subscriber(self) -> Subscriber:
        """That may seek: one for one consumer at a time always may."""
        return self._rng.choice([each for each in self._subscribers if each.may_seek])

    async def _unload(self, admin: ClusterAdmin) -> None:
        if not self._around.known_faults:
            await self.subscribed()
        await admin.unload(self._topic)

    async def _read_from_somewhere(self) -> None:
        if seen := list(self._exclusive.seen):
            history = ReaderHistory(f"reader-{len(self.history.readers)}", self._rng.choice(seen))
            self.history.readers.append(history)
            reader = PassingReader(self._topic, history)
            await reader.read(await self._read_client.owner(self._topic))

    @property
    def _exclusive(self) -> Subscriber:
        return next(each for each in self._subscribers if each.type is SubscriptionType.EXCLUSIVE)

    # --- the end

    async def _drain(self) -> None:
        """Until everything is acknowledged, or nothing comes any more."""
        for subscriber in self._subscribers:
            subscriber.calm_down()
        wanted = {at[:-1] for _, at in self.history.receipts if at is not None}
        await self._look_for_forgotten()
        await asyncio.sleep(_LOOK_AGAIN_S)
        await self._look_for_forgotten()
        await asyncio.gather(*(self._wait_for(each, wanted) for each in self._subscribers))
        # What a seek may have passed isn't waited for above. If it wasn't, it comes when it is due.
        due_ms = max((sent.due_ms for sent in self.history.sent.values()), default=0)
        await asyncio.sleep(max(0.0, due_ms / 1000 - time.time()))

    async def _look_for_forgotten(self) -> None:
        """A consumer that two looks don't find at the broker isn't served any more."""
        if (admin := self._around.admin) is None:
            return
        before = [each.open_receivers() for each in self._subscribers]
        try:
            known = await admin.consumers(self._topic)
        except CliError:  # the topic is being unloaded or loaded
            return
        for subscriber, receivers in zip(self._subscribers, before, strict=True):
            with contextlib.suppress(BrokerError):
                await subscriber.close_unknown(receivers, known.get(subscriber.history.name, ()))

    async def _wait_for(self, subscriber: Subscriber, wanted: set[Position]) -> None:
        patience_s = self._around.patience_s + DELAY_MS_MAX / 1000
        try:
            while subscriber.lacks(wanted):
                subscriber.changed.clear()
                async with asyncio.timeout(patience_s):
                    await subscriber.changed.wait()
        except TimeoutError:
            subscriber.note(Waited(patience_s))
            self.waits.append(
                f"{patience_s:.0f} s for {subscriber.lacks(wanted)} entries of"
                f" {self._topic}, subscription {subscriber.history.name}, though consumers had room"
            )

    async def _send_marker(self) -> None:
        """Behind everything: who has it has been given all that it will be given."""
        if self._around.admin is not None:
            with contextlib.suppress(CliError, TimeoutError):
                async with asyncio.timeout(_CALM_S):
                    await self._around.admin.unload(self._topic)
        marker = self._sender(MARKER)
        await marker.send_all([Group(0, 1, "", batched=False)], 0)

    async def _send_markers(self) -> None:
        """Each may be lost, so until one came to each subscription."""
        marker = self._sender(MARKER)
        waiting = asyncio.ensure_future(self._wait_for_marker())
        for number in itertools.count():
            await marker.send_all([Group(number, number + 1, "", batched=False)], _MARKER_PAUSE_S)
            if waiting.done():
                return

    async def _wait_for_marker(self) -> None:
        waits = [asyncio.ensure_future(each.marker_came.wait()) for each in self._subscribers]
        try:
            await asyncio.wait(waits, timeout=self._around.patience_s)
        finally:
            for each in waits:
                each.cancel()

    async def _leave(self) -> None:
        """Without rights to delete a topic, it goes when it has no subscriptions."""
        for sender in self._senders:
            sender.close()
        if self._around.admin is None:
            for subscriber in self._subscribers:
                receiver = await subscriber.open("last")
                with contextlib.suppress(BrokerError):
                    await receiver.unsubscribe()
