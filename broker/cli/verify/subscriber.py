"""A subscription of `magnetar verify` on one topic or partition, with its consumers."""

import asyncio
import itertools
import random
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from magnetar.broker.cli.binary_client import CommandClient
from magnetar.broker.cli.verify.attempts import retried
from magnetar.broker.cli.verify.receiver import ReceivedEntry, Receiver
from magnetar.broker.errors import BrokerError
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.verify.delivered import sought_place
from magnetar.broker.verify.history import (
    End,
    Event,
    Position,
    Sought,
    SubscriptionHistory,
    SubscriptionType,
)
from magnetar.broker.verify.plan import MARKER

CONSUMERS: Final = {
    SubscriptionType.EXCLUSIVE: 1,
    SubscriptionType.FAILOVER: 2,
    SubscriptionType.SHARED: 3,
    SubscriptionType.KEY_SHARED: 3,
}
_SHARE_LATE: Final = 0.1
"""Entries that are acknowledged only when some more have come, or never by this consumer."""
_LATE_MAX: Final = 10
_SHARE_GIVEN_BACK: Final = 0.03
"""Of subscriptions for several consumers at once. Of the others all would come again, and Apache
Pulsar 4.2.4 then sometimes leaves messages out until the consumer comes again."""
_SHARE_IN_PARTS: Final = 0.2
"""Batches whose first messages are acknowledged before the others."""
_CUMULATIVE_EVERY: Final = 7
_OLDER_MS_MAX: Final = 1_000
_SOUGHT_MAX: Final = 50
"""How many entries back a seek goes at most: what comes again takes its time."""


class Subscriber:
    """Consumers that come again by themselves; the owner of their receivers."""

    def __init__(
        self,
        client: CommandClient,
        topic: TopicName,
        history: SubscriptionHistory,
        rng: random.Random,
        patience_s: float,
        *,
        in_parts: bool,
        sought_in_parts: bool,
        cumulative: bool,
        begin: asyncio.Event | None,
    ) -> None:
        """
        Args:
            in_parts: the broker acknowledges parts of batches.
            sought_in_parts: also where consumers seek. False: by chance it does one or the other.
            cumulative: messages may be acknowledged cumulatively.
            begin: consumers come when it is set: the subscription is there before. None: at once.
        """
        self.type = history.type
        self.history = history
        self.next_ack = itertools.count(1).__next__
        self.calm = False
        """From now on everything is acknowledged at once, and consumers stay away."""
        self.acknowledged: set[Position] = set()
        """Entries, since they came last: whether the broker knows, it may not have said."""
        self.seen: dict[Position, int] = {}
        """Entries that came, and when they were published."""
        self._place: Position = ()
        """Of the last seek: what is before it may never come."""
        self.changed = asyncio.Event()
        self.marker_came = asyncio.Event()
        self.let_in = asyncio.Event()
        """A consumer was: the subscription is there."""
        self._begin = begin
        self._client, self._topic, self._rng = client, topic, rng
        self._one_at_a_time = self.type in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
        self.acknowledges_parts = in_parts and not self._one_at_a_time
        self.may_seek = True
        if self.acknowledges_parts and not sought_in_parts:
            self.may_seek = rng.random() < 0.5
            self.acknowledges_parts = not self.may_seek
        self._patience_s = patience_s
        self._sessions = itertools.count(1)
        self._opening = asyncio.Lock()  # else each would make a connection of its own
        self._receivers: dict[str, Receiver] = {}
        self._unknown: set[Receiver] = set()
        """The broker didn't have them when it was asked last; their end may be on its way."""
        self._late: list[tuple[Receiver, ReceivedEntry]] = []
        # Of a consumer that acknowledges cumulatively: all of the last receiver.
        self._unacknowledged: list[tuple[Receiver, ReceivedEntry]] = []
        self._cumulative = rng.random() < 0.5 and CONSUMERS[self.type] == 1 and cumulative

    def note(self, event: Event) -> None:
        self.history.events.append(event)

    # --- consumers

    async def open(self, name: str) -> Receiver:
        """A consumer of that name. Raises NoProgressError."""
        what = f"{self._topic}: no consumer of {self.history.name}"
        async with self._opening:
            receiver = await retried(what, lambda: self._subscribe(name), self._patience_s)
        if not receiver.is_connected:  # cut between the broker's answer and now: see `cut`
            receiver.end(End.CUT)
        self._receivers[name] = receiver
        self.let_in.set()
        return receiver

    async def _subscribe(self, name: str) -> Receiver:
        connection = await self._client.owner(self._topic)
        receiver = Receiver(self, connection, next(self._sessions), name)
        return await receiver.open(
            str(self._topic), self.history.name, latest=self._begin is not None
        )

    async def keep(self, number: int) -> None:
        """One consumer after the other, until it is cancelled. Raises NoProgressError."""
        name = f"consumer-{number}"
        if self._begin is not None:
            await self._begin.wait()
        while True:
            receiver = await self.open(name)
            await receiver.ended.wait()

    async def close_one(self) -> None:
        """One of the consumers leaves. Raises BrokerError."""
        there = [each for each in self.open_receivers() if each not in self._unknown]
        if there:
            await self._rng.choice(there).close()

    def open_receivers(self) -> list[Receiver]:
        return [each for each in self._receivers.values() if not each.ended.is_set()]

    async def close_unknown(self, before: Sequence[Receiver], known: Collection[str]) -> None:
        """Consumers whom the broker has forgotten come again. Raises BrokerError.

        Args:
            before: those that were let in when the broker was asked.
            known: the names that it told.
        """
        unknown = {each for each in before if not each.ended.is_set() and each.name not in known}
        forgotten, self._unknown = self._unknown & unknown, unknown
        for receiver in forgotten:
            await receiver.close(End.FORGOTTEN)

    async def close_all(self) -> None:
        for receiver in self.open_receivers():
            await receiver.close()
        self._late, self._unacknowledged = [], []

    def cut(self) -> None:
        """End the connections without a word."""
        for receiver in self._receivers.values():
            receiver.end(End.CUT)
        self._client.close()

    async def intrude(self) -> None:
        """Try to be a second consumer; who is let in says so by itself."""
        if not self.let_in.is_set():
            return
        async with self._opening:
            try:
                receiver = await self._subscribe("intruder")
            except BrokerError:
                return
            await receiver.close()

    async def seek(self, *, by_time: bool) -> None:
        """To one of the last entries that came. Raises BrokerError: it may be done or not."""
        async with self._opening:  # nobody comes again before it is done
            there = self.open_receivers()
            if not there or not self.seen:
                return
            receiver = self._rng.choice(there)
            to = self._rng.choice(sorted(self.seen)[-_SOUGHT_MAX:])
            entry, published_ms = (None, self.seen[to]) if by_time else (to, 0)
            sure = False
            try:
                await receiver.seek(entry, published_ms)
                sure = True
            finally:
                self.note(Sought(receiver.session, entry, published_ms, sure))
                self._move(entry or self._behind(published_ms), sure=sure)

    def _behind(self, published_ms: int) -> Position:
        """Where a seek by time ends up at the latest: what wasn't seen may be a bit older."""
        seen = sorted(self.seen)
        _, last = sought_place([self.seen[at] for at in seen], published_ms + _OLDER_MS_MAX)
        return seen[last] if last < len(seen) else (*seen[-1], 0)

    def _move(self, place: Position, *, sure: bool) -> None:
        if sure:
            self._place = place
            self.acknowledged = {at for at in self.acknowledged if at < place}
        else:
            self._place = max(self._place, place)

    def lacks(self, wanted: Iterable[Position]) -> int:
        """How many of these entries have to be acknowledged."""
        return sum(at >= self._place and at not in self.acknowledged for at in wanted)

    # --- messages

    def on_entry(self, receiver: Receiver, entry: ReceivedEntry) -> None:
        self.acknowledged.discard(entry.entry)
        self.seen[entry.entry] = entry.published_ms
        if entry.messages[-1] is not None and entry.messages[-1][0] == MARKER:
            self.marker_came.set()
        if self.calm:
            self._acknowledge(receiver, [entry])
        elif not self._one_at_a_time and self._rng.random() < _SHARE_GIVEN_BACK:
            receiver.give_back(entry)
        elif self._cumulative:
            if self._unacknowledged and self._unacknowledged[-1][0] is not receiver:
                self._unacknowledged = []
            self._unacknowledged.append((receiver, entry))
            if len(self._unacknowledged) >= _CUMULATIVE_EVERY:
                self._acknowledge_all()
        elif (
            self.acknowledges_parts
            and len(entry.messages) > 1
            and self._rng.random() < _SHARE_IN_PARTS
        ):
            receiver.acknowledge_part(entry, self._rng.randint(1, len(entry.messages) - 1))
            self._late.append((receiver, entry))
        elif self._rng.random() < _SHARE_LATE:
            self._late.append((receiver, entry))
            if len(self._late) > _LATE_MAX:
                self._acknowledge_late(1)
        else:
            self._acknowledge(receiver, [entry])

    def _acknowledge(
        self, receiver: Receiver, entries: Sequence[ReceivedEntry], *, cumulative: bool = False
    ) -> None:
        receiver.acknowledge(entries, cumulative=cumulative)
        self.acknowledged.update(each.entry for each in entries)
        self.changed.set()

    def _acknowledge_late(self, count: int) -> None:
        late, self._late = self._late[:count], self._late[count:]
        for receiver, entry in late:
            if not receiver.ended.is_set():
                self._acknowledge(receiver, [entry])

    def _acknowledge_all(self) -> None:
        held, self._unacknowledged = self._unacknowledged, []
        if held and not held[-1][0].ended.is_set():
            entries = [entry for _, entry in held]
            self._acknowledge(held[-1][0], entries, cumulative=True)

    def calm_down(self) -> None:
        """Acknowledge what is there, and from now on everything that comes."""
        self.calm = True
        self._acknowledge_late(len(self._late))
        self._acknowledge_all()
