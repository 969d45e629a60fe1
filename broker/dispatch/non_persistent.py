"""Dispatch without storage: what no consumer can take now is dropped and counted.

Rules: docs/spec/wire-protocol.md, "Non-persistent topics".
Calls in, effects out; no clock, socket or task.
"""

from collections.abc import Callable

from magnetar.broker.dispatch import explanation
from magnetar.broker.dispatch.active_consumer import ActiveConsumerSelector
from magnetar.broker.dispatch.explanation import Explanation
from magnetar.broker.dispatch.interfaces import ConsumerState, Deliver, NotifyActive
from magnetar.broker.dispatch.key_selector import KeySelector
from magnetar.broker.dispatch.round_robin import RoundRobin
from magnetar.broker.protocol.entry_header import (
    FLAG_CHUNK,
    FLAG_KEY,
    FLAG_MARKER,
    parse_header,
    scan_headers,
)
from magnetar.managed_ledger.entry_batch import Buffer, EntryBatch


class NonPersistentDispatcher:
    """One subscription's share of a non-persistent topic; all message ids are (0, 0)."""

    def __init__(
        self,
        *,
        single_active: bool,
        failover: bool,
        topic: str,
        partition_index: int,
        round_robin_messages: int,
        selector: KeySelector | None,
        hash_of_body: Callable[[Buffer], int],
    ) -> None:
        """selector: Key_Shared only; there is nothing to drain when a slot moves."""
        self.active: ConsumerState | None = None  # single-active types only
        self.dropped_messages = 0
        self._round_robin = RoundRobin()
        self._single, self._failover = single_active, failover
        self._choice = ActiveConsumerSelector(topic, partition_index)
        self._quota = round_robin_messages
        self._selector, self._hash_of_body = selector, hash_of_body
        self._effects: list[Deliver | NotifyActive] = []

    def add_consumer(self, consumer: ConsumerState) -> None:
        self._round_robin.add(consumer)
        if self._single:
            self._choice.add(consumer)
        if self._selector is not None:
            self._selector.add(consumer)
        before = self.active
        self._choose()
        if self._failover and self.active is before:
            self._effects.append(NotifyActive(consumer, False))

    def remove_consumer(self, consumer: ConsumerState) -> None:
        if self._round_robin.remove(consumer):
            if self._single:
                self._choice.remove(consumer)
            if self._selector is not None:
                self._selector.remove(consumer)
            self._choose()

    def _choose(self) -> None:
        if not self._single:
            return
        consumers = self._round_robin.consumers
        chosen = self._choice.choose() if consumers else None
        if chosen is not self.active:
            self.active = chosen  # at once: there is nothing to hand over
            if self._failover:
                self._effects += [NotifyActive(each, each is chosen) for each in consumers]

    def on_published(self, heads: list[bytes], bodies: list[Buffer]) -> None:
        """Hand out one batch; its lists are not kept beyond the effects."""
        rows = scan_headers(heads)
        batch = EntryBatch(0, 0, heads, bodies)
        picks: dict[ConsumerState, list[int]] = {}
        sent: dict[ConsumerState, int] = {}
        chunks: dict[ConsumerState, int] = {}
        consumer: ConsumerState | None = self.active
        quota = 0
        for index in range(len(heads)):
            flags, messages = 0, 1
            if rows is not None:
                flags, messages, _, _ = rows[index]
                if flags & FLAG_MARKER:
                    continue
            if self._single or self._selector is not None:
                if self._selector is not None:
                    consumer = self._owner(self._selector, heads[index], bodies[index])
                if consumer is None or not consumer.available:
                    self.dropped_messages += messages
                    continue
            elif consumer is None or quota <= 0 or not consumer.available:
                consumer, quota = self._round_robin.next(), self._quota
                if consumer is None:
                    self.dropped_messages += messages
                    continue
            quota -= messages
            consumer.permits -= messages
            picks.setdefault(consumer, []).append(index)
            sent[consumer] = sent.get(consumer, 0) + messages
            if flags & FLAG_CHUNK:
                chunks[consumer] = chunks.get(consumer, 0) + 1
        for target, chosen in picks.items():
            whole = len(chosen) == len(heads)
            effect = Deliver(target, batch, None if whole else chosen, sent[target])
            effect.chunks = chunks.get(target, 0)
            self._effects.append(effect)

    def _owner(
        self, selector: KeySelector, entry_head: bytes, body: Buffer
    ) -> ConsumerState | None:
        head = parse_header(entry_head)
        key_hash = head.key_hash if head.flags & FLAG_KEY else self._hash_of_body(body)
        return selector.owner(selector.slot_of(key_hash))

    def explain(self) -> Explanation | None:
        """Why what is published now is dropped; None: a consumer can take it."""
        active = self.active
        consumers = self._round_robin.consumers if active is None else [active]
        return explanation.consumers_stall(consumers, 0)

    def take_effects(self) -> list[Deliver | NotifyActive]:
        effects, self._effects = self._effects, []
        return effects
