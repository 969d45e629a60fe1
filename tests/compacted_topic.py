"""A topic of a running server that goes through a history of `compaction_histories`.

Everything is asked frame by frame: a client would hide what it leaves out by itself.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests import raw_transactions
from tests.compaction_histories import (
    PRODUCERS,
    Begin,
    End,
    Entry,
    Model,
    Publish,
    Row,
    Step,
    publish_time_ms,
    rows_of,
)
from tests.interop.conftest import Admin
from tests.raw_client import Position, RawClient, encode_command
from tests.waiting import wait_until

C = pb.BaseCommand
_NONE: Final = 2**64 - 1
_PERMITS: Final = 1000
_RECEIVE_S: Final = 30.0
_TTL_MS: Final = 3_600_000
_EARLIEST: Final = pb.MessageIdData(ledgerId=_NONE, entryId=_NONE)


@dataclass(slots=True)
class View:
    """A consumer with ``readCompacted``.

    Attributes:
        next_rank: what it has not got yet begins here.
    """

    client: RawClient
    name: str
    next_rank: int = 0


@dataclass(slots=True)
class CompactedTopic:
    """Attributes:
    rng: which reads are made.
    """

    service_url: str
    admin: Admin
    name: str
    model: Model
    rng: random.Random
    connect: Mapping[str, Any] = field(default_factory=dict)
    positions: list[Position] = field(default_factory=list)
    _sequences: dict[str, int] = field(default_factory=dict)  # by name of the producer
    _last: bytes = b""  # the last SEND of the first producer that may be repeated
    _producing: RawClient | None = None
    _coordinator: RawClient | None = None
    _transactions: dict[int, tuple[int, int]] = field(default_factory=dict)
    _views: list[View] = field(default_factory=list)
    _made: int = 0
    _clients: list[RawClient] = field(default_factory=list)

    def run(self, steps: list[Step]) -> None:
        try:
            self._producer()  # makes the topic
            self._compact()  # nothing: from now on what isn't compacted isn't trimmed
            for step in steps:
                self._do(step)
        finally:
            for client in self._clients:
                client.close()

    def _do(self, step: Step) -> None:
        if isinstance(step, Publish):
            self._publish(step.entry)
        elif isinstance(step, Begin):
            begun = raw_transactions.begin(self._coordinators(), ttl_ms=_TTL_MS)
            self._transactions[step.transaction] = begun
        elif isinstance(step, End):
            self._end(step)
        else:
            getattr(self, f"_{step.what}")()

    # --- what is stored

    def _publish(self, entry: Entry) -> None:
        transaction = None
        if entry.transaction is not None:
            transaction = self._transactions[entry.transaction]
            client = self._coordinators()
            answer = raw_transactions.add_partitions(client, transaction, self.name)
            assert not answer.HasField("error"), answer
        number = PRODUCERS.index(entry.producer)
        first = self._sequences.get(entry.producer, -1)
        first += entry.chunk is None or entry.chunk[1] == 0  # parts have the same
        self._sequences[entry.producer] = first + len(entry.messages) - 1
        command = C(type=C.SEND)
        command.send.producer_id, command.send.sequence_id = number, first
        if entry.is_batch:
            command.send.highest_sequence_id = self._sequences[entry.producer]
        command.send.num_messages = len(entry.messages)
        if transaction is not None:
            command.send.txnid_most_bits, command.send.txnid_least_bits = transaction
        command.send.is_chunk = entry.chunk is not None
        body = entry.body(len(self.positions), first, transaction)
        frame = encode_command(command, body)
        message_id = self._sent(frame)
        assert message_id.entryId != _NONE, f"taken for a duplicate: {entry}"
        self.positions.append((message_id.ledgerId, message_id.entryId))
        self.model.entries.append(entry)
        if number == 0:
            self._last = b"" if entry.chunk is not None or transaction is not None else frame

    def _sent(self, frame: bytes) -> pb.MessageIdData:
        client = self._producer()
        client.send_bytes(frame)
        answer, _ = client.wait_for(lambda c: c.type in (C.SEND_RECEIPT, C.SEND_ERROR))
        assert answer.type == C.SEND_RECEIPT, answer
        return answer.send_receipt.message_id

    def _repeat(self) -> None:
        if self._last:
            assert self._sent(self._last).entryId == _NONE

    def _producer(self) -> RawClient:
        if self._producing is None:
            self._producing = client = self._connected()
            for number, name in enumerate(PRODUCERS):
                options = {"producer_name": name, "user_provided_producer_name": True}
                answer = client.create_producer(self.name, number, txn_enabled=True, **options)
                assert isinstance(answer, pb.CommandProducerSuccess), answer
            path = self.name.replace(
                "persistent://", "/admin/v3/transactions/transactionBufferStats/"
            )
            wait_until(lambda: "None" not in str(self.admin.call("GET", path)[1]))
        return self._producing

    def _connected(self, topic: str = "") -> RawClient:
        client = RawClient(self.service_url, connect=False, timeout_s=_RECEIVE_S)
        self._clients.append(client)
        client.connect(**self.connect)
        client.look_up(topic or self.name)
        return client

    def _coordinators(self) -> RawClient:
        if self._coordinator is None:
            self._coordinator = client = self._connected(raw_transactions.assigned(0))
            answer = raw_transactions.connect_to_coordinator(client)
            assert not answer.HasField("error"), answer
        return self._coordinator

    def _end(self, step: End) -> None:
        transaction = self._transactions.pop(step.transaction)
        answer = raw_transactions.end(self._coordinators(), transaction, commit=step.commits)
        assert not answer.HasField("error"), answer
        self.model.end_transaction(step.transaction, commits=step.commits)
        count = self.model.open_count
        wait_until(lambda: self._stats().get("ongoingTxnCount", 0) == count)

    # --- what an administrator does

    def _path(self, what: str) -> str:
        return f"{self.admin.topic_path(self.name)}/{what}"

    def _stats(self) -> dict[str, Any]:
        status, found = self.admin.call("GET", self._path("stats"))
        assert status == 200, found
        return dict(found)

    def _compact(self) -> None:
        self._drain()
        before = self._compacted_ledger()
        if self.model.as_pulsar:
            wait_until(lambda: self._is_compacted(before), lambda: f"{self._compacted()}")
        else:
            assert self._compacted() == {"status": "SUCCESS", "lastError": ""}
        self.model.compact()

    def _compacted(self) -> dict[str, str]:
        path = self._path("compaction")
        answer = self.admin.call("PUT", path)
        assert answer[0] == 204, answer
        wait_until(lambda: self.admin.call("GET", path)[1]["status"] != "RUNNING")
        return dict(self.admin.call("GET", path)[1])

    def _is_compacted(self, before: int) -> bool:
        """In Pulsar a run may fail, or see nothing new, while the topic comes back after it was
        unloaded; and a run is a success before its ledger is the topic's.
        """
        status = self._compacted()["status"]
        if not self.model.log(self.model.horizon):
            return status in ("SUCCESS", "NOT_RUN")
        return status == "SUCCESS" and self._compacted_ledger() != before

    def _internal_stats(self) -> dict[str, Any]:
        status, found = self.admin.call("GET", self._path("internalStats"))
        assert status == 200, found
        return dict(found)

    def _compacted_ledger(self) -> int:
        return int(self._internal_stats()["compactedLedger"]["ledgerId"])

    def _unload(self) -> None:
        self._drain()
        self._drop_connections()
        answer = self.admin.call("PUT", self._path("unload"))
        assert answer[0] == 204, answer

    def _restart(self) -> None:
        """Whether the run came to an end nobody knows. Pulsar isn't asked for one: its ledger may
        be the topic's some time after that was unloaded.
        """
        self._drain()
        if not self.model.as_pulsar:
            answer = self.admin.call("PUT", self._path("compaction"))
            assert answer[0] == 204, answer
        self._unload()

    def _trim(self) -> None:
        self._producer()  # the topic is loaded
        self.admin.call("POST", self._path("trim"))

    def _drop_connections(self) -> None:
        for view in self._views:
            view.client.close()
        if self._producing is not None:
            self._producing.close()
        self._views, self._producing = [], None

    # --- what is seen

    def _look(self) -> None:
        """Views from the beginning and from somewhere; what is open gets what it has not got."""
        self._drain()
        self._views.append(self._view(0, _EARLIEST))
        if self.positions:
            self._views.append(self._view_from_the_middle())
            self._seek()
        self._drain()
        while len(self._views) > 3:
            self._views.pop(0).client.close()

    def _view_from_the_middle(self) -> View:
        rank = self.rng.randrange(len(self.positions))
        ledger_id, entry_id = self.positions[rank]
        start = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
        if self.rng.random() < 0.5:
            start.batch_index = 0
        return self._view(rank, start)  # the entry comes once more, its client leaves it out

    def _view(self, first: int, start: pb.MessageIdData) -> View:
        self._made += 1
        view = View(self._connected(), f"view-{self._made}", first)
        self._subscribe(view, durable=False, start_message_id=start)
        self._check_last(view)
        view.client.flow(_PERMITS)
        self._receive(view, self.model.view(first), f"from {first}")
        return view

    def _subscribe(self, view: View, **options: Any) -> None:
        answer = view.client.subscribe(self.name, view.name, read_compacted=True, **options)
        assert isinstance(answer, pb.CommandSuccess), answer

    def _check_last(self, view: View) -> None:
        """What tells a client whether there is more."""
        command = C(type=C.GET_LAST_MESSAGE_ID)
        request = command.getLastMessageId
        request.consumer_id, request.request_id = 1, next(view.client.request_ids)
        view.client.send(command)
        answer, _ = view.client.wait_for(lambda c: c.HasField("getLastMessageIdResponse"))
        last = answer.getLastMessageIdResponse.last_message_id
        found = None
        if last.entryId != _NONE:
            rank = self.positions.index((last.ledgerId, last.entryId))
            found = (rank, last.batch_index)
        expected = self.model.last()
        assert found == expected, f"last {found}, not {expected}, up to {self.model.horizon}"

    def _seek(self) -> None:
        """A subscription is set to an entry, or to a time, and goes on after it was closed."""
        self._made += 1
        view = View(self._connected(), f"durable-{self._made}")
        self._subscribe(view, initialPosition=pb.CommandSubscribe.Earliest)
        first = rank = self.rng.randrange(len(self.positions))
        command = C(type=C.SEEK)
        command.seek.consumer_id, command.seek.request_id = 1, next(view.client.request_ids)
        has_markers = any(entry.transaction is not None for entry in self.model.entries)
        if self.rng.random() < 0.3 and not has_markers:  # their times are those of the clock
            command.seek.message_publish_time = publish_time_ms(rank)
        else:
            ledger_id, entry_id = self.positions[rank]
            command.seek.message_id.CopyFrom(pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id))
        # Times are looked for in the log: before its first entry is the beginning of the view.
        is_by_time = command.seek.HasField("message_publish_time")
        ledgers = self._internal_stats()["ledgers"]
        if rank == 0 or self.positions[rank - 1][0] < ledgers[0]["ledgerId"]:
            first = 0 if is_by_time else rank
        view.client.send(command)
        answer, _ = view.client.wait_for(lambda c: c.type in (C.SUCCESS, C.ERROR))
        assert answer.type == C.SUCCESS, answer
        view.client.close()
        view.client, view.next_rank = self._connected(), first
        wait_until(lambda: not self._stats()["subscriptions"][view.name]["consumers"])
        self._subscribe(view)
        view.client.flow(_PERMITS)
        what = f"after a seek {is_by_time=} to {rank}"
        self._receive(view, self.model.view(first), what)
        view.client.close()
        self.admin.call("DELETE", self._path(f"subscription/{view.name}?force=true"))

    def _drain(self) -> None:
        for view in self._views:
            self._receive(view, self.model.log(view.next_rank), "live")

    def _receive(self, view: View, expected: list[Row], what: str) -> None:
        found: list[Row] = []
        while len(found) < len(expected):
            try:
                command, body = view.client.receive(_RECEIVE_S)
            except TimeoutError:
                break
            if command.type == C.MESSAGE:
                message_id = command.message.message_id
                rank = self.positions.index((message_id.ledgerId, message_id.entryId))
                # Pulsar may begin before the id that a seek names; clients leave that out.
                if rank >= view.next_rank or not self.model.as_pulsar:
                    found += rows_of(rank, body)
        assert found == expected, f"{view.name} {what}\n{_difference(found, expected)}"
        view.next_rank = max(view.next_rank, self.model.end())


def _difference(found: list[Row], expected: list[Row]) -> str:
    more = [f"+ {row}" for row in found if row not in expected]
    return "\n".join(more + [f"- {row}" for row in expected if row not in found])
