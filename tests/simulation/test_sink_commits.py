"""The exactly-once sink's drivers, killed at each of their steps, and some that go on all the same.

A batch is attempted until Spark has noted it: tasks write in transactions, each attempt other rows
and other tasks (rows out of a shuffle aren't the same again). Some attempts are given up, some
drivers die in the middle of a step; a driver that was thought dead may take its next step at any
time. After each step, of each batch only one attempt is committed; at the end all of it, nothing
else, and no transaction of an attempt is open.

Replay one seed: MAGNETAR_SEED=41 MAGNETAR_SEEDS=1 pytest FILE
"""

import random
from contextlib import suppress
from typing import Any

import pytest

from magnetar.broker.transaction.transaction_id import TransactionId
from magnetar.managed_ledger.position import Position
from magnetar.pipeline.commit_log import (
    AbortAll,
    Append,
    Began,
    CheckOpen,
    CommitAll,
    ForgetBefore,
    ReadLog,
    Record,
    Step,
    Steps,
    TaskTransaction,
    TellTime,
    abort_batch,
    commit_batch,
    decode_record,
    encode_record,
)
from magnetar.pipeline.errors import PartlyWrittenError, WriteError
from tests.simulation.simulator import seeds

BATCHES = 4
TTL_MS = 1_000_000


class SinkWorld:
    """Coordinator, log of commits, clock, and the drivers that are still alive."""

    def __init__(self, seed: int, crash_rate: float, pause_ms: int) -> None:
        self.rng = random.Random(seed)
        self.crash_rate, self.pause_ms = crash_rate, pause_ms
        self.now_ms = 0
        self.log: list[tuple[Position, bytes]] = []
        self.kept_from = 0
        self.open: dict[TransactionId, int] = {}  # until when
        self.committed: set[TransactionId] = set()
        self.attempts: dict[tuple[int, int], set[TransactionId]] = {}  # batch, attempt
        self.zombies: list[tuple[Steps, Step]] = []
        self._next = 0

    # --- what steps do

    def append(self, record: Record) -> None:
        self.log.append(((1, len(self.log)), encode_record(record)))

    def carry_out(self, step: Step, count: int | None = None) -> Any:
        """
        Args:
            count: of its transactions, that are ended before the driver dies; None: all.
        """
        self._time_out()
        match step:
            case ReadLog():
                return [(at, decode_record(data)) for at, data in self.log[self.kept_from :]]
            case Append(record):
                self.append(record)
            case CheckOpen(transactions):
                return [each.id in self.open for each in transactions]
            case CommitAll(transactions):
                return [self._end(each.id, commits=True) for each in transactions[:count]]
            case AbortAll(ids):
                for id_ in ids[:count]:
                    self._end(id_, commits=False)
            case TellTime():
                return self.now_ms
            case ForgetBefore(position):
                self.kept_from = max(self.kept_from, position[1])
        return None

    def _end(self, id_: TransactionId, *, commits: bool) -> bool:
        if self.open.pop(id_, None) is None:
            return False
        if commits:
            self.committed.add(id_)
        return True

    def _time_out(self) -> None:
        for id_, until_ms in list(self.open.items()):
            if until_ms <= self.now_ms:
                del self.open[id_]

    # --- an attempt at a batch

    def write(self, batch: int, attempt: int) -> tuple[TaskTransaction, ...]:
        """Tasks write; those that were tried again, or twice at a time, leave one open."""
        written = []
        for _ in range(self.rng.randint(1, 4)):
            for is_last in [False] * self.rng.choice((0, 0, 1)) + [True]:
                id_ = TransactionId(self._next % 3, self._next)
                self._next += 1
                self.open[id_] = self.now_ms + TTL_MS
                self.append(Began(batch, id_))
                if is_last:
                    written.append(TaskTransaction(id_, "p", self.now_ms + TTL_MS))
        self.attempts[batch, attempt] = {each.id for each in written}
        return tuple(written)

    def drive(self, steps: Steps) -> bool:
        """Whether the driver came to its end. Raises WriteError: as the steps."""
        answer: Any = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return True
            self._wake_a_zombie()
            self.now_ms += self.rng.randint(0, self.pause_ms)
            if self.rng.random() < self.crash_rate:
                self._die(steps, step)
                return False
            answer = self.carry_out(step)
            self.check()

    def _die(self, steps: Steps, step: Step) -> None:
        """Before the step, in the middle of it, or behind it; or it only looks like that."""
        fate = self.rng.choice(("before", "middle", "behind", "zombie"))
        if fate == "zombie":
            self.zombies.append((steps, step))
        elif fate == "behind":
            self.carry_out(step)
        elif fate == "middle" and isinstance(step, CommitAll | AbortAll):
            self.carry_out(step, self.rng.randint(0, 3))
        self.check()

    def _wake_a_zombie(self) -> None:
        if not self.zombies or self.rng.random() < 0.5:
            return
        steps, step = self.zombies.pop(self.rng.randrange(len(self.zombies)))
        with suppress(StopIteration, WriteError):
            self.zombies.append((steps, steps.send(self.carry_out(step))))
        self.check()

    # --- what holds

    def check(self) -> None:
        for batch in range(BATCHES):
            touched = [
                number
                for (of, number), ids in self.attempts.items()
                if of == batch and ids & self.committed
            ]
            assert len(touched) <= 1, f"batch {batch} is committed by attempts {touched}"

    def check_whole(self) -> None:
        chosen: set[TransactionId] = set()
        for batch in range(BATCHES):
            whole = [
                ids
                for (of, _), ids in self.attempts.items()
                if of == batch and ids <= self.committed
            ]
            assert len(whole) == 1, f"batch {batch}: {len(whole)} attempts are whole"
            chosen |= whole[0]
        assert self.committed == chosen


def run_batches(world: SinkWorld) -> None:
    """As Spark does it: the next batch once this one's commit has come to its end.

    Raises:
        PartlyWrittenError: as `commit_batch`.
    """
    for batch in range(BATCHES):
        for attempt in range(1000):
            written = world.write(batch, attempt)
            ids = [each.id for each in written]
            if world.rng.random() < 0.2:  # a task fails for good
                world.drive(abort_batch(batch, ids[1:]))
                continue
            try:
                if world.drive(commit_batch(batch, written)) and world.rng.random() > 0.2:
                    break  # else the driver died before Spark noted it
            except PartlyWrittenError:
                raise
            except WriteError:  # timed out, or given up by a zombie
                assert not set(ids) & world.committed
                world.drive(abort_batch(batch, ids))
        else:
            pytest.fail("it never comes to an end")


@pytest.mark.parametrize("seed", seeds(300))
def test_each_batch_is_one_attempt_as_a_whole(seed: int) -> None:
    world = SinkWorld(seed, crash_rate=0.15, pause_ms=0)
    run_batches(world)
    world.crash_rate = 0
    while world.zombies:
        world._wake_a_zombie()
    assert world.drive(commit_batch(BATCHES, ()))
    world.check_whole()
    assert not world.open


@pytest.mark.parametrize("seed", seeds(200))
def test_a_batch_that_is_not_whole_is_an_error(seed: int) -> None:
    """A driver is slow, or dies and comes back late."""
    world = SinkWorld(seed, crash_rate=0.1, pause_ms=TTL_MS // 6)
    with suppress(PartlyWrittenError):
        run_batches(world)
        world.check_whole()


def test_a_batch_that_timed_out_before_its_commit_is_not_written() -> None:
    world = SinkWorld(0, crash_rate=0, pause_ms=0)
    written = world.write(0, 0) + world.write(0, 1)
    world.now_ms = TTL_MS
    with pytest.raises(WriteError, match="Nothing of it is written") as told:
        world.drive(commit_batch(0, written))
    assert not isinstance(told.value, PartlyWrittenError)
    assert world.drive(commit_batch(0, world.write(0, 2)))


@pytest.mark.parametrize("is_late", [False, True])
def test_a_driver_that_died_between_two_commits(is_late: bool) -> None:
    world = SinkWorld(0, crash_rate=0, pause_ms=0)
    written = world.write(0, 0) + world.write(0, 0)
    dying = commit_batch(0, written)
    step = next(dying)
    while not isinstance(step, CommitAll):
        step = dying.send(world.carry_out(step))
    world.carry_out(step, 1)
    world.now_ms = TTL_MS if is_late else TTL_MS // 2
    if is_late:
        with pytest.raises(PartlyWrittenError):
            world.drive(commit_batch(0, world.write(0, 2)))
        return
    assert world.drive(commit_batch(0, world.write(0, 2)))
    assert world.committed == {each.id for each in written}
    assert not world.open


def test_a_batch_that_is_older_than_the_last_one_is_refused() -> None:
    world = SinkWorld(0, crash_rate=0, pause_ms=0)
    assert world.drive(commit_batch(7, world.write(7, 0)))
    with pytest.raises(WriteError, match=r"batch 7 is written already, and this is batch 3"):
        world.drive(commit_batch(3, world.write(3, 0)))


def test_records_that_are_no_longer_needed_are_forgotten() -> None:
    world = SinkWorld(0, crash_rate=0, pause_ms=0)
    for batch in range(5):
        assert world.drive(commit_batch(batch, world.write(batch, 0)))
        kept = [decode_record(data) for _, data in world.log[world.kept_from :]]
        assert {each.batch for each in kept} == {batch}


@pytest.mark.parametrize("data", [b"", b"{}", b'["began", 1]', b'["done", "x"]', b"\xff", b"[1]"])
def test_what_is_no_record_is_told(data: bytes) -> None:
    with pytest.raises(WriteError, match="no record of the sink"):
        decode_record(data)
