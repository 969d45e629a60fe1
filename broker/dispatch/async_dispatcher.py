"""asyncio shell of a dispatcher: reads for it, performs its effects, keeps its timer.

It works in turns, at most one per loop tick: whatever woke it (new entries, permits, a writable
socket, a timer) is answered by one turn of about ``turn_bytes`` bytes, which it takes when
those of other topics allow it (turn_queue.py); then other work of the loop comes first. What is
read at a time is no more than a socket may be handed (unsent_budget.py). One asynchronous read is
in flight at most; while entries are in the cache there is none.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import assert_never

from magnetar.broker.dispatch import explanation
from magnetar.broker.dispatch.async_turn_queue import AsyncTurnQueue
from magnetar.broker.dispatch.explanation import Explanation
from magnetar.broker.dispatch.interfaces import (
    CursorView,
    Deliver,
    Dispatcher,
    DispatchReadRequest,
    EntrySource,
    NotifyActive,
    SkipEntries,
)
from magnetar.broker.dispatch.unsent_budget import UnsentBudget
from magnetar.broker.protocol.entry_header import EntryHeader
from magnetar.broker.rate_limits.rate_limiter import DispatchRateLimiter
from magnetar.broker.rate_limits.token_bucket import UNLIMITED
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.position import Position

logger = logging.getLogger(__name__)

_ENTRY_BYTES = 64
"""What an entry costs a turn at least: a batch of nothing but acknowledged ones takes time, too."""
_TIMER_MAX_S = 3600.0
"""A timer is armed again after so long; a deadline may lie years ahead."""


class AsyncDispatcher:
    """Drives a `Dispatcher` over a managed ledger and a cursor."""

    def __init__(
        self,
        core: Dispatcher,
        ledger: EntrySource,
        cursor: CursorView,
        *,
        turns: AsyncTurnQueue,
        unsent: UnsentBudget,
        now_ms: Callable[[], int],
        topic: object,
        waiting: "dict[AsyncDispatcher, None]",
        label: str,
        ack_sets: bool,
        limiter: DispatchRateLimiter | None = None,
    ) -> None:
        """Args:
        topic: whose other dispatchers it waits for; other topics it doesn't.
        waiting: those of the topic to be told of new entries; it enters itself.
        label: topic and subscription, for the log.
        ack_sets: whether batches may be acknowledged in part.
        limiter: rate limits; None: there are none.
        """
        self.core, self._ledger, self._cursor = core, ledger, cursor
        self._now_ms, self._label, self._limiter = now_ms, label, limiter
        self._turns, self._unsent, self._topic = turns, unsent, topic
        self._waiting = waiting
        self._ack_set_of = cursor.state.batch_ack_set if ack_sets else None
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._closed = False
        self._reading: asyncio.Task[None] | None = None
        self.reading: DispatchReadRequest | None = None
        """What is being read from storage; what the cache holds is read at once."""
        self.is_waiting = False
        """Whether consumers could take more than there is: the next entry goes to them."""
        self._was_held_back = False
        self._read_error = ""  # why the last read failed
        self._retry_ms = 0  # of the last delay before a read is tried again
        self._retry: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0

    def wake(self) -> None:
        """Something changed: take a turn, in the next loop tick if others leave time for it."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._turns.add(self._topic, self._turn)

    def on_appended(self) -> None:
        """There is more to read: take a turn if that is waited for still."""
        if self.is_waiting or self._reading is not None:
            self.wake()

    def _go_on(self) -> None:
        """Our turn in the line of a rate limit: taken now, before the next in line is called."""
        if not self._closed:
            self._turn()

    def read_from(self, source: EntrySource) -> None:
        """Entries come from another view of the same log from now on."""
        self._ledger = source
        self.wake()

    def cover_cursor(self, cover: Callable[[CursorView], CursorView]) -> None:
        """A view in front of the cursor says from now on what isn't to be sent."""
        self._cursor = cover(self._cursor)
        if self._ack_set_of is not None:
            self._ack_set_of = self._cursor.state.batch_ack_set

    def set_limiter(self, limiter: DispatchRateLimiter | None) -> None:
        """Other rate limits hold from now on."""
        if self._limiter is not None:
            self._limiter.leave(self)
        self._limiter = limiter
        self.wake()

    async def finish_turns(self) -> None:
        """Return when no turn is to come and no read is under way, whatever it waits for."""
        while self._scheduled or self._reading is not None:
            if self._reading is not None:
                await asyncio.wait([self._reading])
            await asyncio.sleep(0)

    def on_clock_advanced(self) -> None:
        """The clock was set ahead: do what is due by it."""
        if self._timer is not None:
            self._timer.cancel()
            self._on_timer()

    def close(self) -> None:
        """Deliver nothing more; a read in flight is abandoned."""
        self._closed = True
        self._waiting.pop(self, None)
        if self._limiter is not None:
            self._limiter.leave(self)
        for pending in (self._timer, self._retry, self._reading):
            if pending is not None:
                pending.cancel()

    def explain(self, position: Position, head: EntryHeader | None) -> Explanation | None:
        """As `Dispatcher.explain`, with what stops the shell."""
        now_ms, loop_s = self._now_ms(), self._loop.time()
        if (found := self.core.explain(position, head, now_ms)) is not None:
            return found
        if self._limiter is not None and (awaited := self._limiter.awaited(self)) is not None:
            scope, limiter = awaited
            wait_ms = limiter.wait_ms()
            return explanation.rate_limited(scope, limiter.rate, now_ms + wait_ms, wait_ms)
        if self._retry is not None:
            wait_ms = max(0, round((self._retry.when() - loop_s) * 1000))
            return explanation.read_failed(self._read_error, now_ms + wait_ms, wait_ms)
        if self.reading is not None:
            return explanation.reading(self.reading.position or position)
        return None

    def _turn(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        core, ledger = self.core, self._ledger
        room = UNLIMITED  # of a rate limit
        sent, self.is_waiting = 0, False
        # Effects of the calls that led to this turn (who is active) come before its messages.
        self._perform()
        while not (self._reading or self._retry) and (request := core.next_read()) is not None:
            position = request.position
            if position is None:
                position = self._cursor.state.first_unacked()
            if self._limiter is not None and position <= ledger.last_confirmed:
                admitted = self._limiter.admit(self, self._go_on, position, core.per_entry)
                if admitted is None:
                    break
                request.entries_max = min(request.entries_max, admitted[0])
                room = admitted[1]
            piece = min(room, self._unsent.piece_bytes)
            batch = ledger.read_nowait(position, request.entries_max, piece)
            if batch is not None:
                sent += self._dispatch(request, batch)
                if sent >= min(room, self._unsent.turn_bytes):
                    self.wake()
                    break
            elif position > ledger.last_confirmed:
                core.on_nothing(request, position)
                if not request.replay:
                    self.is_waiting = True
                    break  # the topic wakes us when there is more
            else:
                self.reading = request
                self._reading = self._loop.create_task(self._read(request, position, piece))
        if core.is_held_back is not self._was_held_back:
            self._tell_held_back()
        if self.is_waiting or self._reading is not None:
            # Else not: with 500 consumers that don't read, turns in vain were 3 ms a message.
            self._waiting[self] = None
        self._arm_timer()

    def _tell_held_back(self) -> None:
        self._was_held_back = self.core.is_held_back
        if self._was_held_back:
            text = (
                "%s: more delayed messages wait than delayedDeliveryMaxIndexSizeInBytes allows: "
                "nothing behind them is delivered until some are due"
            )
        else:
            text = "%s: few enough delayed messages wait: delivery goes on"
        logger.warning(text, self._label)

    def _dispatch(self, request: DispatchReadRequest, batch: EntryBatch) -> int:
        acked = self._cursor.state.acked_in(batch.ledger_id, batch.first, len(batch.heads))
        self.core.on_entries(request, batch, acked, self._ack_set_of, self._now_ms())
        return max(self._perform(), _ENTRY_BYTES * len(batch.heads))

    def _perform(self) -> int:
        """Perform the core's effects; answers the bytes handed to sinks."""
        sent = 0
        for effect in self.core.take_effects():
            match effect:
                case Deliver():
                    size = effect.consumer.deliver(effect)
                    sent += size
                    if self._limiter is not None:
                        entries = len(effect.batch.heads if effect.picks is None else effect.picks)
                        self._limiter.take(entries, effect.messages, size)
                case SkipEntries(positions):
                    self._cursor.ack(positions)
                case NotifyActive(consumer, is_active):
                    consumer.notify_active(is_active)
                case _:
                    assert_never(effect)
        return sent

    async def _read(self, request: DispatchReadRequest, position: Position, bytes_max: int) -> None:
        try:
            batch = await self._ledger.read(position, request.entries_max, bytes_max)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # storage trouble passes or the topic is closed: try again
            self._reading = self.reading = None
            self._retry_later(error, position)
            return
        self._reading = self.reading = None
        if self._closed:
            return
        self._retry_ms = 0
        if batch is None:
            self.core.on_nothing(request, position)
            if not request.replay:
                self.is_waiting = True
                return  # nothing readable yet: the topic wakes us
        else:
            self._dispatch(request, batch)
        self.wake()

    def _retry_later(self, error: Exception, position: Position) -> None:
        limits = self.core.limits
        self._retry_ms = min(self._retry_ms * 2, limits.retry_max_ms) or limits.retry_first_ms
        logger.warning(
            "%s: reading at %s failed, next try in %d ms: %s",
            self._label,
            position,
            self._retry_ms,
            str(error) or type(error).__name__,
        )
        self._read_error = str(error) or type(error).__name__
        self._retry = self._loop.call_later(self._retry_ms / 1000, self._on_retry)

    def _on_retry(self) -> None:
        self._retry = None
        self.wake()

    def _arm_timer(self) -> None:
        deadline = self.core.next_deadline_ms()
        if self._timer is not None and self._timer_at_ms != deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and deadline is not None:
            self._timer_at_ms = deadline
            delay = min(max(deadline - self._now_ms(), 0) / 1000, _TIMER_MAX_S)
            self._timer = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.core.on_tick(self._now_ms())
        self._turn()
