"""A coordinator whose process ends at any step, and whose appends are lost or in doubt.

A log keeps what was stored, and of the rest any beginning. Participants remember which end they
were told. Replay one seed: MAGNETAR_SEED=41 MAGNETAR_SEEDS=1 pytest <this file>
"""

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Final

import pytest

from magnetar.broker.errors import (
    BrokerError,
    InvalidTransactionStatusError,
    ServiceNotReadyError,
    TransactionNotFoundError,
)
from magnetar.broker.transaction import coordinator as product
from magnetar.broker.transaction import transaction_records_pb2 as pb
from magnetar.broker.transaction.coordinator import (
    Answer,
    AppendEntry,
    Coordinator,
    EndParticipants,
    Trim,
)
from magnetar.broker.transaction.coordinator_records import entry_records, in_groups
from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.position import Position
from tests.simulation.plant import Plant, planted
from tests.simulation.simulator import seeds

STEPS: Final = 600
OPEN_MAX: Final = 8
REPLAY_MIN: Final = 20
REPLAYED_MAX: Final = 2 * max(REPLAY_MIN, product.REPLAY_FACTOR * OPEN_MAX)
"""Twice: what is copied, and appends and trims that a crash has lost."""
TTL_MS: Final = 2000
LONG_MS: Final = 1_000_000
COMMITTED: Final = (pb.TransactionRecord.COMMITTING, pb.TransactionRecord.COMMITTED)


def small(plant: Plant) -> None:
    """Limits of the product that a short run reaches."""
    plant.set(product, "REPLAY_MIN", REPLAY_MIN)
    plant.set(product, "_TRIM_STEP", 3)
    plant.set(product, "TIMEOUTS_A_TURN", 2)
    plant.set(product, "SEQUENCES_AHEAD", 6)


@dataclass(frozen=True)
class Asked:
    """``what``: "new", "add" or "end"."""

    what: str
    sequence: int = -1
    participant: object = None
    commits: bool = False


@dataclass
class Known:
    """What clients and participants know of one transaction."""

    participants: set[object] = field(default_factory=set)  # whose addition was answered
    told: set[bool] = field(default_factory=set)  # which ends they were told
    have: set[object] = field(default_factory=set)  # participants that have it


class CoordinatorWorld:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1000
        self.is_healing = False
        self.log: list[bytes] = []
        self.kept = [0]  # entries in front aren't replayed; the last ones that were asked for
        self.decided = defaultdict[int, set[bool]](set)  # what stored records say of the end
        self.known: dict[int, Known] = {}  # by sequence: answered to a client
        self.forgotten = set[int]()  # answered, but a crash came before the record
        self.all = defaultdict[int, Known](Known)
        self.asked: dict[int, Asked] = {}
        self.requests = 0
        self._start(0)

    def _start(self, first: int) -> None:
        self.core = Coordinator(0, OPEN_MAX)
        self.appends: deque[AppendEntry] = deque()
        self.ends: dict[int, tuple[EndParticipants, set[object]]] = {}
        for at in range(first, len(self.log)):
            self.core.replay(self.log[at], (0, at))
        assert len(self.log) - first < REPLAYED_MAX, "a replay reads too much"
        self.core.start()
        self._run()

    # --- what happens

    def step(self) -> None:
        self.now_ms += self.rng.randrange(20)
        kinds = (self._new, self._add, self._end, self._tick, self._store, self._participate)
        weights = (2, 3, 2, 2, 12, 12)
        self.rng.choices(kinds, weights)[0]()
        self._run()
        if self.rng.random() < 0.01:
            self.crash()

    def crash(self) -> None:
        while self.appends and self.rng.random() < 0.6:  # stored, and nobody was told
            several = [self.appends.popleft().entry for _ in range(self._some_appends())]
            for entry, _ in in_groups(several):
                self._keep(entry)
        self.core.fail(ServiceNotReadyError("the coordinator is being opened again"))
        self._run()
        self.asked.clear()
        self._forget()
        self._start(self.rng.choice(self.kept[-2:]))

    def _forget(self) -> None:
        """New transactions may go, but nothing that was done in one."""
        records = [record for entry in self.log for record in entry_records(entry)]
        begun = {x.leastBits for x in records if x.operation == pb.TransactionRecord.NEW}
        for sequence in self.known.keys() - begun:
            assert not self.known.pop(sequence).participants, f"{sequence} is forgotten"
            self.forgotten.add(sequence)

    def heal(self) -> None:
        """No more failures: all that are open time out, and all get their end."""
        self.is_healing = True
        self.now_ms += 10 * LONG_MS
        for _ in range(10_000):
            self.now_ms += 100
            if not (self.appends or self.ends or self.core.next_deadline_ms() is not None):
                break
            self._tick()
            self._store()
            self._participate()
            self._run()
        assert len(self.core) == 0, "a transaction never ends"
        assert not self.asked, f"not answered: {self.asked}"
        for sequence, known in self.known.items():
            assert known.participants <= known.have, f"{sequence} is forgotten"
            assert len(self.decided[sequence]) == 1, f"{sequence} has no end"

    def _ask(self, asked: Asked) -> int:
        self.requests += 1
        self.asked[self.requests] = asked
        return self.requests

    def _any(self) -> int:
        return self.rng.choice(list(self.known)[-OPEN_MAX:] or [0])

    def _new(self) -> None:
        if len(self.core) == OPEN_MAX:
            self.core.new(-1, self.now_ms, TTL_MS)  # there is no answer
            return
        ttl_ms = LONG_MS if self.rng.random() < 0.05 else self.rng.choice((-5, TTL_MS))
        self.core.new(self._ask(Asked("new")), self.now_ms, ttl_ms)

    def _add(self) -> None:
        sequence, name = self._any(), self.rng.choice("abc")
        if self.rng.random() < 0.5:
            request = self._ask(Asked("add", sequence, name))
            self.core.add_partitions(request, sequence, [name])
        else:
            request = self._ask(Asked("add", sequence, (name, "s")))
            self.core.add_subscriptions(request, sequence, [(name, "s")])

    def _end(self) -> None:
        sequence, commits = self._any(), self.rng.random() < 0.7
        request = self._ask(Asked("end", sequence, commits=commits))
        self.core.end(request, sequence, commits=commits)

    def _tick(self) -> None:
        due_ms = self.core.next_deadline_ms()
        if due_ms is not None and due_ms <= self.now_ms:
            self.core.on_tick(self.now_ms)

    def _store(self) -> None:
        """Sometimes several of them in one entry, as the shell appends them."""
        several = [self.appends.popleft().entry for _ in range(self._some_appends())]
        for entry, count in in_groups(several) if several else ():
            self._keep(entry)
            self.core.on_appended((0, len(self.log) - 1), count)

    def _some_appends(self) -> int:
        return min(len(self.appends), self.rng.choice((1, 1, 2, 4)))

    def _keep(self, entry: bytes) -> None:
        self.log.append(entry)
        for record in entry_records(entry):
            if record.operation == pb.TransactionRecord.UPDATE:
                self.decided[record.leastBits].add(record.newStatus in COMMITTED)
                both = len(self.decided[record.leastBits]) == 2
                assert not both, "committed and aborted"

    def _participate(self) -> None:
        if not self.ends:
            return
        sequence = self.rng.choice(list(self.ends))
        _, rest = self.ends[sequence]
        participant = self.rng.choice(sorted(rest, key=str))
        if not self.is_healing and self.rng.random() < 0.1:
            del self.ends[sequence]
            self.core.on_participants_failed(sequence, self.now_ms)
            return
        rest.discard(participant)
        self.all[sequence].have.add(participant)
        if not rest:
            del self.ends[sequence]
            self.core.on_participants_done(sequence)

    # --- what is seen of it

    def _run(self) -> None:
        for effect in self.core.take_effects():
            match effect:
                case AppendEntry():
                    self.appends.append(effect)
                case EndParticipants():
                    self._told(effect)
                case Answer(request, result):
                    assert isinstance(request, int)
                    self._answered(self.asked.pop(request), result)
                case Trim(before):
                    self._trimmed(before)
        if all(append.may_wait for append in self.appends):
            waiting = {each.what for each in self.asked.values()} - {"end"}
            assert not waiting, f"an answer waits for what may wait: {waiting}"

    def _trimmed(self, before: Position) -> None:
        assert before[1] < len(self.log), "the last entry isn't kept"
        self.kept.append(before[1])

    def _told(self, effect: EndParticipants) -> None:
        sequence = effect.transaction.least
        known = self.all[sequence]
        participants: set[object] = {*effect.partitions, *effect.subscriptions}
        assert known.participants <= participants, "a participant is forgotten"
        assert self.decided[sequence] == {effect.commits}, "an end that isn't stored"
        known.told.add(effect.commits)
        assert len(known.told) == 1, "participants commit and abort"
        unfinished = [each for each in self.known if not self._has_ended(each)]
        assert all(each > effect.low_watermark for each in unfinished), "the low watermark"
        self.ends[sequence] = effect, set(participants)

    def _has_ended(self, sequence: int) -> bool:
        return bool(self.decided[sequence]) and (
            self.all[sequence].participants <= self.all[sequence].have
        )

    def _answered(self, asked: Asked, result: TransactionId | BrokerError) -> None:
        sequence = asked.sequence
        if isinstance(result, TransactionNotFoundError):
            never = sequence not in self.all
            assert never or sequence in self.forgotten or self._has_ended(sequence), (
                f"{sequence} is forgotten"
            )
        elif isinstance(result, InvalidTransactionStatusError):
            assert self.decided[sequence], "refused for an end that isn't stored"
            if asked.what == "end":
                assert self.decided[sequence] == {not asked.commits}, "its own end is refused"
        elif isinstance(result, BrokerError):
            return
        elif asked.what == "new":
            assert result.least not in self.all, "a sequence is given twice"
            self.known[result.least] = self.all[result.least]
        elif asked.what == "add":
            assert not self.decided[sequence] or self._is_in_log(asked), "added behind the end"
            self.all[sequence].participants.add(asked.participant)
            assert self._is_in_log(asked), "an answer isn't stored"
        else:
            assert self.decided[sequence] == {asked.commits}, "the wrong end"
            assert self._has_ended(sequence), "answered before the participants have it"

    def _is_in_log(self, asked: Asked) -> bool:
        for entry in self.log:
            for record in entry_records(entry):
                names = {(x.topic, x.subscription) for x in record.subscriptions}
                known = names.union(record.partitions)
                if record.leastBits == asked.sequence and asked.participant in known:
                    return True
        return False


def run_world(seed: int) -> CoordinatorWorld:
    with planted(small):
        world = CoordinatorWorld(seed)
        for _ in range(STEPS):
            world.step()
        world.heal()
    return world


@pytest.mark.parametrize("seed", seeds(40))
def test_whatever_crashes_transactions_end_in_one_way(seed: int) -> None:
    world = run_world(seed)
    assert len(world.known) > 10
    assert len(world.kept) > 5
