"""A clock that tests set ahead, and what the broker does as it passes: docs/guides/embedding.md."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from magnetar.broker.dispatch.async_dispatcher import AsyncDispatcher
from magnetar.broker.protocol.entry_header import U32_MAX, later_header, make_header
from magnetar.broker.protocol.pulsar_api_pb2 import BrokerEntryMetadata, MessageMetadata
from magnetar.broker.protocol.stored_entries import encode_broker_metadata

if TYPE_CHECKING:
    from magnetar.broker.service.broker_service import BrokerService

_ROUNDS_MAX: Final = 50
"""Times that the periodic checks run in one advance, however long: a day has 1,440 minutes."""
_FLUSH_TICKS: Final = 2
"""Turns of the loop until what a dispatcher delivered is with the operating system."""


class VirtualClock:
    """Milliseconds since 1970, ahead of the wall clock by what was added; it runs on between."""

    def __init__(self, wall_clock: Callable[[], int], ahead_ms: int = 0) -> None:
        self._wall_clock = wall_clock
        self.ahead_ms = ahead_ms
        self.on_advanced: set[Callable[[], None]] = set()
        """Called when the periodic checks run."""
        self._turn = asyncio.Lock()
        self._stepped_ms, self._stepped_to_ms = (
            [0],
            [ahead_ms],
        )  # wall clock; how far ahead it was then

    def now_ms(self) -> int:
        return self._wall_clock() + self.ahead_ms

    def make_header(self, metadata: MessageMetadata, payload_bytes: int = U32_MAX) -> bytes:
        """As the function of this name: clients stamp by the wall clock, the broker is ahead."""
        head = make_header(metadata, payload_bytes)
        if not self.ahead_ms:
            return head
        broker_metadata = BrokerEntryMetadata(
            broker_timestamp=metadata.publish_time + self.ahead_ms
        )
        return later_header(head, self.ahead_ms) + encode_broker_metadata(broker_metadata)

    def step(self, span_ms: int) -> None:
        """Set it ahead; nothing else happens."""
        self.ahead_ms += span_ms
        self._stepped_ms.append(self._wall_clock())
        self._stepped_to_ms.append(self.ahead_ms)

    def stamped_ms(self, client_ms: int) -> int:
        """What it told when the wall clock told ``client_ms``.

        A time that the wall clock hasn't reached yet is one of this clock already.
        """
        if client_ms > self._wall_clock():
            return client_ms
        step = max(bisect_left(self._stepped_ms, client_ms) - 1, 0)  # the same ms: before it
        return client_ms + self._stepped_to_ms[step]

    async def advance(self, service: BrokerService, span_ms: int) -> None:
        """Set it ahead, from one due time to the next, and have the broker do what is due at each.

        Deliveries are due at their own times, in their order. The periodic checks are due as
        configured, but at most 50 times. Returns when all that fell due is sent or done.

        Raises:
            ValueError: backwards.
        """
        if span_ms < 0:
            raise ValueError("a clock can't be set back")
        async with self._turn:
            await _Advance(service, self).run(span_ms)


class _Advance:
    """One advance of a broker's clock."""

    def __init__(self, service: BrokerService, clock: VirtualClock) -> None:
        self._service, self._clock = service, clock

    async def run(self, span_ms: int) -> None:
        clock = self._clock
        end_ms = clock.ahead_ms + span_ms
        await self._deliver()
        while clock.ahead_ms < end_ms:
            left_ms = end_ms - clock.ahead_ms
            pause_ms = -(-span_ms // _ROUNDS_MAX)
            await self._pass_time(min(max(self._rounds_due_ms(), pause_ms), left_ms))
            await self._run_rounds()

    def _rounds_due_ms(self) -> int:
        return self._service.background_tasks.next_due_ms() - self._clock.now_ms()

    async def _pass_time(self, span_ms: int) -> None:
        """Only deliveries fall due in between."""
        clock = self._clock
        end_ms = clock.ahead_ms + span_ms
        while True:
            first_ms = min((due_ms for due_ms, _ in self._waiting()), default=None)
            if first_ms is None or first_ms - clock.now_ms() > end_ms - clock.ahead_ms:
                break
            clock.step(max(first_ms - clock.now_ms(), 0))
            await self._deliver()
        clock.step(end_ms - clock.ahead_ms)

    async def _deliver(self) -> None:
        """Send what is due now."""
        now_ms = self._clock.now_ms()
        for due_ms, dispatcher in list(self._waiting()):
            if due_ms <= now_ms:
                dispatcher.on_clock_advanced()
        for dispatcher in list(self._dispatchers()):
            await dispatcher.finish_turns()
        for _ in range(_FLUSH_TICKS):
            await asyncio.sleep(0)

    async def _run_rounds(self) -> None:
        service, now_ms = self._service, self._clock.now_ms()
        service.background_tasks.on_sweep(now_ms)
        await service.background_tasks.finish()
        await service.ledgers.sweep(now_ms)
        for look in self._clock.on_advanced:
            look()
        await self._deliver()

    def _waiting(self) -> Iterator[tuple[int, AsyncDispatcher]]:
        for dispatcher in self._dispatchers():
            if (due_ms := dispatcher.core.next_deadline_ms()) is not None:
                yield due_ms, dispatcher

    def _dispatchers(self) -> Iterator[AsyncDispatcher]:
        for topic in self._service.topics.values():
            for subscription in topic.subscriptions.values():
                if (dispatcher := subscription.dispatcher) is not None:
                    yield dispatcher
