"""Subscriptions as the rest of the broker sees them: the type, how to make one, where it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.protocol.entry_header import parse_header
from magnetar.broker.subscription.non_persistent_subscription import NonPersistentSubscription
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.subscription.subscription_base import Subscription
from magnetar.managed_ledger.position import EARLIEST

if TYPE_CHECKING:
    from magnetar.broker.subscription.consumer import SubscribeRequest
    from magnetar.broker.topic.topic import Topic
    from magnetar.managed_ledger.cursor.cursor import Cursor
    from magnetar.managed_ledger.managed_ledger import ManagedLedger
    from magnetar.managed_ledger.position import Position


def open_subscription(
    topic: Topic,
    name: str,
    cursor: Cursor | None,
    *,
    ledger: ManagedLedger | None = None,
    durable: bool = True,
) -> Subscription:
    """Make the subscription of a loaded topic; cursor and ledger None: non-persistent topic."""
    if cursor is None or ledger is None:
        assert cursor is None, "a cursor needs its ledger"
        return NonPersistentSubscription(topic, name)
    return PersistentSubscription(topic, name, cursor, ledger, durable=durable)


async def start_position(ledger: ManagedLedger, request: SubscribeRequest, now_ms: int) -> Position:
    """The first position a NEW cursor of this request delivers: rollback, start id or initial.

    EARLIEST and LATEST are possible answers; a durable request ignores its start id. A start id
    beyond the end falls back to the initial position.
    """
    if request.rollback_seconds > 0:
        since_ms = now_ms - request.rollback_seconds * 1000
        before = await ledger.find_newest(
            lambda head, _: parse_header(head).publish_time_ms < since_ms
        )
        return ledger.offsets.next_position(before or EARLIEST)
    start = request.start_position
    if request.durable or start is None or start > ledger.last_confirmed:
        return request.initial_position
    return start
