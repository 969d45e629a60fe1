"""Who produced and consumed what, and what a topic's history is: material for the checks.

Independent of the broker's code: a producer knows the numbers it sent and the receipts it got, a
consumer the acknowledgements that it asked for and those that were confirmed; the checks of
``broker/verify`` compare both with what a fresh reader reads.
"""

import itertools
import threading
import time
from collections.abc import Mapping, Sequence

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import parse_entry_body
from magnetar.broker.verify.delivered import SubscriptionChecker
from magnetar.broker.verify.history import (
    AckAsked,
    AckConfirmed,
    Attached,
    Delivered,
    End,
    Ended,
    Event,
    Sent,
    SubscriptionHistory,
    SubscriptionType,
    TopicHistory,
    Violation,
)
from magnetar.broker.verify.stored import check_stored
from tests.raw_client import ConnectionClosedError, Position, RawClient

TOPIC = "persistent://public/default/history"
WINDOW = 64
_SENDER = "sender"


class Session:
    """What one consumer of a durable subscription saw, and what it asked, over one connection."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.number = next(self._numbers)
        self.events: list[Event] = [Attached(self.number)]

    def deliver(self, position: Position, number: int) -> None:
        self.events.append(Delivered(self.number, position, (_SENDER, number)))

    def ask(self, position: Position, ack: int) -> None:
        """Acknowledges everything up to a position; ``ack`` is one of its own numbers."""
        self.events.append(AckAsked(self.number, self._ack(ack), [position], cumulative=True))

    def confirm(self, ack: int) -> None:
        self.events.append(AckConfirmed(self.number, self._ack(ack)))

    def _ack(self, ack: int) -> int:
        return self.number << 32 | ack


def history_of(
    log: Mapping[Position, int], receipts: Mapping[int, Position], sent: int | None = None
) -> TopicHistory:
    """Of one producer, who never sends a number again.

    Args:
        log: what a fresh reader got, in its order.
        receipts: number -> position.
        sent: numbers below it were sent; None: those that are stored.
    """
    numbers = log.values() if sent is None else range(sent)
    return TopicHistory(
        TOPIC,
        sent={(_SENDER, number): Sent() for number in numbers},
        receipts=[((_SENDER, number), at) for number, at in receipts.items()],
        stored=[(at, (_SENDER, number)) for at, number in log.items()],
    )


def assert_stored(
    log: Mapping[Position, int], receipts: Mapping[int, Position], sent: int | None = None
) -> None:
    """Every acknowledged message is where its receipt said, in the order of sending, once."""
    assert check_stored(history_of(log, receipts, sent)).violations == []


def session_violations(log: Mapping[Position, int], sessions: Sequence[Session]) -> list[Violation]:
    """Consumers of one subscription, one after the other, from the first message on.

    Args:
        log: everything that was stored, in order, at least as far as anybody saw.
    """
    events: list[Event] = []
    for session in sessions:
        events += [*session.events, Ended(session.number, End.LOST)]
    subscription = SubscriptionHistory("worker", SubscriptionType.EXCLUSIVE, events)
    return SubscriptionChecker(history_of(log, {}), subscription).check(complete=False)


def assert_sessions(log: Mapping[Position, int], sessions: Sequence[Session]) -> None:
    assert session_violations(log, sessions) == []


def client_of(url: str) -> RawClient:
    """Connected to the one broker there is, which has taken the topic's bundle."""
    client = RawClient(url)
    try:
        client.look_up(TOPIC)
    except BaseException:
        client.close()
        raise
    return client


class Producer(threading.Thread):
    """Sends 0, 1, 2, ... over one connection until it breaks; remembers every receipt."""

    def __init__(self, url: str, first: int, payload_bytes: int) -> None:
        super().__init__()
        self._client = client_of(url)
        self._payload_bytes = payload_bytes
        self.next_number = first
        self.receipts: dict[int, Position] = {}
        answer = self._client.create_producer(TOPIC)
        assert isinstance(answer, pb.CommandProducerSuccess), answer

    def run(self) -> None:
        in_flight = 0
        try:
            while True:
                frames = []
                while in_flight < WINDOW:
                    payload = b"%012d" % self.next_number + b"x" * self._payload_bytes
                    frames.append(RawClient.send_frame(self.next_number, payload))
                    self.next_number += 1
                    in_flight += 1
                if frames:
                    self._client.send_bytes(b"".join(frames))
                command, _ = self._client.expect(pb.BaseCommand.SEND_RECEIPT)
                receipt = command.send_receipt
                self.receipts[receipt.sequence_id] = (
                    receipt.message_id.ledgerId,
                    receipt.message_id.entryId,
                )
                in_flight -= 1
        except (ConnectionClosedError, TimeoutError):
            self._client.close()


class Consumer(threading.Thread):
    """Reads one subscription and acknowledges cumulatively, with request ids, until it breaks."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._client = client_of(url)
        self.session = Session()
        answer = self._client.subscribe(
            TOPIC, "worker", initialPosition=pb.CommandSubscribe.Earliest
        )
        assert isinstance(answer, pb.CommandSuccess), answer

    def run(self) -> None:
        session = self.session
        seen = 0
        try:
            self._client.flow(1000)
            while True:
                command, body = self._client.receive()
                if command.type == pb.BaseCommand.ACK_RESPONSE:
                    assert not command.ackResponse.HasField("error"), command
                    session.confirm(command.ackResponse.request_id)
                elif command.type == pb.BaseCommand.MESSAGE:
                    message_id = command.message.message_id
                    position = (message_id.ledgerId, message_id.entryId)
                    session.deliver(position, _number(body))
                    seen += 1
                    if seen % 50 == 0:
                        request_id = next(self._client.request_ids)
                        session.ask(position, request_id)
                        self._client.ack([position], cumulative=True, request_id=request_id)
                        self._client.flow(50)
        except (ConnectionClosedError, TimeoutError):
            self._client.close()


def _number(body: bytes) -> int:
    return int(bytes(parse_entry_body(body)[1][:12]))


def wait_for_receipts(producer: Producer, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(producer.receipts) < count:
        assert producer.is_alive(), "the connection broke before the kill"
        assert time.monotonic() < deadline, "no progress under load"
        time.sleep(0.005)


def read_all(url: str, last: Position) -> dict[Position, int]:
    """Everything a new subscription from the earliest message reads, up to ``last``."""
    history: dict[Position, int] = {}
    with client_of(url) as client:
        answer = client.subscribe(
            TOPIC,
            "auditor",
            durable=False,
            initialPosition=pb.CommandSubscribe.Earliest,
            start_message_id=pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1),
        )
        assert isinstance(answer, pb.CommandSuccess), answer
        client.flow(1000)
        while not history or next(reversed(history)) < last:
            command, body = client.receive()
            if command.type != pb.BaseCommand.MESSAGE:
                continue
            message_id = command.message.message_id
            position = (message_id.ledgerId, message_id.entryId)
            assert position not in history, f"{position} came twice"
            assert not history or position > next(reversed(history)), "positions go backwards"
            history[position] = _number(body)
            if len(history) % 500 == 0:
                client.flow(500)
    return history


def final_session(url: str) -> Session:
    """Who takes the subscription at the end, and the first message it gets. REQUIRES: there is one
    behind everything that was acknowledged.
    """
    with client_of(url) as client:
        client.subscribe(TOPIC, "worker")
        client.flow(1)
        position, payload = client.receive_message()
    session = Session()
    session.deliver(position, int(payload[:12]))
    return session


def publish_last(url: str, number: int) -> Position:
    """One message behind all others, so that the last session has something to get."""
    with client_of(url) as client:
        answer = client.create_producer(TOPIC)
        assert isinstance(answer, pb.CommandProducerSuccess), answer
        client.send_bytes(RawClient.send_frame(number, b"%012d" % number))
        command, _ = client.expect(pb.BaseCommand.SEND_RECEIPT)
    message_id = command.send_receipt.message_id
    return message_id.ledgerId, message_id.entryId
