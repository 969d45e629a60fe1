"""Clients that transfer messages between topics in transactions, and write a history of it.

Over the wire and step by step, so that a test can kill somebody between any two steps. What breaks
is begun anew; only the question whether a transaction is committed is asked until it is answered.
"""

import itertools
import json
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from enum import StrEnum

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import encode_body, parse_entry_body
from magnetar.broker.verify.transfers import (
    Anomaly,
    FoundAnomaly,
    Seen,
    Sending,
    Transfer,
    TransferHistory,
    TransferMessage,
    check_transfers,
)
from tests.cluster_tools import get
from tests.raw_client import ConnectionClosedError, Position, RawClient, encode_command
from tests.waiting import DEADLINE_S, wait_until

C = pb.BaseCommand
SUBSCRIPTION = "transfers"
_ANSWER_S = 20.0
_TIMEOUT_MS = 5_000
_PERMITS = 1000
_CLUSTER_COORDINATORS = 16
_PAUSE_S = 0.2
_EARLIEST = pb.MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)


class Step(StrEnum):
    """What a transfer is about to do."""

    BEGIN = "begin"
    REGISTER_PARTITIONS = "register partitions"
    SEND = "send"
    REGISTER_SUBSCRIPTION = "register subscription"
    ACKNOWLEDGE = "acknowledge"
    END = "end"
    WAIT_FOR_END = "wait for the end"


class RefusedError(Exception):
    """The broker answered with an error."""


_BROKEN = (RefusedError, ConnectionClosedError, TimeoutError, OSError)


class TransferClients:
    """All of them, and their history.

    Args:
        web_urls: asks the brokers for what these names are at the moment.
        topics: messages go from each one to the next, and from the last to the first.
        all_topic: gets a message of every transfer, too.
        coordinators: how many the cluster has.
        on_step: called by each client before each step, with what comes next.
    """

    def __init__(
        self,
        web_urls: Callable[[], Sequence[str]],
        topics: Sequence[str],
        all_topic: str,
        coordinators: int,
        seed: int,
        pause_s: float = 0.0,
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self.web_urls, self.topics, self.all_topic = web_urls, topics, all_topic
        self.coordinators, self.pause_s, self.on_step = coordinators, pause_s, on_step
        self.history = TransferHistory()
        self.tick = itertools.count().__next__
        self.number = itertools.count().__next__
        self.refusals = Counter[str]()
        self.stopping = threading.Event()
        self._rng = random.Random(seed)
        kinds = (pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared)
        self._clients: list[_TransferClient | _TransferReader] = [
            _TransferClient(self, place, kinds[place % len(kinds)], random.Random(seed + place))
            for place in range(len(topics))
        ]
        self._clients.append(_TransferReader(self))

    @property
    def committed(self) -> int:
        """Transfers whose commit was answered."""
        return sum(each.committed is not None for each in [*self.history.transfers.values()])

    @property
    def failure(self) -> Exception | None:
        """Of a client that has given up."""
        return next((each.failure for each in self._clients if each.failure is not None), None)

    def start(self) -> None:
        """Subscriptions that keep everything come first."""
        for topic in (*self.topics, self.all_topic):
            with self.connect(topic) as client:
                names = ["keeper"] if topic == self.all_topic else ["keeper", SUBSCRIPTION]
                for number, name in enumerate(names):
                    client.subscribe(topic, name, number)
        for each in self._clients:
            each.start()

    def stop(self) -> None:
        self.stopping.set()
        for each in self._clients:
            each.join(DEADLINE_S)
            assert not each.is_alive(), each.name
        assert self.failure is None, self.failure

    def connect(self, topic: str) -> RawClient:
        """To the broker that serves it.

        Raises:
            ConnectionClosedError, TimeoutError, OSError, RefusedError: not now.
        """
        url = self._rng.choice(self.web_urls())
        found = get(f"{url}/lookup/v2/topic/{topic.replace('://', '/')}")
        if found is None:
            raise RefusedError("look up")
        return RawClient(json.loads(found)["brokerUrl"], timeout_s=_ANSWER_S)

    def connect_producer(self, topic: str, name: str) -> RawClient:
        with ExitStack() as stack:
            client = stack.enter_context(self.connect(topic))
            answer = client.create_producer(topic, producer_name=name)
            if isinstance(answer, pb.CommandError):
                raise RefusedError(f"producer: {answer.message}")
            stack.pop_all()
        return client

    def send(
        self,
        client: RawClient,
        message: TransferMessage,
        transfer: int | None = None,
        transaction: tuple[int, int] | None = None,
    ) -> None:
        """Returns with the receipt."""
        sending = self.history.sendings[message] = Sending(self.tick(), None, transfer)
        command = C(type=C.SEND)
        head = pb.MessageMetadata(
            producer_name="transfers", sequence_id=message.number, publish_time=int(time.time())
        )
        command.send.producer_id, command.send.sequence_id = 1, message.number
        if transaction is not None:
            command.send.txnid_most_bits, command.send.txnid_least_bits = transaction
            head.txnid_most_bits, head.txnid_least_bits = transaction
        client.send_bytes(encode_command(command, encode_body(head, b"%d" % message.number)))
        answer, _ = client.receive()
        if answer.type != C.SEND_RECEIPT:
            raise RefusedError(f"send: {answer.send_error.message or C.Type.Name(answer.type)}")
        sending.receipt = self.tick()

    # --- the end

    def found(self) -> list[FoundAnomaly]:
        """After ``stop``: what is wrong. Waits for what is still under way at the brokers."""
        ends = {topic: self._send_last(topic) for topic in (*self.topics, self.all_topic)}
        for topic, end in ends.items():
            self.history.final[topic] = self._read_final(topic, end)
        found: list[FoundAnomaly] = []

        def all_returned() -> bool:
            for topic in self.topics:
                self.history.left[topic] = self._read_left(topic, ends[topic])
            found[:] = check_transfers(self.history)
            return all(each.anomaly != Anomaly.NOT_RETURNED for each in found)

        try:
            wait_until(all_returned)
        except AssertionError:
            assert found
        return found

    def _send_last(self, topic: str) -> TransferMessage:
        message = TransferMessage(topic, self.number())
        with self.connect_producer(topic, "last") as client:
            self.send(client, message)
        return message

    def _read_final(self, topic: str, end: TransferMessage) -> list[TransferMessage] | None:
        with self.connect(topic) as client:
            _subscribe_reader(client, topic)
            try:
                return [each.message for each in _messages(client, topic, self.tick, end)]
            except TimeoutError:
                return None

    def _read_left(self, topic: str, end: TransferMessage) -> set[TransferMessage]:
        with self.connect(topic) as client:
            # Its own type: who leaves an exclusive subscription may be known a moment longer.
            wait_until(lambda: isinstance(client.subscribe(topic, SUBSCRIPTION), pb.CommandSuccess))
            client.flow(_PERMITS)
            seen = _messages(client, topic, self.tick, end)
            self.history.consumed += seen
            return {each.message for each in seen}


class TransferTraffic:
    """A ``cluster_traffic.CheckedTraffic`` of transfers; what it sends are the committed ones.

    Attributes:
        longest_gap_s: not measured. Its clients break off by themselves, too.
    """

    def __init__(self, web_urls: Sequence[str], seed: int) -> None:
        name = "persistent://public/default/transfers-{}"
        self.topic = name.format("all")
        self.longest_gap_s = 0.0
        self._clients = TransferClients(
            *(lambda: web_urls, [name.format(each) for each in "abc"], self.topic),
            *(_CLUSTER_COORDINATORS, seed, _PAUSE_S),
        )

    def start(self) -> None:
        self._clients.start()

    @property
    def acknowledged(self) -> int:
        return self._clients.committed

    @property
    def consumed(self) -> int:
        return self._clients.committed

    @property
    def failure(self) -> Exception | None:
        return self._clients.failure

    def stop_sending(self) -> None:
        self._clients.stopping.set()

    @property
    def drained(self) -> bool:
        """What is still under way is waited for by ``check``."""
        return True

    def stop(self) -> None:
        self._clients.stop()

    def check(self, stored: Sequence[int]) -> int:
        assert self._clients.found() == []
        final = self._clients.history.final[self.topic]
        assert final is not None
        assert [each.number for each in final][: len(stored)] == [*stored]
        print(f"transfers: {self.acknowledged}, {self._clients.refusals.most_common(5)}")
        return 0


def _subscribe_reader(client: RawClient, topic: str) -> None:
    answer = client.subscribe(
        topic,
        f"reader-{random.randrange(2**60)}",
        durable=False,
        initialPosition=pb.CommandSubscribe.Earliest,
        start_message_id=_EARLIEST,
    )
    if isinstance(answer, pb.CommandError):
        raise RefusedError(f"reader: {answer.message}")
    client.flow(_PERMITS)


def _messages(
    client: RawClient, topic: str, tick: Callable[[], int], end: TransferMessage
) -> list[Seen]:
    """What a new connection gets, up to a message."""
    since = tick()

    def received() -> Seen:
        _, payload = client.receive_message()
        client.flow(1)
        return Seen(TransferMessage(topic, int(payload)), tick(), since)

    seen = [received()]
    while seen[-1].message != end:
        seen.append(received())
    return seen


class _TransferReader(threading.Thread):
    """Reads the topic that has a message of every transfer, from its beginning, again and again."""

    def __init__(self, clients: TransferClients) -> None:
        super().__init__(daemon=True)
        self._clients = clients
        self.failure: Exception | None = None

    def run(self) -> None:
        clients = self._clients
        try:
            for number in itertools.count():
                seen = clients.history.readers[f"reader {number}"] = []
                try:
                    with clients.connect(clients.all_topic) as client:
                        _subscribe_reader(client, clients.all_topic)
                        self._read(client, seen)
                except _BROKEN:
                    clients.stopping.wait(0.2)
                if clients.stopping.is_set():
                    return
        except Exception as error:
            self.failure = error

    def _read(self, client: RawClient, seen: list[Seen]) -> None:
        clients = self._clients
        while not clients.stopping.is_set():
            try:
                command, body = client.receive(0.2)
            except TimeoutError:
                continue
            if command.type == C.MESSAGE:
                number = int(bytes(parse_entry_body(body)[1]))
                seen.append(Seen(TransferMessage(clients.all_topic, number), clients.tick()))
                client.flow(1)


class _TransferClient(threading.Thread):
    """Takes from one topic."""

    def __init__(self, clients: TransferClients, place: int, kind: int, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self._clients, self._rng, self._kind = clients, rng, kind
        self._topic = clients.topics[place]
        self._targets = (clients.topics[(place + 1) % len(clients.topics)], clients.all_topic)
        self._coordinator: RawClient | None = None
        self._coordinator_number = 0
        self._given: deque[tuple[Position, TransferMessage]] = deque()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not self._clients.stopping.is_set():
                try:
                    self._session()
                except _BROKEN as error:
                    self._clients.refusals[f"{type(error).__name__}: {error}"[:90]] += 1
                    self._clients.stopping.wait(0.1)
        except Exception as error:
            self.failure = error

    def _session(self) -> None:
        """With connections of its own, until one breaks, or by chance."""
        clients, topic = self._clients, self._topic
        with ExitStack() as stack:
            producers = {
                each: stack.enter_context(
                    clients.connect_producer(each, f"{topic}-{each}-{clients.number()}")
                )
                for each in (topic, *self._targets)
            }
            consumer = stack.enter_context(clients.connect(topic))
            answer = consumer.subscribe(topic, SUBSCRIPTION, subType=self._kind)
            if isinstance(answer, pb.CommandError):
                raise RefusedError(f"consumer: {answer.message}")
            consumer.flow(_PERMITS)
            self._given.clear()
            since = clients.tick()
            stack.callback(self._close_coordinator)
            while not clients.stopping.is_set() and self._rng.random() > 0.03:
                clients.send(producers[topic], TransferMessage(topic, clients.number()))
                self._transfer(producers, consumer, since)
                clients.stopping.wait(clients.pause_s)

    def _transfer(
        self, producers: Mapping[str, RawClient], consumer: RawClient, since: int
    ) -> None:
        clients, rng = self._clients, self._rng
        taken = [self._take(consumer, since) for _ in range(rng.randint(1, 2))]
        clients.on_step(Step.BEGIN)
        if self._coordinator is None:
            self._connect_coordinator(rng.randrange(clients.coordinators))
        number = clients.number()
        transfer = clients.history.transfers[number] = Transfer()
        transaction = self._begin()
        clients.on_step(Step.REGISTER_PARTITIONS)
        self._register_partitions(transaction)
        for topic in self._targets:
            for _ in range(rng.randint(1, 2) if topic == clients.all_topic else 1):
                clients.on_step(Step.SEND)
                message = TransferMessage(topic, clients.number())
                transfer.sent.append(message)
                clients.send(producers[topic], message, number, transaction)
        clients.on_step(Step.REGISTER_SUBSCRIPTION)
        self._register_subscription(transaction)
        clients.on_step(Step.ACKNOWLEDGE)
        self._acknowledge(consumer, taken, transaction, since)
        transfer.taken = [message for _, message in taken]
        fate = rng.random()
        if fate > 0.97:
            return  # it times out
        clients.on_step(Step.END)
        if fate < 0.8:
            transfer.commit_asked = clients.tick()
        if self._end(transaction, commit=fate < 0.8) and fate < 0.8:
            transfer.committed = clients.tick()

    # --- the consumer

    def _take(self, consumer: RawClient, since: int) -> tuple[Position, TransferMessage]:
        while not self._given:
            self._on_frame(*consumer.receive(), since)
        consumer.flow(1)
        return self._given.popleft()

    def _on_frame(self, command: pb.BaseCommand, body: bytes, since: int) -> None:
        if command.type == C.MESSAGE:
            at = command.message.message_id
            message = TransferMessage(self._topic, int(bytes(parse_entry_body(body)[1])))
            self._clients.history.consumed.append(Seen(message, self._clients.tick(), since))
            self._given.append(((at.ledgerId, at.entryId), message))
        elif command.type == C.CLOSE_CONSUMER:
            raise ConnectionClosedError("consumer closed")

    def _acknowledge(
        self,
        consumer: RawClient,
        taken: Sequence[tuple[Position, TransferMessage]],
        transaction: tuple[int, int],
        since: int,
    ) -> None:
        command = C(type=C.ACK)
        ack = command.ack
        ack.consumer_id, ack.ack_type = 1, pb.CommandAck.Individual
        ack.txnid_most_bits, ack.txnid_least_bits = transaction
        for (ledger_id, entry_id), _ in taken:
            ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        ack.request_id = next(consumer.request_ids)
        consumer.send(command)
        while True:
            answer, body = consumer.receive()
            if answer.type == C.ACK_RESPONSE:
                break
            self._on_frame(answer, body, since)
        if answer.ackResponse.HasField("error"):
            raise RefusedError(f"acknowledge: {answer.ackResponse.message}")

    # --- the coordinator

    def _connect_coordinator(self, number: int) -> None:
        self._close_coordinator()
        assigned = "persistent://pulsar/system/transaction_coordinator_assign-partition-"
        client = self._clients.connect(f"{assigned}{number}")
        self._coordinator, self._coordinator_number = client, number
        command = C(type=C.TC_CLIENT_CONNECT_REQUEST)
        command.tcClientConnectRequest.request_id = next(client.request_ids)
        command.tcClientConnectRequest.tc_id = number
        client.send(command)
        answer = client.expect(C.TC_CLIENT_CONNECT_RESPONSE)[0].tcClientConnectResponse
        if answer.HasField("error"):
            self._close_coordinator()
            raise RefusedError(f"coordinator: {answer.message}")

    def _close_coordinator(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def _ask(self, command: pb.BaseCommand, kind: int, name: str) -> "pb.CommandNewTxnResponse":
        assert self._coordinator is not None
        self._coordinator.send(command)
        found, _ = self._coordinator.expect(kind)
        answer: pb.CommandNewTxnResponse = getattr(found, name)  # all of them have these fields
        if answer.HasField("error"):
            raise RefusedError(f"{name}: {answer.message}")
        return answer

    def _begin(self) -> tuple[int, int]:
        command = C(type=C.NEW_TXN)
        command.newTxn.request_id, command.newTxn.txn_ttl_millis = 1, _TIMEOUT_MS
        command.newTxn.tc_id = self._coordinator_number
        answer = self._ask(command, C.NEW_TXN_RESPONSE, "newTxnResponse")
        return answer.txnid_most_bits, answer.txnid_least_bits

    def _register_partitions(self, transaction: tuple[int, int]) -> None:
        command = C(type=C.ADD_PARTITION_TO_TXN)
        add = command.addPartitionToTxn
        add.request_id, add.txnid_most_bits, add.txnid_least_bits = (1, *transaction)
        add.partitions.extend(self._targets)
        self._ask(command, C.ADD_PARTITION_TO_TXN_RESPONSE, "addPartitionToTxnResponse")

    def _register_subscription(self, transaction: tuple[int, int]) -> None:
        command = C(type=C.ADD_SUBSCRIPTION_TO_TXN)
        add = command.addSubscriptionToTxn
        add.request_id, add.txnid_most_bits, add.txnid_least_bits = (1, *transaction)
        add.subscription.add(topic=self._topic, subscription=SUBSCRIPTION)
        self._ask(command, C.ADD_SUBSCRIPTION_TO_TXN_RESPONSE, "addSubscriptionToTxnResponse")

    def _end(self, transaction: tuple[int, int], *, commit: bool) -> bool:
        """Asks until it is answered.

        Returns:
            Whether it was done; else it has ended before, nobody says how.
        """
        command = C(type=C.END_TXN)
        end = command.endTxn
        end.request_id, end.txnid_most_bits, end.txnid_least_bits = (1, *transaction)
        end.txn_action = pb.COMMIT if commit else pb.ABORT
        for _ in range(600):
            try:
                if self._coordinator is None:
                    self._connect_coordinator(transaction[0])
                assert self._coordinator is not None
                self._coordinator.send(command)
                self._clients.on_step(Step.WAIT_FOR_END)
                answer = self._coordinator.expect(C.END_TXN_RESPONSE)[0].endTxnResponse
                if not answer.HasField("error"):
                    return True
                if answer.error in (pb.TransactionNotFound, pb.InvalidTxnStatus):
                    return False
            except _BROKEN:
                pass
            self._close_coordinator()
            time.sleep(0.1)
        raise AssertionError(f"transaction {transaction} never ends")
