"""What administrators do to a stored subscription besides moving its cursor by hand.

Everything here is durable when it returns.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from magnetar.broker.dispatch.interfaces import remaining_messages
from magnetar.broker.protocol.entry_header import FLAG_MARKER, message_counts, parse_header
from magnetar.broker.subscription.persistent_subscription import (
    PersistentSubscription,
    cursor_errors,
)
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.position import EARLIEST, Position

T = TypeVar("T")

_EXPIRY_BACKLOG_MIN: Final = 1000
"""A connected consumer is left alone with fewer entries than this, unless the oldest is due."""
_SCAN_ENTRIES: Final = 500
_SCAN_BYTES: Final = 1 << 20


async def _done(subscription: PersistentSubscription, work: Awaitable[T]) -> T:
    """Await work on the cursor; its errors as the broker names them."""
    with cursor_errors(subscription.name):
        return await work


async def skip_messages(subscription: PersistentSubscription, count: int) -> None:
    """Acknowledge the ``count`` oldest unacknowledged entries."""
    if count > 0 and (target := _nth_unacked(subscription, count)) is not None:
        subscription.acknowledge_cumulative(None, target)
    await _done(subscription, subscription.cursor.flush())


def _nth_unacked(subscription: PersistentSubscription, number: int) -> Position | None:
    """Position of the ``number``-th unacknowledged entry, or of the last if there are fewer."""
    ledger, cursor = subscription.ledger, subscription.cursor
    position, left = cursor.mark_delete, number
    last, found = ledger.last_confirmed, None
    while left > 0 and position < last:
        ledger_id, first = ledger.offsets.next_position(position)
        end = min(ledger.offsets.position_after(position, left), last)
        if end[0] != ledger_id:  # stay in one ledger: its last entry
            end = ledger.offsets.previous_position((ledger_id + 1, -1))
        if end < (ledger_id, first):
            break
        acked = cursor.state.acked_in(ledger_id, first, end[1] - first + 1)
        left -= end[1] - first + 1 - len(acked or ())
        position = found = (ledger_id, end[1])
    return found


async def clear_backlog(subscription: PersistentSubscription) -> None:
    """Acknowledge everything that is there now."""
    subscription.clear_backlog()
    await _done(subscription, subscription.cursor.flush())


async def expire_older(subscription: PersistentSubscription, seconds: int) -> bool:
    """Acknowledge everything published more than so many seconds ago.

    Returns:
        False when it wasn't begun, by Pulsar's rule: there is no backlog, or so little that
        connected consumers will work it off and even its oldest entry isn't due.
    """
    backlog = subscription.cursor.state.backlog
    if not backlog:
        return False
    due_ms = subscription.now_ms() - seconds * 1000
    if subscription.consumers and backlog < _EXPIRY_BACKLOG_MIN:
        first = await _done(
            subscription, subscription.ledger.read(subscription.cursor.state.first_unacked(), 1, 1)
        )
        if first is None or parse_header(first.heads[0]).publish_time_ms >= due_ms:
            return False
    await _done(subscription, subscription.expire_before(due_ms))
    await _done(subscription, subscription.cursor.flush())
    return True


async def expire_upto(subscription: PersistentSubscription, position: Position) -> bool:
    """Acknowledge everything up to and including ``position``; False: it is beyond the end."""
    if position > subscription.ledger.last_confirmed:
        return False
    subscription.expire_upto(position)
    await _done(subscription, subscription.cursor.flush())
    return True


async def reset_into_batch(
    subscription: PersistentSubscription, entry: Position, index: int, *, excluded: bool
) -> None:
    """Continue at an index of a batch, or behind it. An index that the entry lacks is the entry."""
    batch, size = await subscription.ledger.read(entry, 1, 1), 1
    if batch is not None and (batch.ledger_id, batch.first) == entry:
        size = message_counts(batch.heads[:1])[0]
    if 0 < (left := index + excluded) < size:
        await subscription.reset(entry, _remaining(left))
    else:
        await subscription.reset((entry[0], entry[1] + excluded))


def _remaining(first_left: int) -> list[int]:
    """Words of a batch whose indexes below ``first_left`` are done."""
    full, bits = divmod(first_left, 64)
    words = [0] * full + [~((1 << bits) - 1) & 0xFFFFFFFFFFFFFFFF]
    return [word - 2**64 if word >= 2**63 else word for word in words]


async def set_properties(
    subscription: PersistentSubscription, properties: Mapping[str, str]
) -> None:
    """Replace the subscription's properties."""
    wanted = dict(properties)
    await _done(subscription, subscription.cursor.set_cursor_properties(wanted))
    subscription.properties = wanted


@dataclass(slots=True)
class BacklogAnalysis:
    """What a scan of unacknowledged entries found."""

    entries: int = 0
    messages: int = 0
    markers: int = 0
    first: Position | None = None
    last: Position | None = None
    aborted: bool = False
    """A limit ended the scan before the end of the backlog."""

    def add(self, batch: EntryBatch, cursor: Cursor, entries_max: int) -> None:
        """Count the unacknowledged entries of a batch, up to ``entries_max`` in all."""
        acked = cursor.state.acked_in(batch.ledger_id, batch.first, len(batch.heads))
        done = frozenset(acked or ())
        for index, raw in enumerate(batch.heads):
            if batch.first + index in done:
                continue
            if self.entries == entries_max:
                self.aborted = True
                return
            position = (batch.ledger_id, batch.first + index)
            self.first = self.first or position
            self.last = position
            self.entries += 1
            head = parse_header(raw)
            if head.flags & FLAG_MARKER:
                self.markers += 1
            else:
                left = cursor.state.batch_ack_set(position)
                self.messages += remaining_messages(left) if left else head.message_count


async def analyze_backlog(
    subscription: PersistentSubscription,
    start: Position | None,
    *,
    entries_max: int,
    time_max_ms: int,
) -> BacklogAnalysis:
    """Read the unacknowledged entries, from ``start`` on if it is given, and count.

    Args:
        entries_max, time_max_ms: where the scan gives up, with ``aborted`` set.

    Raises:
        PersistenceError: an entry couldn't be read.
    """
    cursor, ledger = subscription.cursor, subscription.ledger
    metrics = BacklogAnalysis()
    deadline_ms = subscription.now_ms() + time_max_ms
    position = max(start or EARLIEST, cursor.state.first_unacked())
    while not metrics.aborted:
        batch = await _done(subscription, ledger.read(position, _SCAN_ENTRIES, _SCAN_BYTES))
        if batch is None:
            break
        metrics.add(batch, cursor, entries_max)
        position = (batch.ledger_id, batch.first + len(batch.heads))
        if subscription.now_ms() >= deadline_ms and position <= ledger.last_confirmed:
            metrics.aborted = True
        await asyncio.sleep(0)  # a read from the cache doesn't give way by itself
    return metrics
