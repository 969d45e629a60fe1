"""The subscription ``__compaction``: its cursor says up to where a topic is compacted.

Tools see it as any other, as in Pulsar. Nobody but a compaction moves it: what it skipped would be
missing in the compacted view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from magnetar.broker.compaction.topic_compaction import TopicCompaction
from magnetar.broker.dispatch import explanation
from magnetar.broker.dispatch.explanation import Explanation
from magnetar.broker.errors import NotAllowedError
from magnetar.broker.protocol.entry_header import EntryHeader
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.broker.topic.persistent_topic import PersistentTopic


class CompactionSubscription(PersistentSubscription):
    """Registered while the cursor exists."""

    __slots__ = ("_compaction",)

    def __init__(self, topic: PersistentTopic, cursor: Cursor, compaction: TopicCompaction) -> None:
        super().__init__(topic, cursor.name, cursor, compaction.log, durable=True)
        self._compaction = compaction

    def _refused(self) -> NotAllowedError:
        return NotAllowedError(f"Subscription {self.name} is moved by compactions only")

    def acknowledge_cumulative(self, *_: object, **__: object) -> None:
        raise self._refused()

    def evict_upto(self, position: Position) -> int:
        return 0  # neither expiry nor a quota may take what isn't compacted

    def clear_backlog(self) -> None:
        raise self._refused()

    async def reset(self, position: Position, ack_set: Sequence[int] = ()) -> None:
        raise self._refused()

    async def reset_to_time(self, publish_time_ms: int) -> None:
        raise self._refused()

    def unused_ms(self, now_ms: int) -> int:
        return 0

    def _explain_dispatch(self, position: Position, head: EntryHeader | None) -> Explanation:
        running = self._compaction.is_running
        return explanation.not_compacted(self.cursor.state.backlog, is_running=running)

    async def close(self) -> None:
        await self._compaction.stop()
        await super().close()

    async def _delete_cursor(self) -> None:
        await self._compaction.remove()
        self._stop()
