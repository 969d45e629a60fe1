"""Judges what consumers of one subscription were given, event by event.

A message is new, then held by a consumer, then acknowledged: asked for, then confirmed. It may come
again when it was given back, which a negative acknowledgement does, the end of its consumer, and
for a failover subscription the word that another consumer is active. Where an acknowledgement was
not confirmed by then, the broker may have given the message back or not.

A session that the broker or the network ended was over, at the broker, at any time since it
received something last: it counts as over from then on.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from magnetar.broker.verify.history import (
    AckAsked,
    AckConfirmed,
    Activated,
    Attached,
    Delivered,
    End,
    Ended,
    GivenBack,
    MessageName,
    Position,
    Rule,
    Sent,
    Sought,
    SubscriptionHistory,
    SubscriptionType,
    TopicHistory,
    Violation,
    Waited,
)
from magnetar.broker.verify.sessions import SessionChecker

_HELD: Final = 1
_ASKED: Final = 2
_CONFIRMED: Final = 3


class SubscriptionChecker(SessionChecker):
    """``check`` it once; then ``violations`` and ``redelivered`` tell."""

    def __init__(
        self,
        topic: TopicHistory,
        subscription: SubscriptionHistory,
        *,
        durable_acks: bool = True,
        durable_parts: bool = True,
        durable_at_moves: bool = True,
        early_ms_max: int = 0,
    ) -> None:
        """
        Args:
            durable_acks: a confirmed acknowledgement survives a crash. Apache Pulsar writes them
                once a second (managedLedgerDefaultMarkDeleteRateLimit).
            durable_parts: a confirmed acknowledgement of a part of a batch survives when the topic
                moves. Apache Pulsar 4.2.4 sometimes forgets it.
            durable_at_moves: so does each other one. Apache Pulsar 4.2.4 sometimes forgets the last
                ones, too.
            early_ms_max: by how much a delayed message may be early: a broker that isn't strict
                rounds down by a tick (delayedDeliveryTickTimeMillis).
        """
        super().__init__(topic, subscription)
        self.redelivered = 0
        self._durable_acks, self._durable_parts = durable_acks, durable_parts
        self._durable_at_moves = durable_at_moves
        self._early_ms_max = early_ms_max
        self._one_at_a_time = self._kind in (
            SubscriptionType.EXCLUSIVE,
            SubscriptionType.FAILOVER,
        )
        self._log = [position for position, _ in topic.stored]
        self._nth = {position: nth for nth, position in enumerate(self._log)}
        self._messages = dict(topic.stored)
        self._sent = topic.sent
        self._state: dict[Position, int] = {}
        self._holder: dict[Position, int] = {}
        self._may_come: set[Position] = set()
        self._refused: set[Position] = set()
        """Negatively acknowledged, and neither came again nor was acknowledged since."""
        self._acks: dict[int, AckAsked] = {}
        self._parts: set[Position] = set()
        """Acknowledged, of batches that aren't as a whole."""
        self._passed: set[Position] = set()
        """Before the place of the last seek, and so acknowledged by it."""
        self._sought_again: set[Position] = set()
        self._asked: set[Position] = set()
        """Of any acknowledgement: one whose answer is lost may be stored late."""
        self._active: int | None = None
        self._last = -1
        """Of a subscription with one consumer at a time: where it is in the log."""
        self._last_of_key: dict[str, int] = {}
        self._held_of_key: dict[str, set[Position]] = {}

    def check(self, *, complete: bool) -> list[Violation]:
        """
        Args:
            complete: consumers have had time to get everything.
        """
        for event in self._events:
            match event:
                case Delivered():
                    self._on_delivered(event)
                case AckAsked():
                    self._on_ack_asked(event)
                case AckConfirmed():
                    self._on_ack_confirmed(event)
                case GivenBack():
                    self._on_given_back(event)
                case Ended():
                    self._on_ended(event)
                case Attached():
                    self._on_attached(event)
                case Activated():
                    self._on_activated(event)
                case Sought():
                    self._on_sought(event)
                case Waited():
                    self._on_waited(event)
        if complete:
            self._check_complete()
        return self.violations

    def _say(
        self,
        rule: Rule,
        text: str,
        position: Position | None = None,
        message: MessageName | None = None,
    ) -> None:
        if position is not None:
            message = self._messages.get(position)
        super()._say(rule, text, position, message)

    # --- consumers

    def _on_attached(self, event: Attached) -> None:
        super()._on_attached(event)
        if self._kind is SubscriptionType.EXCLUSIVE:
            self._last = -1

    def _on_activated(self, event: Activated) -> None:
        if event.active:
            # Also the one that was: another one may have become active, and left before it was
            # told so (activeConsumerFailoverDelayTimeMillis). Then all unacknowledged comes again.
            self._give_back(self._held_by(None))
            self._last = -1
            self._active = event.session
        elif self._active == event.session:
            self._give_back(self._held_by(event.session))
            self._active = None

    def _on_ended(self, event: Ended) -> None:
        super()._on_ended(event)
        if self._active == event.session:
            self._active = None
        self._give_back(self._held_by(event.session))
        if event.why is End.LOST and not self._durable_acks:
            self._may_come |= self._state.keys()
        if not self._attached or event.why.is_unasked:  # the topic may have moved, nobody was told
            if not self._durable_parts:
                self._may_come |= self._parts
            if not self._durable_at_moves:
                self._may_come |= self._state.keys() - self._passed  # a seek is written at once
        if self._one_at_a_time and not self._attached:
            self._last = -1

    def _held_by(self, session: int | None) -> list[Position]:
        """What a session holds, or any, and what it asked to acknowledge without an answer yet."""
        holders = self._holder.items()
        return [at for at, holder in holders if session is None or holder == session]

    def _give_back(self, positions: Sequence[Position]) -> None:
        for position in positions:
            self._may_come.add(position)
            self._let_go(position)

    def _let_go(self, position: Position) -> None:
        self._holder.pop(position, None)
        self._held_of_key.get(self._key(position), set()).discard(position)

    # --- messages

    def _on_delivered(self, event: Delivered) -> None:
        position = event.position
        self._refused.discard(position)
        if position not in self._nth:
            return self._say(Rule.INVENTED, f"{position} was delivered and isn't stored", position)
        if event.message != self._messages[position]:
            text = f"{event.message} was delivered, {self._messages[position]} is stored"
            self._say(Rule.DAMAGED, text, position)
        may_come = self._check_again(event)
        match self._kind:
            case SubscriptionType.KEY_SHARED:
                self._check_key(event)
            case SubscriptionType.EXCLUSIVE | SubscriptionType.FAILOVER:
                self._check_turn(event)
        if not self._one_at_a_time:
            self._check_time(event)
        if not may_come:
            return
        self._state[position] = _HELD
        self._holder[position] = event.session
        self._held_of_key.setdefault(self._key(position), set()).add(position)

    def _check_again(self, event: Delivered) -> bool:
        """Whether the consumer has it now, if it came before."""
        position = event.position
        state = self._state.get(position)
        if state is None or position in self._may_come:
            self.redelivered += state is not None or position in self._sought_again
            self._may_come.discard(position)
            self._sought_again.discard(position)
            return True
        if position in self._passed:
            text = f"{position} came to session {event.session} after a seek to behind it"
            self._say(Rule.WRONG_PLACE, text, position)
        elif state == _CONFIRMED:
            text = f"{position} came to session {event.session} after it was acknowledged"
            self._say(Rule.DELIVERED_AFTER_ACK, text, position)
        else:
            holder = self._holder.get(position)
            text = f"{position} came to session {event.session} while session {holder} had it"
            self._say(Rule.DELIVERED_TWICE, text, position)
        return state != _CONFIRMED

    def _check_turn(self, event: Delivered) -> None:
        """The messages of one consumer at a time: the log, without what is acknowledged."""
        position, nth = event.position, self._nth[event.position]
        if self._kind is SubscriptionType.FAILOVER and event.session != self._active:
            text = f"{position} came to session {event.session}, and {self._active} is active"
            self._say(Rule.INACTIVE_CONSUMER, text, position)
        if nth <= self._last:
            text = f"{position} came after {self._log[self._last]}"
            self._say(Rule.REORDERED, text, position)
            return
        left_out = [at for at in self._log[self._last + 1 : nth] if at not in self._asked]
        if left_out:
            text = f"{len(left_out)} messages before {position} were left out, from {left_out[0]}"
            self._say(Rule.SKIPPED, text, left_out[0])
        self._last = nth

    def _check_key(self, event: Delivered) -> None:
        position, nth = event.position, self._nth[event.position]
        sent = self._sent_at(position)
        others = {
            self._holder[at]
            for at in self._held_of_key.get(sent.key, ())
            if self._holder[at] != event.session
        }
        if others:
            text = f"{position} came to session {event.session}, and key {sent.key} is at {others}"
            self._say(Rule.KEY_AT_TWO, text, position)
        if sent.due_ms or position in self._state:
            return
        last = self._last_of_key.get(sent.key, -1)
        if nth < last:
            text = f"{position} came after {self._log[last]}, which has the same key {sent.key}"
            self._say(Rule.REORDERED, text, position)
        self._last_of_key[sent.key] = max(last, nth)

    def _check_time(self, event: Delivered) -> None:
        early_ms = self._sent_at(event.position).due_ms - event.at_ms
        if early_ms > self._early_ms_max:
            self._say(Rule.EARLY, f"{event.position} came {early_ms} ms early", event.position)

    def _sent_at(self, position: Position) -> Sent:
        message = self._messages.get(position)
        return self._sent.get(message, _NOTHING) if message is not None else _NOTHING

    def _key(self, position: Position) -> str:
        return self._sent_at(position).key

    # --- acknowledgements

    def _on_ack_asked(self, event: AckAsked) -> None:
        positions = list(event.positions)
        if event.cumulative:
            last = max(self._nth.get(position, -1) for position in positions)
            positions = self._log[: last + 1]
        asked = [at for at in positions if self._state.get(at) != _CONFIRMED]
        self._asked.update(asked)
        self._refused.difference_update(asked)
        for position in asked:
            self._state[position] = _ASKED
            self._held_of_key.get(self._key(position), set()).discard(position)
        self._acks[event.ack] = AckAsked(
            event.session, event.ack, asked, event.cumulative, event.partial
        )

    def _on_ack_confirmed(self, event: AckConfirmed) -> None:
        asked = self._acks.pop(event.ack, None)
        if asked is None:
            return
        for position in asked.positions:
            self._state[position] = _CONFIRMED
            self._let_go(position)
        if asked.partial:
            self._parts.update(asked.positions)
        elif self._parts:
            entries = {position[:-1] for position in asked.positions}
            self._parts = {at for at in self._parts if at[:-1] not in entries}

    def _on_given_back(self, event: GivenBack) -> None:
        if self._one_at_a_time:
            self._give_back(self._held_by(None))
            self._last = -1
        else:
            given_back = [at for at in event.positions if self._state.get(at) != _CONFIRMED]
            self._give_back(given_back)
            self._refused.update(given_back)

    def _on_waited(self, event: Waited) -> None:
        """An unload gives everything back anew: what comes only then was forgotten all the same."""
        for position in sorted(self._refused - self._asked) if self._attached else ():
            text = f"{position} was negatively acknowledged, and didn't come again"
            text += f" within {event.seconds:.0f} s, though a consumer had room"
            self._say(Rule.NOT_REDELIVERED, text, position)

    # --- seeks

    def _on_sought(self, event: Sought) -> None:
        """What is behind the place comes anew; what is before it, not any more. A seek that may be
        done allows both.
        """
        self._refused.clear()
        first, last = self._place_of(event)
        for nth, position in enumerate(self._log[first:], first):
            self._may_be_sought(position, known=nth >= last, sure=event.sure)
        for position in self._log[:first]:
            self._asked.add(position)
            if event.sure:
                self._may_come.discard(position)
                self._passed.add(position)
                self._state[position] = _CONFIRMED
            else:
                self._may_come_or_not(position)
        self._acks.clear()  # done before the seek, and undone by it
        if event.sure:
            self._last = -1
            self._last_of_key.clear()

    def _may_be_sought(self, position: Position, *, known: bool, sure: bool) -> None:
        """Of a message from the place on; ``known``: certainly from it on."""
        if not known:
            self._asked.add(position)
            self._may_come_or_not(position)
        elif sure:
            if self._state.pop(position, None) is not None:
                self._sought_again.add(position)
            self._asked.discard(position)
            self._may_come.discard(position)
            self._parts.discard(position)
        elif position in self._state:
            self._may_come_or_not(position)
        self._passed.discard(position)

    def _may_come_or_not(self, position: Position) -> None:
        self._may_come.add(position)
        if self._state.get(position) != _HELD:
            self._state[position] = _ASKED

    def _place_of(self, event: Sought) -> tuple[int, int]:
        if event.entry is not None:
            nth = bisect_left(self._log, event.entry)
            return nth, nth
        times = [self._sent_at(position).published_ms for position in self._log]
        return sought_place(times, event.published_ms)

    def _check_complete(self) -> None:
        for position in self._log:
            if position not in self._state:
                self._say(Rule.NOT_DELIVERED, f"{position} never came", position)
            elif position in self._may_come and position not in self._asked:
                text = f"{position} was given back, and never came again"
                self._say(Rule.NOT_REDELIVERED, text, position)


def sought_place(times_ms: Sequence[int], published_ms: int) -> tuple[int, int]:
    """Where a seek by time may end up: at the first index, the last one, or between.

    A broker looks for the place where what was published earlier ends, by halving the log. Several
    producers, and messages sent again, make more than one such place.

    Args:
        times_ms: when each message was published.
    """
    late = (nth for nth, at_ms in enumerate(times_ms) if at_ms >= published_ms)
    early = (nth for nth in range(len(times_ms) - 1, -1, -1) if times_ms[nth] < published_ms)
    return next(late, len(times_ms)), next(early, -1) + 1


_NOTHING: Final = Sent()
