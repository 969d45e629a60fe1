"""Transfers between topics in transactions: what was asked and seen, and which promises it breaks.

A transfer takes messages of a subscription, sends others to other topics, and acknowledges what it
took, in one transaction. Everything happens at a *tick*: a number that grows, of one process that
saw it all. Pure: ``check_transfers`` is used by `magnetar verify`, by chaos, by tests
that kill, and by the simulation.

Two transfers may lie between each other's messages in a topic, as with Pulsar: isolation is read
committed. So of Elle's graph of dependencies the edges "reads what the other wrote" must have no
cycle, and what was sent after another message's receipt lies behind it in their topic.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Anomaly(StrEnum):
    """A broken promise."""

    DIRTY = "a message of a transaction that was never committed is seen (G1a)"
    EARLY = "a message is seen before its transaction was to be committed (G1b)"
    CYCLE = "transactions read each other's messages in a circle (G1c)"
    LOST = "a message of a committed transaction, or one with a receipt, is gone"
    STORED_TWICE = "a message is there twice"
    SPLIT = "some effects of a transaction are there, and others are not"
    REORDERED = "messages lie, or are read, in another order than they were sent"
    SKIPPED = "a reader left out a message that lies between those it got"
    TAKEN_TWICE = "two committed transactions have acknowledged one message"
    RETURNED = "a message that a committed transaction acknowledged comes again"
    NOT_RETURNED = "a message that no committed transaction acknowledged never comes again"
    STUCK = "a topic can't be read to its end"


class TransferMessage(NamedTuple):
    """Numbers aren't used twice in a topic."""

    topic: str
    number: int


@dataclass(slots=True)
class Sending:
    """One message on its way: ticks of the call, and of the receipt, if one came.

    Attributes:
        transfer: number of the one that it belongs to; None: it is sent without a transaction.
    """

    asked: int
    receipt: int | None = None
    transfer: int | None = None


@dataclass(slots=True)
class Transfer:
    """Ticks of the first call to commit, and of the answer that it is committed.

    Without the first it was aborted, by its client or its timeout. Without the second nobody told
    how it ended.
    """

    taken: list[TransferMessage] = field(default_factory=list)
    sent: list[TransferMessage] = field(default_factory=list)
    commit_asked: int | None = None
    committed: int | None = None


class Seen(NamedTuple):
    """A message came to a reader, or to a consumer whose connection was made at ``since``."""

    message: TransferMessage
    tick: int
    since: int = 0


@dataclass(slots=True)
class TransferHistory:
    """All of one run; what is at its end is asked when nothing is under way any more.

    Attributes:
        readers: what each reader of one topic was given, from the topic's beginning on.
        consumed: what the consumers were given whose messages transfers take.
        final: each topic as it is read at the end; None: its end didn't come.
        left: what subscriptions still deliver at the end, by topic. Topics that aren't named there
            have no subscription that transfers take from.
    """

    sendings: dict[TransferMessage, Sending] = field(default_factory=dict)
    transfers: dict[int, Transfer] = field(default_factory=dict)
    readers: dict[str, list[Seen]] = field(default_factory=dict)
    consumed: list[Seen] = field(default_factory=list)
    final: dict[str, list[TransferMessage] | None] = field(default_factory=dict)
    left: dict[str, set[TransferMessage]] = field(default_factory=dict)


class FoundAnomaly(NamedTuple):
    """What is wrong, and with what."""

    anomaly: Anomaly
    text: str


def check_transfers(history: TransferHistory) -> list[FoundAnomaly]:
    """Everything that is wrong; none of it: []."""
    return list(_Checker(history).check())


class _Checker:
    def __init__(self, history: TransferHistory) -> None:
        self._history = history
        self._stored = {x for some in history.final.values() for x in some or ()}
        self._known = {topic for topic, some in history.final.items() if some is not None}
        self._takers: dict[TransferMessage, list[int]] = defaultdict(list)
        for number, transfer in history.transfers.items():
            # It may have taken one twice: a consumer that is alone gets messages again that it has
            # not acknowledged when an aborted transaction gives others back.
            for message in set(transfer.taken):
                self._takers[message].append(number)
        self._committed = {x for x, each in history.transfers.items() if self._took_place(each)}

    def _took_place(self, transfer: Transfer) -> bool:
        """Of one whose client wasn't told: whether any message of it is there, or, if it sent none,
        whether it took something that nobody else can have taken."""
        if transfer.committed is not None or transfer.commit_asked is None:
            return transfer.committed is not None
        if transfer.sent:
            return any(x in self._stored for x in transfer.sent)
        return any(self._is_gone(x) and len(self._takers[x]) == 1 for x in transfer.taken)

    def _is_gone(self, message: TransferMessage) -> bool:
        left = self._history.left.get(message.topic)
        return left is not None and message not in left

    def check(self) -> Iterator[FoundAnomaly]:
        yield from self._check_final()
        yield from self._check_effects()
        yield from self._check_taken()
        for name, seen in self._history.readers.items():
            yield from self._check_reader(name, seen)
        yield from self._check_seen(self._history.consumed, "a consumer")
        yield from self._check_returned()
        yield from self._check_cycles()

    # --- what is there at the end

    def _check_final(self) -> Iterator[FoundAnomaly]:
        for topic, messages in self._history.final.items():
            if messages is None:
                yield FoundAnomaly(Anomaly.STUCK, topic)
                continue
            for message, count in Counter(messages).items():
                if count > 1:
                    yield FoundAnomaly(Anomaly.STORED_TWICE, f"{message}: {count} times")
                if (wrong := self._not_committed(message)) is not None:
                    yield FoundAnomaly(Anomaly.DIRTY, f"{message} is stored: {wrong}")
            yield from self._check_order(messages)
        for message, sending in self._history.sendings.items():
            if sending.transfer is None and sending.receipt is not None and self._misses(message):
                yield FoundAnomaly(Anomaly.LOST, f"{message} had a receipt")

    def _misses(self, message: TransferMessage) -> bool:
        return message.topic in self._known and message not in self._stored

    def _not_committed(self, message: TransferMessage) -> str | None:
        """Why nobody may see it; None: they may."""
        if (sending := self._history.sendings.get(message)) is None:
            return "nobody sent it"
        if sending.transfer is not None and sending.transfer not in self._committed:
            return f"transfer {sending.transfer} was never committed"
        return None

    def _check_order(self, messages: list[TransferMessage]) -> Iterator[FoundAnomaly]:
        """What was asked for after the receipt of a message that lies behind it."""
        first: tuple[int, TransferMessage] | None = None  # receipt among those behind
        for message in reversed(messages):
            if (sending := self._history.sendings.get(message)) is None:
                continue
            if first is not None and sending.asked > first[0]:
                yield FoundAnomaly(Anomaly.REORDERED, f"{message} lies in front of {first[1]}")
            if sending.receipt is not None and (first is None or sending.receipt < first[0]):
                first = sending.receipt, message

    # --- all or nothing

    def _check_effects(self) -> Iterator[FoundAnomaly]:
        for number in sorted(self._committed):
            transfer = self._history.transfers[number]
            is_told = transfer.committed is not None
            for message in filter(self._misses, transfer.sent):
                kind = Anomaly.LOST if is_told else Anomaly.SPLIT
                yield FoundAnomaly(kind, f"{message} of transfer {number}")
            for message in transfer.taken:
                if message in self._history.left.get(message.topic, ()):
                    kind = Anomaly.RETURNED if is_told else Anomaly.SPLIT
                    yield FoundAnomaly(kind, f"transfer {number} acknowledged {message}")

    def _check_taken(self) -> Iterator[FoundAnomaly]:
        for message in sorted(self._stored):
            takers = [x for x in self._takers[message] if x in self._committed]
            if len(takers) > 1:
                yield FoundAnomaly(Anomaly.TAKEN_TWICE, f"{message}: by {takers}")
            elif not takers and self._is_gone(message):
                yield FoundAnomaly(Anomaly.NOT_RETURNED, str(message))

    # --- what was seen on the way

    def _check_seen(self, seen: Iterable[Seen], who: str) -> Iterator[FoundAnomaly]:
        for message, tick, _ in seen:
            if (wrong := self._not_committed(message)) is not None:
                yield FoundAnomaly(Anomaly.DIRTY, f"{who} got {message}: {wrong}")
                continue
            sending = self._history.sendings[message]
            if sending.transfer is not None:
                asked = self._history.transfers[sending.transfer].commit_asked
                if asked is None or tick < asked:
                    yield FoundAnomaly(Anomaly.EARLY, f"{who} got {message} of {sending.transfer}")

    def _check_reader(self, name: str, seen: list[Seen]) -> Iterator[FoundAnomaly]:
        yield from self._check_seen(seen, name)
        if not seen or (final := self._history.final[seen[0].message.topic]) is None:
            return
        places = {message: place for place, message in enumerate(final)}
        expected = 0
        for message, _, _ in seen:
            place = places.get(message)
            if place is None:
                yield FoundAnomaly(Anomaly.LOST, f"{name} got {message}, which is gone")
                continue
            if place != expected:
                kind = Anomaly.SKIPPED if place > expected else Anomaly.REORDERED
                yield FoundAnomaly(
                    kind, f"{name} got {message}, number {place}, as number {expected}"
                )
            expected = place + 1

    def _check_returned(self) -> Iterator[FoundAnomaly]:
        """After a commit was answered, no new connection is given what it acknowledged."""
        for message, tick, since in self._history.consumed:
            for number in self._takers[message]:
                committed = self._history.transfers[number].committed
                if committed is not None and committed < since:
                    yield FoundAnomaly(Anomaly.RETURNED, f"{message} at {tick}, taken by {number}")

    # --- who read from whom

    def _check_cycles(self) -> Iterator[FoundAnomaly]:
        """Transfers are taken away while one reads from none that is left."""
        read_from: dict[int, set[int]] = {}
        for number in self._committed:
            senders = (self._history.sendings.get(x) for x in self._transfer(number).taken)
            names = {x.transfer for x in senders if x is not None and x.transfer is not None}
            read_from[number] = names & self._committed
        readers = defaultdict[int, list[int]](list)
        for number, names in read_from.items():
            for name in names:
                readers[name].append(number)
        free = [number for number, names in read_from.items() if not names]
        while free:
            number = free.pop()
            del read_from[number]
            for reader in readers[number]:
                read_from[reader].discard(number)
                if not read_from[reader]:
                    free.append(reader)
        if read_from:
            yield FoundAnomaly(Anomaly.CYCLE, f"transfers {sorted(read_from)}")

    def _transfer(self, number: int) -> Transfer:
        return self._history.transfers[number]
