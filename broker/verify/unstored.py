"""Judges what consumers of a non-persistent topic were given.

Nothing is stored there, so a message may be lost. What is delivered was sent, comes once to each
subscription, and in the order of sending. Positions say nothing: messages are told by their names.
"""

from magnetar.broker.verify.history import (
    Attached,
    Delivered,
    Ended,
    MessageName,
    Rule,
    SubscriptionHistory,
    SubscriptionType,
    TopicHistory,
)
from magnetar.broker.verify.plan import MARKER
from magnetar.broker.verify.sessions import SessionChecker


class UnstoredChecker(SessionChecker):
    """``check`` it once; then ``violations`` and ``missed`` tell.

    REQUIRES: no message was sent again; at the end, with one consumer for each subscription,
    messages of the producer ``MARKER`` were sent until each had one, or for a long time.
    """

    def __init__(self, topic: TopicHistory, subscription: SubscriptionHistory) -> None:
        super().__init__(topic, subscription)
        self.missed = 0
        """Messages that didn't come, which is allowed."""
        self._sent = topic.sent
        self._came: set[MessageName] = set()
        self._last: dict[tuple[int, str], int] = {}
        """Of a producer, by session; of all sessions where consumers come one at a time."""
        self._one_at_a_time = subscription.type in (
            SubscriptionType.EXCLUSIVE,
            SubscriptionType.FAILOVER,
        )
        self._at: dict[str, int] = {}
        """The session that a key came to, since consumers came or left; of a failover subscription
        it is any key. Apache Pulsar tells nobody there that it is the active consumer."""

    def check(self) -> None:
        for event in self._events:
            match event:
                case Delivered():
                    self._on_delivered(event)
                case Attached():
                    self._at.clear()
                    self._on_attached(event)
                case Ended():
                    self._at.clear()
                    self._on_ended(event)
        self.missed = sum(each not in self._came for each in self._sent if each[0] != MARKER)
        if not any(producer == MARKER for producer, _ in self._came):
            self._say(Rule.NOT_DELIVERED, "at the end nothing came, though the consumer had room")

    def _on_delivered(self, event: Delivered) -> None:
        message = event.message
        if message is None:
            return self._say(Rule.DAMAGED, f"session {event.session} got what was never sent so")
        name = f"{message[0]} {message[1]}"
        if message not in self._sent:
            return self._say(Rule.INVENTED, f"{name} was never sent", message=message)
        if message in self._came:
            text = f"{name} came to session {event.session} once more"
            return self._say(Rule.DELIVERED_TWICE, text, message=message)
        self._came.add(message)
        self._check_order(event.session, message)
        self._check_place(event.session, message)

    def _check_order(self, session: int, message: MessageName) -> None:
        producer, number = message
        sequence = (0 if self._one_at_a_time else session), producer
        last = self._last.get(sequence, -1)
        if number < last:
            text = f"{producer} {number} came to session {session} after {last}"
            self._say(Rule.REORDERED, text, message=message)
        self._last[sequence] = max(last, number)

    def _check_place(self, session: int, message: MessageName) -> None:
        match self._kind:
            case SubscriptionType.KEY_SHARED:
                rule, what = Rule.KEY_AT_TWO, f"key {self._sent[message].key}"
            case SubscriptionType.FAILOVER:
                rule, what = Rule.INACTIVE_CONSUMER, "what is sent"
            case _:
                return
        last = self._at.setdefault(what, session)
        if last != session:
            text = f"{what} came to session {session}, and went to session {last} before"
            self._say(rule, text, message=message)
