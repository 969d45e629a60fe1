"""A subscription: a cursor, the consumers that share it and the dispatcher that feeds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from managed_ledger.cursor.cursor import Cursor
    from managed_ledger.managed_ledger import ManagedLedger

    from broker.service.consumer import Consumer, ConsumerSink, SubscribeRequest
    from broker.service.topic import Topic
    from managed_ledger.position import Position

__all__ = ["Subscription", "open_subscription", "start_position"]

AckDone = "Callable[[BaseException | None], None]"


def open_subscription(
    topic: Topic,
    name: str,
    cursor: Cursor | None,
    *,
    ledger: ManagedLedger | None = None,
    durable: bool = True,
) -> Subscription:
    """Make the subscription of a loaded topic; cursor and ledger None: non-persistent topic."""
    raise NotImplementedError


async def start_position(ledger: ManagedLedger, request: SubscribeRequest, now_ms: int) -> Position:
    """The first position a NEW cursor of this request delivers: rollback, start id or initial.

    EARLIEST and LATEST are possible answers; a durable request ignores its start id.
    """
    raise NotImplementedError


class Subscription:
    """Common face of persistent and non-persistent subscriptions."""

    topic: Topic
    name: str
    durable: bool
    consumers: list[Consumer]
    cursor: Cursor | None
    properties: dict[str, str]

    async def add_consumer(self, request: SubscribeRequest, sink: ConsumerSink) -> Consumer:
        """Check the request against the connected consumers (4.6, 9 to 13) and register it."""
        raise NotImplementedError

    def remove_consumer(self, consumer: Consumer) -> None:
        """Its client closed it or is gone: pending entries go to the others. Unknown: ignored."""
        raise NotImplementedError

    def flow(self, consumer: Consumer, permits: int) -> None: ...
    def on_writable(self, consumer: Consumer) -> None: ...

    def acknowledge(
        self,
        consumer: Consumer | None,
        positions: Sequence[Position],
        on_durable: Callable[[BaseException | None], None] | None = None,
    ) -> None: ...

    def redeliver(
        self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None = None
    ) -> None: ...

    def on_appended(self) -> None:
        """The topic's last confirmed position moved: once per tick."""

    def on_terminated(self) -> None:
        """The topic was terminated: consumers are told once everything is acknowledged."""

    def dispatch(self, heads: list[bytes], bodies: list[bytes]) -> None:
        """Non-persistent: fan one batch out, or drop it."""

    async def close(self, reason: str) -> None:
        """Fence, tell the consumers to reconnect, close the cursor."""

    async def delete(self, *, force: bool = False) -> None:
        """Fence, disconnect (with ``force``; else TopicBusyError), delete the cursor."""

    def stats(self, now_ms: int) -> dict[str, Any]:
        """SubscriptionStats in Pulsar's shape (http-api 3.4)."""
        raise NotImplementedError
