"""Which producers a topic has: names, access modes, the exclusive owner and its queue.

Pure: the topic asks what to do, does it (liveness probes, persisting the epoch, closing clients),
and tells the outcome. Rules: docs/spec/wire-protocol.md, "PRODUCER".
"""

from collections.abc import Iterator

from magnetar.broker.errors import NamingError, ProducerBusyError, ProducerFencedError
from magnetar.broker.producer.producer import Producer

_SHARED, _EXCLUSIVE, _WAIT, _FENCING = range(4)
JOIN, OWN, WAIT, TAKE_OVER = "join", "own", "wait", "take over"


class ProducerRegistry:
    """Producers of one topic.

    Invariant: with an exclusive owner set, ``by_name`` holds no other; ``waiting`` is empty
    while there is no owner and ``by_name`` is empty (the queue's head would have been promoted).
    """

    __slots__ = ("by_name", "owner", "waiting")

    def __init__(self) -> None:
        self.by_name: dict[str, Producer] = {}
        self.waiting: list[Producer] = []  # short; an empty deque would be 760 bytes a topic
        self.owner: Producer | None = None
        """Exclusive producer; set before its epoch is durable: no other comes in between."""

    def __iter__(self) -> Iterator[Producer]:
        yield from self.by_name.values()
        yield from self.waiting

    def same_name(self, name: str) -> Producer | None:
        """The registered or waiting producer of that name."""
        if (producer := self.by_name.get(name)) is not None:
            return producer
        if self.owner is not None and self.owner.name == name:
            return self.owner
        return next((producer for producer in self.waiting if producer.name == name), None)

    def decide(self, producer: Producer, topic_epoch: int | None) -> str:
        """What a new producer gets: JOIN, OWN, WAIT or TAKE_OVER.

        REQUIRES: its name is free.

        Raises:
            ProducerBusyError, ProducerFencedError: it gets nothing.
        """
        mode = producer.access_mode
        occupied = self.owner is not None or bool(self.by_name)
        if mode == _SHARED:
            if self.owner is not None or self.waiting:
                name = self.owner.name if self.owner is not None else self.waiting[0].name
                raise ProducerBusyError(f"Topic has an existing exclusive producer: {name}")
            return JOIN
        asked = producer.topic_epoch
        if mode == _EXCLUSIVE and (occupied or self.waiting):
            raise ProducerFencedError("Topic has existing producers")
        if asked is not None and topic_epoch is not None and asked < topic_epoch:
            raise ProducerFencedError(
                f"Topic epoch has already moved. Current epoch: {topic_epoch}, requested: {asked}"
            )
        if mode == _WAIT and (occupied or self.waiting):
            return WAIT
        return TAKE_OVER if mode == _FENCING and (occupied or self.waiting) else OWN

    def join(self, producer: Producer) -> None:
        self.by_name[producer.name] = producer

    def wait(self, producer: Producer) -> None:
        producer.waiting = True
        self.waiting.append(producer)

    def claim(self, producer: Producer) -> None:
        """``producer`` becomes the owner; it joins once its epoch is durable."""
        assert self.owner is None
        self.owner = producer

    def unclaim(self, producer: Producer) -> None:
        """The epoch could not be stored, or the client left meanwhile."""
        if self.owner is producer:
            self.owner = None

    def evict_all(self) -> list[Producer]:
        """Forget all (topic closed, or taken over); the producers to close."""
        evicted = list(self)
        if self.owner is not None and self.owner not in evicted:
            evicted.append(self.owner)
        self.by_name.clear()
        self.waiting.clear()
        self.owner = None
        return evicted

    def remove(self, producer: Producer) -> bool:
        """Forget one; whether it was known."""
        known = False
        if self.by_name.get(producer.name) is producer:
            del self.by_name[producer.name]
            known = True
        if self.owner is producer:
            self.owner = None
            known = True
        if producer in self.waiting:
            self.waiting.remove(producer)
            known = True
        return known

    def next_owner(self) -> Producer | None:
        """The producer to promote now: the head of the queue when the topic is free."""
        if self.owner is not None or self.by_name or not self.waiting:
            return None
        producer = self.waiting.pop(0)
        self.owner = producer
        return producer


def name_taken(name: str) -> NamingError:
    return NamingError(f"Producer with name '{name}' is already connected to topic")
