"""Rate limits at work: what is over a limit waits in line, and one timer lets it go on in turn.

Publishers wait by not being read (their connection's reads pause, as they do for the memory
budget), dispatchers by not taking their turn. Nothing is refused, and without a limit there is no
`RateLimiter` at all: the hot path looks at one attribute per batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from magnetar.broker.policies.effective import Rate
from magnetar.broker.rate_limits.token_bucket import UNLIMITED, TokenBuckets
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.broker.producer.producer import ProducerSink

T = TypeVar("T", bound="RateLimiter")

logger = logging.getLogger(__name__)

CAUGHT_UP_ENTRIES: Final = 1_000
"""A reader no further behind counts as caught up (dispatchThrottlingOnNonBacklogConsumerEnabled);
managedLedgerCursorBackloggedThreshold in Pulsar."""
_MESSAGE_BYTES: Final = 100
"""Of a message, before there was one: small, so that the first read brings few."""
_READ_BYTES_MIN: Final = 1_024
_READS_PER_PERIOD: Final = 8


class RateLimiter:
    """One limit and the line of its waiters: first come, first served."""

    def __init__(self, rate: Rate, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.rate = rate
        self._limiter = TokenBuckets(rate.messages, rate.bytes, rate.period_s * 1000, self.now_ms())
        self._line: dict[object, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def now_ms(self) -> int:
        """The loop's clock: steps of the wall clock neither give nor take tokens."""
        return round(self._loop.time() * 1000)

    @property
    def waiting(self) -> int:
        """How many are in line."""
        return len(self._line)

    def change(self, rate: Rate, more_messages: int = 0, more_bytes: int = 0) -> None:
        """Go on with another limit; the line stays and is looked at again.

        Args:
            more_messages, more_bytes: in a period, added to each limit that there is (a dispatch
                rate relative to the publish rate).
        """
        self.rate = rate
        self._limiter.change(
            rate.messages and rate.messages + more_messages,
            rate.bytes and rate.bytes + more_bytes,
            rate.period_s * 1000,
            self.now_ms(),
        )
        if self._line:
            self._arm()

    def take(self, messages: int, size: int) -> None:
        """So much has passed."""
        self._limiter.take(messages, size, self.now_ms())

    def room(self) -> tuple[int, int]:
        """Messages and bytes that may pass now; not positive: wait."""
        return self._limiter.room(self.now_ms())

    def is_over(self) -> bool:
        """Whether the next one has to wait."""
        return self.wait_ms() > 0

    def wait(self, waiter: object, resume: Callable[[], None]) -> None:
        """Stand in line, unless ``waiter`` does already; ``resume`` is called once, later."""
        if waiter not in self._line:
            self._line[waiter] = resume
            if self._timer is None:
                self._arm()

    def is_waiting(self, waiter: object) -> bool:
        return waiter in self._line

    def wait_ms(self) -> int:
        """How long until the next one may pass; 0: it may now."""
        return self._limiter.wait_ms(self.now_ms())

    def leave(self, waiter: object) -> None:
        """Not waiting any more."""
        self._line.pop(waiter, None)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(1, self._limiter.wait_ms(self.now_ms()))
        self._timer = self._loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        # One at a time: what the first one brings may leave nothing for the second. While there is
        # room they follow each other by the millisecond, and one that went on isn't held again.
        self._timer = None
        if self._line and not self.is_over():
            waiter = next(iter(self._line))
            resume = self._line.pop(waiter)
            try:
                resume()
            except Exception:  # those behind must not wait for ever
                logger.exception("%r can't go on", waiter)
        if self._line:
            self._arm()

    def close(self) -> None:
        """The limit is gone: all go on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        line, self._line = self._line, {}
        for resume in line.values():
            resume()


class PublishRateLimiter(RateLimiter):
    """Limits what is published; the sinks of producers wait."""

    def __init__(self, rate: Rate, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(rate, loop)
        self.times = 0
        """How often a sink was paused."""
        self._messages = self._bytes = 0  # seen so far: their mean size turns messages into bytes

    @property
    def read_bytes(self) -> int:
        """How much one read of a connection should bring: a small part of what a period admits."""
        rate = self.rate
        mean = self._bytes // self._messages if self._messages else _MESSAGE_BYTES
        admitted = min(rate.bytes or UNLIMITED, rate.messages * mean or UNLIMITED)
        return max(_READ_BYTES_MIN, admitted // _READS_PER_PERIOD)

    def charge(self, sink: ProducerSink, messages: int, size: int) -> None:
        """A batch came in: it passes, and its sink waits if that was too much."""
        now_ms = self.now_ms()
        self._messages += messages
        self._bytes += size
        self._limiter.take(messages, size, now_ms)
        if self._limiter.wait_ms(now_ms):
            self._hold(sink)

    def enter(self, sink: ProducerSink) -> None:
        """A new producer: over the limit it waits like the others, or coming anew would pay."""
        if self.is_over():
            self._hold(sink)

    def _hold(self, sink: ProducerSink) -> None:
        if sink not in self._line:
            self.times += 1
            sink.pause_publishing(self)
            self.wait(sink, partial(sink.resume_publishing, self))


@dataclass(slots=True, eq=False)
class DispatchRateLimiter:
    """The limits that a subscription's dispatcher obeys: its own, its topic's, the broker's."""

    limiters: Sequence[tuple[str, RateLimiter]]
    """By scope: ``Subscription``, ``Topic``, ``Broker``."""
    by_entries: bool
    """A batch counts as one message."""
    entries_behind: Callable[[Position], int] | None
    """Of a position to read; None: readers that have caught up are limited as well."""
    events: dict[str, int]
    """How often there was no room, by statistics field; counted here."""
    _counts: bool = True  # what is read now counts

    def admit(
        self, waiter: object, go_on: Callable[[], None], position: Position, per_entry: float
    ) -> tuple[int, int] | None:
        """Entries and bytes that may be read at a position; None: ``go_on`` is called in its turn.

        Args:
            per_entry: messages an entry holds, as far as one can tell.
        """
        entries = size = UNLIMITED
        behind = self.entries_behind
        self._counts = behind is None or behind(position) > CAUGHT_UP_ENTRIES
        if not self._counts:
            return entries, size
        for scope, throttle in self.limiters:
            messages, room = throttle.room()
            if messages <= 0 or room <= 0:
                if messages <= 0:
                    self._note(f"dispatchThrottledMsgEventsBy{scope}Limit")
                if room <= 0:
                    self._note(f"dispatchThrottledBytesEventsBy{scope}Limit")
                throttle.wait(waiter, go_on)
                return None
            entries = min(entries, messages)
            size = min(size, room)
        if not self.by_entries:
            entries = max(1, int(entries / per_entry))
        return entries, size

    def leave(self, waiter: object) -> None:
        """It waits no more."""
        for _, throttle in self.limiters:
            throttle.leave(waiter)

    def awaited(self, waiter: object) -> tuple[str, RateLimiter] | None:
        """The limit that it waits for, and whose it is; None: it waits for none."""
        return next((each for each in self.limiters if each[1].is_waiting(waiter)), None)

    def _note(self, field: str) -> None:
        self.events[field] = self.events.get(field, 0) + 1

    def take(self, entries: int, messages: int, size: int) -> None:
        """So much was sent of what `admit` let pass."""
        if not self._counts:
            return
        count = entries if self.by_entries else messages
        for _, throttle in self.limiters:
            throttle.take(count, size)


def renewed(limiter: T | None, rate: Rate, kind: type[T]) -> T | None:
    """The limiter of a rate, the old one as long as there is a limit; None: there is none."""
    if not rate.limited:
        if limiter is not None:
            limiter.close()
        return None
    if limiter is None:
        return kind(rate, asyncio.get_running_loop())
    if limiter.rate != rate:
        limiter.change(rate)
    return limiter


def broker_limiter(kind: type[T], messages: int, size: int) -> T | None:
    """One of the broker's own limits; None: there is none."""
    return renewed(None, Rate(max(0, messages), max(0, size)), kind)
