"""Judges who is let in to a subscription: the same for every topic."""

from collections.abc import Iterator, Sequence

from magnetar.broker.verify.history import (
    AckConfirmed,
    Activated,
    Attached,
    Delivered,
    End,
    Ended,
    Event,
    MessageName,
    Position,
    Rule,
    SubscriptionHistory,
    SubscriptionType,
    TopicHistory,
    Violation,
)


class SessionChecker:
    """``violations`` tells what was found. Events come from ``_events``, each at its place."""

    def __init__(self, topic: TopicHistory, subscription: SubscriptionHistory) -> None:
        self.violations: list[Violation] = []
        self._kind = subscription.type
        self._topic, self._name = topic.topic, subscription.name
        self._events = _with_early_ends(subscription.events)
        self._attached: set[int] = set()

    def _say(
        self,
        rule: Rule,
        text: str,
        position: Position | None = None,
        message: MessageName | None = None,
    ) -> None:
        self.violations.append(Violation(rule, text, position, message, self._topic, self._name))

    def _on_attached(self, event: Attached) -> None:
        if self._kind is SubscriptionType.EXCLUSIVE and self._attached:
            others = ", ".join(map(str, sorted(self._attached)))
            text = f"session {event.session} was let in beside session {others}"
            self._say(Rule.TWO_CONSUMERS, text)
        self._attached.add(event.session)

    def _on_ended(self, event: Ended) -> None:
        self._attached.discard(event.session)
        if event.why is End.FORGOTTEN:
            text = f"session {event.session} was let in, and isn't served; nobody told it so"
            self._say(Rule.NOT_TOLD, text)


def _with_early_ends(events: Sequence[Event]) -> Iterator[Event]:
    """Ends that the broker or the network caused behind what their sessions received last."""
    last: dict[int, int] = {}
    for nth, event in enumerate(events):
        if isinstance(event, Attached | Activated | Delivered | AckConfirmed):
            last[event.session] = nth
    early: dict[int, list[Ended]] = {}
    for event in events:
        if isinstance(event, Ended) and event.why.is_unasked:
            early.setdefault(last.get(event.session, -1), []).append(event)
    yield from early.get(-1, ())
    for nth, event in enumerate(events):
        if not (isinstance(event, Ended) and event.why.is_unasked):
            yield event
        yield from early.get(nth, ())
