"""Transfers between topics by the cores of transactions: coordinator, buffers, acknowledgements.

Between them messages are lost, late and repeated; each of them ends at any step, with what it had
stored and any beginning of what it was storing. The history is for ``broker/verify/transfers.py``.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final

from magnetar.broker.errors import (
    BrokerError,
    InvalidTransactionStatusError,
    NotAllowedError,
    ServiceNotReadyError,
    TransactionNotFoundError,
)
from magnetar.broker.protocol.entry_header import FLAG_MARKER, make_header
from magnetar.broker.protocol.framing import encode_body, parse_entry_body
from magnetar.broker.protocol.pulsar_api_pb2 import MessageMetadata
from magnetar.broker.transaction.buffer import TopicTransactionBuffer
from magnetar.broker.transaction.coordinator import (
    Answer,
    AppendEntry,
    Coordinator,
    EndParticipants,
    Trim,
)
from magnetar.broker.transaction.markers import SNAPSHOT, end_marker, snapshot_in, snapshot_marker
from magnetar.broker.transaction.pending_acks import (
    AcknowledgeCommitted,
    AppendRecord,
    EndApplied,
    PendingAck,
    PendingAcks,
    RedeliverAborted,
    StoreCursor,
    TrimPendingAckLog,
)
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.broker.transaction.transaction_records_pb2 import PendingAckRecord
from magnetar.broker.transaction.view import TransactionView
from magnetar.broker.verify.transfers import (
    FoundAnomaly,
    Seen,
    Sending,
    Transfer,
    TransferHistory,
    TransferMessage,
    check_transfers,
)
from magnetar.managed_ledger.cursor.ack_state import AckState, mask_to_words
from magnetar.managed_ledger.entry_batch import EntryBatch
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.position import Position

STEPS: Final = 2500
TTL_MS: Final = 600
_LEDGER: Final = 1
_LOG: Final = LedgerOffsets([(_LEDGER, 100_000)])
_PENDING_LOG: Final = 9
_TOPICS: Final = ("a", "b", "c")
_ALL: Final = "all"
_TICKS_MAX: Final = 100_000
_NONE: Final = TransactionId(0, 0)

Reply = Callable[[object], None]


class TransferWorld:
    """All of it; a test calls ``run``."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.history = TransferHistory()
        self.tick = itertools.count().__next__
        self.number = itertools.count().__next__
        self.now_ms = 1000
        self.is_calm = False
        self.wire: list[Callable[[], None]] = []
        self.topics = {name: SimulatedTopic(self, name) for name in (*_TOPICS, _ALL)}
        self.coordinator = SimulatedCoordinator(self)
        self.clients = [
            SimulatedClient(self, name, (_TOPICS[(place + 1) % 3], _ALL))
            for place, name in enumerate(_TOPICS)
        ]
        self._read = 0
        self.history.readers["reader"] = []

    def post(self, call: Callable[[], None]) -> None:
        """A message on its way."""
        if not self.is_calm and self.rng.random() < 0.02:
            return
        self.wire.append(call)
        if not self.is_calm and self.rng.random() < 0.03:
            self.wire.append(call)

    def run(self) -> list[FoundAnomaly]:
        for _ in range(STEPS):
            self.step()
        self.heal()
        return check_transfers(self.history)

    def step(self) -> None:
        self.now_ms += self.rng.randrange(3)
        kinds = (self._deliver, self._act, self._store, self._tick, self.read)
        self.rng.choices(kinds, (12, 6, 12, 1, 1))[0]()
        if not self.is_calm and self.rng.random() < 0.01:
            self._crash()

    def _deliver(self) -> None:
        if self.wire:
            near = 3 if self.is_calm or self.rng.random() < 0.95 else len(self.wire)
            self.wire.pop(self.rng.randrange(min(near, len(self.wire))))()

    def _act(self) -> None:
        self.rng.choice(self.clients).act()

    def _store(self) -> None:
        self.rng.choice([self.coordinator.store, *(x.store for x in self.topics.values())])()

    def _tick(self) -> None:
        self.coordinator.on_tick()

    def _crash(self) -> None:
        crashes = [self.coordinator.crash, *(x.crash for x in self.topics.values())]
        self.rng.choice([*crashes, *(x.begin_anew for x in self.clients)])()

    def read(self) -> None:
        for entry_id, message in self.topics[_ALL].readable():
            if entry_id >= self._read:
                self.history.readers["reader"].append(Seen(message, self.tick()))
                self._read = entry_id + 1

    # --- the end

    def heal(self) -> None:
        """Nothing fails any more; what is open times out, and a last message comes everywhere."""
        self.is_calm = True
        self.now_ms += 10 * TTL_MS
        for _ in range(2000):  # what other transactions have left behind ends with later ones
            self.step()
        for client in self.clients:
            client.stops = True
        while self.wire or len(self.coordinator.core) or any(x.is_busy for x in self.clients):
            self.step()
            assert self.tick() < _TICKS_MAX, "it never comes to an end"
        for name, topic in self.topics.items():
            last = TransferMessage(name, self.number())
            sending = self.history.sendings[last] = Sending(self.tick())
            topic.send(last, None, lambda _: None)
            for _ in range(5):
                topic.store()
            sending.receipt = self.tick()
            messages = [message for _, message in topic.readable()]
            is_whole = last in messages and not topic.has_pending
            self.history.final[name] = messages if is_whole else None
            if name != _ALL:
                topic.begin_session()
                left = iter(topic.next_message, None)
                self.history.left[name] = {message for _, message in left}


# --- a topic and its subscription


class SimulatedTopic:
    def __init__(self, world: TransferWorld, name: str) -> None:
        self._world, self.name = world, name
        self._heads: list[bytes] = []
        self._bodies: list[bytes | memoryview] = []
        self._records: list[PendingAckRecord] = []
        self._first_record = 0
        self._cursor_image = deepcopy(AckState(_LOG, (_LEDGER, -1)).image())
        self._load()

    def _load(self) -> None:
        self.appends = deque[tuple[bytes, bytes, Callable[[], None]]]()
        self._ends: dict[TransactionId, list[Callable[[], None]]] = {}
        self._is_storing_snapshot = False
        self.buffer = TopicTransactionBuffer((_LEDGER, -1))
        self._restore()
        self._look()
        self._cursor = AckState(_LOG, (_LEDGER, -1))
        self._cursor.adopt(deepcopy(self._cursor_image))
        self._recording = deque[PendingAckRecord]()
        self._recorded = 0
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._ending: list[tuple[int, Callable[[], None]]] = []
        self._is_storing_cursor = False
        self._acks = PendingAcks(self._cursor, self._cursor.mark_delete)
        for number in range(self._first_record, len(self._records)):
            self._acks.replay(self._records[number], (_PENDING_LOG, number))
            while self._acks.is_applying:
                self._acks.apply_more()
        self._acks.on_replayed()
        self.begin_session()
        self._perform()

    def _restore(self) -> None:
        for body in reversed(self._bodies):
            found = snapshot_in(body)
            if found is None or found[0] != SNAPSHOT:
                continue
            for at in zip(found[1].sealedLedger, found[1].sealedEntry, strict=True):
                sealed = snapshot_in(self._bodies[at[1]])
                assert sealed is not None
                self.buffer.restore_sealed(at, sealed[1])
            self.buffer.restore(found[1])
            return

    def _look(self) -> None:
        first = self.buffer.noted[1] + 1
        if first < len(self._heads):
            self.buffer.on_entries(
                EntryBatch(_LEDGER, first, self._heads[first:], self._bodies[first:])
            )
        if not self._is_storing_snapshot and (due := self.buffer.due()) is not None:
            self._is_storing_snapshot = True
            self.appends.append((*snapshot_marker(due, 1), self._snapshot_stored))

    def _snapshot_stored(self) -> None:
        self._is_storing_snapshot = False

    def crash(self) -> None:
        """What was under way is stored or not, and nobody is told."""
        for _ in range(self._world.rng.randint(0, len(self.appends))):
            head, body, _ = self.appends.popleft()
            self._heads.append(head)
            self._bodies.append(body)
        for _ in range(self._world.rng.randint(0, len(self._recording))):
            self._records.append(self._recording.popleft())
        self._load()

    def store(self) -> None:
        """The oldest entry, record, and cursor that are to be stored."""
        if self.appends:
            head, body, stored = self.appends.popleft()
            self._heads.append(head)
            self._bodies.append(body)
            self._look()
            stored()
            self._look()
        if self._acks.is_applying and self._world.rng.random() < 0.5:
            self._acks.apply_more()
            self._perform()
        elif self._recording:
            self._records.append(self._recording.popleft())
            self._recorded += 1
            self._acks.on_recorded((_PENDING_LOG, len(self._records) - 1))
            self._perform()
            for number, done in [x for x in self._waiting if x[0] <= self._recorded]:
                self._waiting.remove((number, done))
                done()
        elif self._is_storing_cursor:
            self._is_storing_cursor = False
            self._cursor_image = deepcopy(self._cursor.image())
            self._acks.on_cursor_stored(stored=True)
            self._perform()

    # --- messages

    def send(self, message: TransferMessage, name: TransactionId | None, reply: Reply) -> None:
        if name is not None and (name in self._ends or self.buffer.has_ended(name)):
            reply(NotAllowedError("it has ended"))
            return
        metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        if name is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = name
        payload = b"%d" % message.number
        entry = make_header(metadata, len(payload)), encode_body(metadata, payload)
        self.appends.append((*entry, lambda: reply(None)))

    def end(
        self, name: TransactionId, low_watermark: int, done: Callable[[], None], *, commit: bool
    ) -> None:
        """As ``TopicTransactions.end`` does."""

        def go_on() -> None:
            late = self.buffer.on_finished(name.most, low_watermark)
            if late is None:
                done()
            else:
                self._end_once(late, go_on, commit=False)

        self._end_once(name, go_on, commit=commit)

    def _end_once(self, name: TransactionId, done: Callable[[], None], *, commit: bool) -> None:
        if (waiting := self._ends.get(name)) is not None:
            waiting.append(done)
            return
        if name not in self.buffer.open and self.buffer.has_ended(name):
            done()
            return
        self._ends[name] = [done]

        def stored() -> None:
            for each in self._ends.pop(name):
                each()

        self.appends.append((*end_marker(name, 1, commit=commit), stored))

    def readable(self) -> list[tuple[int, TransferMessage]]:
        """What consumers may see."""
        batch = TransactionView(self, self.buffer)._visible(self._batch())  # type: ignore[arg-type] # of the log it asks nothing
        if batch is None:
            return []
        return [
            (number, TransferMessage(self.name, int(bytes(parse_entry_body(body)[1]))))
            for number, (head, body) in enumerate(zip(batch.heads, batch.bodies, strict=True))
            if not head[3] & FLAG_MARKER
        ]

    def _batch(self) -> EntryBatch:
        return EntryBatch(_LEDGER, 0, [*self._heads], [*self._bodies])

    # --- the subscription

    @property
    def has_pending(self) -> bool:
        """Whether acknowledgements wait for the end of a transaction."""
        return bool(self._acks.transactions)

    def begin_session(self) -> None:
        """Its consumer connects."""
        self.since = self._world.tick()
        self._given: set[int] = set()

    def next_message(self) -> tuple[Position, TransferMessage] | None:
        for number, message in self.readable():
            at = (_LEDGER, number)
            if number in self._given or self._cursor.is_acked(at):
                continue
            if not self._acks.withheld_in(_LEDGER, number, 1):
                self._given.add(number)
                return at, message
        return None

    def acknowledge(self, positions: list[Position], name: TransactionId, reply: Reply) -> None:
        try:
            number = self._acks.acknowledge(name, [PendingAck(at) for at in positions])
        except BrokerError as error:
            reply(error)
            return
        self._waiting.append((number, lambda: reply(None)))
        self._perform()

    def end_acknowledgements(
        self, name: TransactionId, low_watermark: int, done: Callable[[], None], *, commit: bool
    ) -> None:
        number = self._acks.end(name, commit=commit, low_watermark=low_watermark)
        if number:
            self._ending.append((number, done))
        self._perform()
        if not number:
            done()

    def _perform(self) -> None:
        ended: list[int] = []
        for effect in self._acks.take_effects():
            match effect:
                case AppendRecord(record):
                    self._recording.append(record)
                case AcknowledgeCommitted(individual, _):
                    for ack in individual:
                        self._cursor.ack_batch(ack.position, mask_to_words(ack.left))
                case RedeliverAborted(positions):
                    self._given.difference_update(entry_id for _, entry_id in positions)
                case EndApplied(number):
                    ended.append(number)
                case StoreCursor():
                    self._is_storing_cursor = True
                case TrimPendingAckLog(upto):
                    self._first_record = upto[1] + 1
        for number, done in [x for x in self._ending if x[0] in ended]:
            self._ending.remove((number, done))
            done()


# --- the coordinator


class SimulatedCoordinator:
    def __init__(self, world: TransferWorld) -> None:
        self._world = world
        self._log: list[bytes] = []
        self._first = 0
        self._load()

    def _load(self) -> None:
        self._appends = deque[bytes]()
        self._ends: dict[int, tuple[EndParticipants, set[object]]] = {}
        self.core = Coordinator(0)
        for number in range(self._first, len(self._log)):
            self.core.replay(self._log[number], (0, number))
        self.core.start()
        self.perform()

    def crash(self) -> None:
        for _ in range(self._world.rng.randint(0, len(self._appends))):
            self._log.append(self._appends.popleft())
        self.core.fail(ServiceNotReadyError("it is opened again"))
        self.perform()
        self._load()

    def store(self) -> None:
        if self._appends:
            self._log.append(self._appends.popleft())
            self.core.on_appended((0, len(self._log) - 1))
            self.perform()

    def on_tick(self) -> None:
        """Time-outs, and the ends that participants haven't answered."""
        due_ms = self.core.next_deadline_ms()
        if due_ms is not None and due_ms <= self._world.now_ms:
            self.core.on_tick(self._world.now_ms)
            self.perform()
        for effect, left in self._ends.values():
            self._send_ends(effect, left)

    def perform(self) -> None:
        for effect in self.core.take_effects():
            match effect:
                case AppendEntry(entry):
                    self._appends.append(entry)
                case Answer(request, result):
                    assert callable(request)
                    request(result)
                case EndParticipants():
                    left: set[object] = {*effect.partitions, *effect.subscriptions}
                    self._ends[effect.transaction.least] = effect, left
                    self._send_ends(effect, left)
                case Trim(before):
                    self._first = before[1]

    def _send_ends(self, effect: EndParticipants, left: set[object]) -> None:
        core, world = self.core, self._world
        for participant in sorted(left, key=str):

            def done(participant: object = participant) -> None:
                world.post(lambda: self._on_done(core, effect.transaction.least, participant))

            def end(participant: object = participant, done: Callable[[], None] = done) -> None:
                name, low = effect.transaction, effect.low_watermark
                if isinstance(participant, tuple):
                    topic = world.topics[participant[0]]
                    topic.end_acknowledgements(name, low, done, commit=effect.commits)
                else:
                    world.topics[str(participant)].end(name, low, done, commit=effect.commits)

            world.post(end)

    def _on_done(self, core: Coordinator, sequence: int, participant: object) -> None:
        if core is self.core and sequence in self._ends:
            left = self._ends[sequence][1]
            left.discard(participant)
            if not left:
                del self._ends[sequence]
                core.on_participants_done(sequence)
                self.perform()


# --- clients


@dataclass
class SimulatedClient:
    """Takes from one topic; one transfer at a time, step by step, each when the last is answered.

    An end is asked for until it is answered. Whatever else is refused, or not answered for long,
    is given up, and times out.
    """

    world: TransferWorld
    source: str
    targets: tuple[str, ...]
    stops: bool = False
    _steps: deque[Callable[[], None]] = field(default_factory=deque)
    _waiting: int | None = None  # number of the request
    _again: Callable[[], None] | None = None
    _patience: int = 0
    _name: TransactionId = _NONE

    @property
    def is_busy(self) -> bool:
        return bool(self._steps) or self._waiting is not None

    def begin_anew(self) -> None:
        """Another process in its place."""
        self.world.topics[self.source].begin_session()
        self._give_up()

    def _give_up(self) -> None:
        self._steps.clear()
        self._waiting = self._again = None

    def act(self) -> None:
        if self._waiting is not None:
            self._patience -= 1
            if self._patience <= 0:
                self._waiting = None
                if self._again is None:
                    self._give_up()
                else:
                    self._again()
        elif self._steps:
            self._steps.popleft()()
        elif not self.stops:
            self._begin()

    def _begin(self) -> None:
        world, topic = self.world, self.world.topics[self.source]
        self._send(self.source, None, None)
        taken = topic.next_message()
        if taken is None:
            return
        world.history.consumed.append(Seen(taken[1], world.tick(), topic.since))
        number = world.number()
        transfer = world.history.transfers[number] = Transfer()
        self._steps.append(self._new)
        self._steps.append(lambda: self._register(partitions=True))
        for target in self.targets:
            self._steps.append(lambda target=target: self._send(target, number, transfer))  # type: ignore[misc]
        self._steps.append(lambda: self._register(partitions=False))
        self._steps.append(lambda: self._acknowledge(taken, transfer))
        commit = world.rng.random() < 0.7
        self._steps.append(lambda: self._end(transfer, commit=commit))

    def _ask(self, call: Callable[[Reply], None], answered: Callable[[object], None]) -> None:
        """The answer of another request than the last one comes too late."""
        request = self._waiting = self.world.number()
        self._patience = 60

        def reply(result: object) -> None:
            self.world.post(lambda: arrive(result))

        def arrive(result: object) -> None:
            if self._waiting == request:
                self._waiting = None
                answered(result)

        self.world.post(lambda: call(reply))

    def _go_on(self, result: object) -> None:
        if isinstance(result, BrokerError):
            self._give_up()

    def _new(self) -> None:
        def answered(result: object) -> None:
            self._go_on(result)
            if isinstance(result, TransactionId):
                self._name = result

        self._ask(
            lambda reply: self._at_coordinator("new", reply, self.world.now_ms, TTL_MS), answered
        )

    def _at_coordinator(self, what: str, *arguments: object, **more: object) -> None:
        getattr(self.world.coordinator.core, what)(*arguments, **more)
        self.world.coordinator.perform()

    def _register(self, *, partitions: bool) -> None:
        sequence = self._name.least

        def call(reply: Reply) -> None:
            if partitions:
                self._at_coordinator("add_partitions", reply, sequence, self.targets)
            else:
                pairs = [(self.source, "transfers")]
                self._at_coordinator("add_subscriptions", reply, sequence, pairs)

        self._ask(call, self._go_on)

    def _send(self, target: str, number: int | None, transfer: Transfer | None) -> None:
        """It comes once or not at all: nobody sends messages again here."""
        world = self.world
        message = TransferMessage(target, world.number())
        sending = world.history.sendings[message] = Sending(world.tick(), None, number)
        name = None if transfer is None else self._name
        if transfer is not None:
            transfer.sent.append(message)
        is_sent = False

        def call(reply: Reply) -> None:
            nonlocal is_sent
            if not is_sent:
                is_sent = True
                world.topics[target].send(message, name, reply)

        def answered(result: object) -> None:
            self._go_on(result)
            if result is None:
                sending.receipt = world.tick()

        self._ask(call, answered)

    def _acknowledge(self, taken: tuple[Position, TransferMessage], transfer: Transfer) -> None:
        topic, name = self.world.topics[self.source], self._name

        def answered(result: object) -> None:
            self._go_on(result)
            if result is None:
                transfer.taken.append(taken[1])

        self._ask(lambda reply: topic.acknowledge([taken[0]], name, reply), answered)

    def _end(self, transfer: Transfer, *, commit: bool) -> None:
        sequence = self._name.least
        if commit and transfer.commit_asked is None:
            transfer.commit_asked = self.world.tick()
        self._again = lambda: self._end(transfer, commit=commit)

        def answered(result: object) -> None:
            over = TransactionNotFoundError | InvalidTransactionStatusError
            if isinstance(result, BrokerError) and not isinstance(result, over):
                self._steps.append(lambda: self._end(transfer, commit=commit))
                return
            self._again = None
            if commit and isinstance(result, TransactionId):
                transfer.committed = self.world.tick()

        self._ask(
            lambda reply: self._at_coordinator("end", reply, sequence, commits=commit), answered
        )
