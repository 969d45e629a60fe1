"""The buffer of a topic's transactions against a model, on random logs."""

import random
from dataclasses import dataclass, field

import pytest

from magnetar.broker.protocol.entry_header import FLAG_MARKER, make_header
from magnetar.broker.protocol.framing import encode_body
from magnetar.broker.protocol.pulsar_api_pb2 import MessageMetadata
from magnetar.broker.transaction import buffer as buffer_module
from magnetar.broker.transaction.buffer import TopicTransactionBuffer
from magnetar.broker.transaction.markers import (
    SEALED,
    SNAPSHOT,
    end_marker,
    snapshot_in,
    snapshot_marker,
)
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.position import EARLIEST, Position

LEDGER_ENTRIES = 40
COORDINATORS = 2


def message(transaction: TransactionId | None) -> tuple[bytes, bytes]:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    if transaction is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = transaction
    return make_header(metadata, 1), encode_body(metadata, b"x")


@dataclass
class Model:
    """A log, and what is true of its transactions."""

    entries: list[tuple[Position, bytes, bytes]] = field(default_factory=list)
    of: dict[Position, TransactionId] = field(default_factory=dict)
    ends: dict[TransactionId, bool] = field(default_factory=dict)
    open: list[TransactionId] = field(default_factory=list)
    begun: int = 0

    def store(self, entry: tuple[bytes, bytes]) -> Position:
        count = len(self.entries)
        position = (1 + count // LEDGER_ENTRIES, count % LEDGER_ENTRIES)
        self.entries.append((position, *entry))
        return position

    def step(self, rng: random.Random) -> None:
        draw = rng.random()
        if draw < 0.3:
            self.store(message(None))
        elif draw < 0.45 or not self.open:
            transaction = TransactionId(rng.randrange(COORDINATORS), self.begun)
            self.begun += 1
            self.open.append(transaction)
            self.of[self.store(message(transaction))] = transaction
        elif draw < 0.75:
            transaction = rng.choice(self.open)
            self.of[self.store(message(transaction))] = transaction
        else:
            transaction = self.open.pop(rng.randrange(len(self.open)))
            commit = rng.random() < 0.5
            self.ends[transaction] = commit
            self.store(end_marker(transaction, 1, commit=commit))

    def readable(self) -> Position:
        firsts = [at for at, name in self.of.items() if name not in self.ends]
        end = min(firsts, default=None)
        below = [at for at, _, _ in self.entries if end is None or at < end]
        return below[-1] if below else EARLIEST

    def aborted(self, first: Position = EARLIEST) -> set[Position]:
        return {at for at, name in self.of.items() if self.ends.get(name) is False and at >= first}


def batches(model: Model, after: Position, rng: random.Random) -> list[EntryBatch]:
    """What is behind a position, in runs as reads have them."""
    found = list[EntryBatch]()
    for (ledger_id, entry_id), head, body in model.entries:
        if (ledger_id, entry_id) <= after:
            continue
        if not found or found[-1].ledger_id != ledger_id or rng.random() < 0.3:
            found.append(EntryBatch(ledger_id, entry_id, [], []))
        found[-1].heads.append(head)
        found[-1].bodies.append(body)
    return found


def feed(buffer: TopicTransactionBuffer, model: Model, rng: random.Random) -> None:
    for batch in batches(model, buffer.noted, rng):
        buffer.on_entries(batch)


def left_out(buffer: TopicTransactionBuffer, model: Model, rng: random.Random) -> set[Position]:
    found = set[Position]()
    for batch in batches(model, EARLIEST, rng):
        if not buffer.is_plain((batch.ledger_id, batch.first)):
            found |= {(batch.ledger_id, batch.first + nth) for nth in buffer.aborted_in(batch)}
    return found


def check(
    buffer: TopicTransactionBuffer, model: Model, rng: random.Random, first: Position = EARLIEST
) -> None:
    assert buffer.readable == model.readable()
    assert list(buffer.open) == sorted(model.open, key=lambda x: list(model.of.values()).index(x))
    found = left_out(buffer, model, rng)
    assert {at for at in found if at >= first} == model.aborted(first)


def restored(model: Model, trimmed_to: int = 0) -> TopicTransactionBuffer:
    """As a load of the topic finds it."""
    snapshots = [snapshot_in(body) for _, _, body in model.entries]
    buffer = TopicTransactionBuffer(EARLIEST)
    newest = [found for found in snapshots if found is not None and found[0] == SNAPSHOT]
    if not newest:
        return buffer
    snapshot = newest[-1][1]
    stored = {at: body for at, _, body in model.entries}
    for at in zip(snapshot.sealedLedger, snapshot.sealedEntry, strict=True):
        if at[0] >= trimmed_to:
            found = snapshot_in(stored[at])
            assert found is not None
            assert found[0] == SEALED
            buffer.restore_sealed(at, found[1])
    buffer.restore(snapshot)
    return buffer


@pytest.mark.parametrize("seed", range(60))
def test_it_knows_what_is_open_and_what_was_aborted(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a buffer that begins with a snapshot, while parts of the log are trimmed."""
    rng = random.Random(seed)
    sealed_count = rng.choice((2, 5, 10_000))
    monkeypatch.setattr(buffer_module, "SEALED_COUNT", sealed_count)
    monkeypatch.setattr(buffer_module, "SNAPSHOT_ENTRIES", rng.choice((10, 30)))
    model, buffer, first_ledger, stored = Model(), TopicTransactionBuffer(EARLIEST), 0, 0
    late = list[tuple[int, tuple[bytes, bytes]]]()  # markers on their way: stored at that step
    for step in range(400):
        model.step(rng)
        if late and late[0][0] <= step:
            model.store(late.pop()[1])
        if rng.random() < 0.3:
            feed(buffer, model, rng)
            if not late and (due := buffer.due()) is not None:
                late.append((step + rng.randrange(5), snapshot_marker(due, 1)))
                stored += 1
        if rng.random() < 0.02:
            first_ledger = rng.randint(first_ledger, max(1, buffer.readable[0]))
            buffer.on_trimmed((first_ledger, 0))
        if rng.random() < 0.05:
            feed(buffer, model, rng)
            check(buffer, model, rng, (first_ledger, 0))
            fresh = restored(model, first_ledger)
            looked_at = sum(len(batch) for batch in batches(model, fresh.noted, rng))
            feed(fresh, model, rng)
            check(fresh, model, rng, (first_ledger, 0))
            assert first_ledger or fresh.aborted_total == buffer.aborted_total
            bound = 4 * (len(buffer.open) + 12) + 60
            assert looked_at <= bound or sealed_count == 10_000
    assert stored > 3


def test_a_late_entry_of_an_aborted_transaction_is_left_out() -> None:
    model, buffer = Model(), TopicTransactionBuffer(EARLIEST)
    name = TransactionId(0, 1)
    for entry in (message(name), end_marker(name, 1, commit=False), message(name), message(None)):
        model.store(entry)
    feed(buffer, model, random.Random(1))
    assert buffer.readable == (1, 3)
    assert left_out(buffer, model, random.Random(1)) >= {(1, 2)}
    assert buffer.has_ended(name)


def test_a_snapshot_keeps_the_largest_names() -> None:
    model, buffer = Model(), TopicTransactionBuffer(EARLIEST)
    names = [TransactionId(2**64 - 1, 2**64 - 1), TransactionId(15, 0)]
    for name in names:
        model.store(message(name))
        model.store(end_marker(name, 1, commit=False))
    feed(buffer, model, random.Random(1))
    snapshot = buffer.snapshot()
    assert snapshot is not None
    fresh = TopicTransactionBuffer(EARLIEST)
    fresh.restore(snapshot)
    assert all(map(fresh.is_aborted, names))
    assert not fresh.is_aborted(TransactionId(0, 2**64 - 1))


def test_what_comes_after_its_commit_is_ended_with_the_low_watermark() -> None:
    model, buffer = Model(), TopicTransactionBuffer(EARLIEST)
    name = TransactionId(0, 1)
    for entry in (message(name), end_marker(name, 1, commit=True), message(name), message(None)):
        model.store(entry)
    feed(buffer, model, random.Random(1))
    assert buffer.readable == (1, 1)
    assert buffer.on_finished(0, 0) is None
    assert buffer.on_finished(1, 5) is None
    assert buffer.on_finished(0, 1) == name
    model.store(end_marker(name, 1, commit=False))
    feed(buffer, model, random.Random(1))
    assert buffer.readable == (1, 4)


def test_other_markers_and_broken_entries_belong_to_no_transaction() -> None:
    buffer = TopicTransactionBuffer(EARLIEST)
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, marker_type=10)
    head = make_header(metadata, 0)
    assert head[3] & FLAG_MARKER
    buffer.on_entries(EntryBatch(3, 0, [head, head], [encode_body(metadata, b""), b"\x00\x01"]))
    assert (buffer.readable, buffer.open, buffer.aborted_total) == ((3, 1), {}, 0)


@pytest.mark.parametrize("most", [0, 15])
def test_ends_are_remembered_until_the_coordinator_has_passed_them(most: int) -> None:
    model, buffer = Model(), TopicTransactionBuffer(EARLIEST)
    names = [TransactionId(most, least) for least in range(20)]
    for name in names:
        model.store(message(name))
        model.store(end_marker(name, 1, commit=True))
    feed(buffer, model, random.Random(1))
    assert all(map(buffer.has_ended, names))
    assert not buffer.has_ended(TransactionId(most, 20))
    buffer.on_finished(most, 12)
    assert all(map(buffer.has_ended, names))
    assert list(buffer._committed) == names[13:]
