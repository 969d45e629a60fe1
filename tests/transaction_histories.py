"""What a consumer sees of topics that clients send to and acknowledge in transactions.

A model of messages, transactions and subscriptions: it knows no server and no client.
``tests/interop/transactions_by_clients.py`` compares servers with it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

Place = tuple[int, int, int, int]
"""Partition, ledger, entry and index in its batch; of a message in chunks, of its last one."""


@dataclass(frozen=True, slots=True)
class Message:
    """``transaction`` is a name; None: it was sent in none."""

    key: str
    value: str
    place: Place
    transaction: str | None = None

    @property
    def entry(self) -> tuple[int, int, int]:
        return self.place[:3]


@dataclass(slots=True)
class Subscription:
    """
    Attributes:
        shown: what its consumer has got.
        named: of each entry, what this consumer has acknowledged, in whatever transaction.
        uncertain: may come or not.
        spent: entries of which nothing more is to be acknowledged.
    """

    name: str
    topic: str
    kind: str
    acknowledged: set[str] = field(default_factory=set)
    pending: dict[str, set[str]] = field(default_factory=dict)
    shown: list[Message] = field(default_factory=list)
    named: dict[tuple[int, int, int], set[str]] = field(default_factory=dict)
    uncertain: set[str] = field(default_factory=set)
    spent: set[tuple[int, int, int]] = field(default_factory=set)

    @property
    def pending_values(self) -> set[str]:
        return set().union(*self.pending.values())


@dataclass
class Model:
    """
    Attributes:
        as_pulsar: with what Pulsar does to the Go client. The client names transactions in commands
            only, and Pulsar's dispatchers look into the metadata: they deliver what was aborted.
            An unload makes it forget which ones are open. (`open_in` tells where not to unload.)
            Acknowledgements don't name the size of a batch: in Pulsar a part of one that was
            acknowledged in an aborted transaction doesn't come again, and the rest may be refused.
        ends: of a transaction that has ended, whether it was committed.
    """

    as_pulsar: bool = False
    topics: defaultdict[str, list[Message]] = field(default_factory=lambda: defaultdict(list))
    subscriptions: list[Subscription] = field(default_factory=list)
    ends: dict[str, bool] = field(default_factory=dict)

    def send(self, topic: str, messages: Iterable[Message]) -> None:
        self.topics[topic] = sorted([*self.topics[topic], *messages], key=lambda it: it.place)

    def is_aborted(self, message: Message) -> bool:
        return message.transaction is not None and not self.ends.get(message.transaction, True)

    def open_in(self, topic: str) -> set[str]:
        """Transactions that have sent to it."""
        sent = {each.transaction for each in self.topics[topic] if each.transaction is not None}
        return sent - self.ends.keys()

    def log(self, topic: str) -> list[Message]:
        """What may be seen: in each partition, what is in front of the first open transaction."""
        found = []
        closed: set[int] = set()
        for each in self.topics[topic]:
            if each.transaction is not None and each.transaction not in self.ends:
                closed.add(each.place[0])
            if each.place[0] not in closed and (self.as_pulsar or not self.is_aborted(each)):
                found.append(each)
        return found

    def left(self, of: Subscription) -> list[Message]:
        """What a consumer gets that has just come."""
        hidden = of.acknowledged | of.pending_values
        return [each for each in self.log(of.topic) if each.value not in hidden]

    def look(self, of: Subscription) -> None:
        """A consumer has come, and has got what is left."""
        of.shown, of.named = self.left(of), {}

    def acknowledge(self, of: Subscription, message: Message, transaction: str | None) -> None:
        """Of a batch, Go's consumer names all that it has acknowledged so far."""
        named = of.named.setdefault(message.entry, set())
        named.add(message.value)
        if transaction is None:
            of.acknowledged |= named
        else:
            of.pending.setdefault(transaction, set()).update(named - of.acknowledged)
            if self.as_pulsar and self.in_batches(of.topic, {message.value}):
                of.spent.add(message.entry)

    def acknowledge_up_to(self, of: Subscription, message: Message) -> None:
        before = [it for it in self.topics[of.topic] if it.place[0] == message.place[0]]
        of.acknowledged |= {it.value for it in before if it.place <= message.place}

    def end(self, transaction: str, *, commits: bool) -> None:
        self.ends[transaction] = commits
        for each in self.subscriptions:
            pending = each.pending.pop(transaction, set())
            if commits:
                each.acknowledged |= pending
            elif pending:  # come anew; Go acknowledges a message in chunks once only
                each.shown = []
                if self.as_pulsar:
                    each.uncertain.update(it.value for it in self.in_batches(each.topic, pending))

    def in_batches(self, topic: str, values: set[str]) -> list[Message]:
        """Those of them that were sent with others."""
        counts = Counter(each.entry for each in self.topics[topic])
        return [it for it in self.topics[topic] if counts[it.entry] > 1 and it.value in values]
