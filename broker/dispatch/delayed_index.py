"""Entries that wait for their time, sorted by it: about 21 bytes each, whatever the times are."""

from __future__ import annotations

from array import array
from bisect import bisect_right

from pyroaring import BitMap

from magnetar.broker.dispatch.position_set import PositionSet
from magnetar.managed_ledger.position import Position

_STEPS_PER_TICK = 8
_RUN_ENTRIES = 1024
_RUN_BYTES = 400  # measured: the objects of a run without their items
_ENTRY_BYTES = 21  # 20 in three columns, and what arrays that grow keep free
_REMOVED_SHARE = 8
"""Dead entries are searched for when they may be one in so many: each costs so many looks."""
_TIME_MAX_MS = 2**63
"""Later times wait until then: dispatch looks at the time of an entry once more."""
_NOTHING: Position = (-1, -1)


class _Run:
    """Neighbours in time: columns, for a Python object each would take three times the memory."""

    __slots__ = ("entries", "ledgers", "times")

    def __init__(self, times: array[int], ledgers: array[int], entries: array[int]) -> None:
        self.times, self.ledgers, self.entries = times, ledgers, entries

    def split(self, at: int) -> _Run:
        """Keep what is before this index; the rest."""
        rest = _Run(self.times[at:], self.ledgers[at:], self.entries[at:])
        self.times, self.ledgers = self.times[:at], self.ledgers[:at]
        self.entries = self.entries[:at]
        return rest

    def keep(self, indexes: list[int]) -> None:
        """Forget all but these."""
        self.times = array("Q", [self.times[index] for index in indexes])
        self.ledgers = array("Q", [self.ledgers[index] for index in indexes])
        self.entries = array("I", [self.entries[index] for index in indexes])


class DelayedIndex:
    """Keeps positions by due time, and never returns one early.

    Not strict: it rounds times up to an eighth of a tick, so the broker wakes less often.

    Pulsar allows a whole tick too early, but applications take the time they asked for
    as a lower bound (the Go client's own tests do), and waking at the due time costs no more.

    Invariants: the times of ``_runs``, one run after the other, ascend; no run is empty;
    ``_firsts`` has the first time of each. `take_due` never returns a forgotten position. Forgotten
    positions leave memory in turns (`sweep`), at the latest when they may be an eighth of all.
    """

    def __init__(self, tick_ms: int, *, strict: bool) -> None:
        self.set_precision(tick_ms, strict=strict)
        self.clear()

    def set_precision(self, tick_ms: int, *, strict: bool) -> None:
        """Set how times of later entries are rounded."""
        self._step_ms = 1 if strict else max(tick_ms // _STEPS_PER_TICK, 1)

    def clear(self) -> None:
        """Forget everything, also what was forgotten."""
        self.count = 0  # with dead ones that weren't found yet
        self._runs: list[_Run] = []
        self._firsts = array("Q")
        self._of_ledger: dict[int, int] = {}  # entries by ledger
        self._floor = _NOTHING  # this and lower positions are dead
        self._removed = PositionSet()  # higher ones that are
        self._removed_count = 0
        self.sweep_at: int | None = None
        """Index of the next run that `sweep` looks at; None: it has nothing to do."""
        self._swept, self._swept_floor = PositionSet(), _NOTHING  # what this sweep removes

    def is_due(self, deliver_at_ms: int, now_ms: int) -> bool:
        """Whether an entry with this time is an ordinary entry now."""
        return deliver_at_ms <= now_ms

    def add(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> None:
        """Keep an entry until its time. REQUIRES: it isn't here yet."""
        time = min(-(-deliver_at_ms // self._step_ms) * self._step_ms, _TIME_MAX_MS)
        runs, at = self._runs, max(bisect_right(self._firsts, time) - 1, 0)
        self.count += 1
        self._of_ledger[ledger_id] = self._of_ledger.get(ledger_id, 0) + 1
        if not runs or (
            at == len(runs) - 1
            and len(runs[at].times) >= _RUN_ENTRIES
            and time >= runs[at].times[-1]
        ):  # later than all: full runs stay full
            runs.append(
                _Run(array("Q", (time,)), array("Q", (ledger_id,)), array("I", (entry_id,)))
            )
            self._firsts.append(time)
            return
        run = runs[at]
        index = bisect_right(run.times, time)
        run.times.insert(index, time)
        run.ledgers.insert(index, ledger_id)
        run.entries.insert(index, entry_id)
        self._firsts[at] = run.times[0]
        if len(run.times) > _RUN_ENTRIES:
            rest = run.split(_RUN_ENTRIES // 2)
            runs.insert(at + 1, rest)
            self._firsts.insert(at + 1, rest.times[0])
            if self.sweep_at is not None and at < self.sweep_at:
                self.sweep_at += 1

    @property
    def memory_bytes(self) -> int:
        """What it takes, within a tenth; counting exactly would take time by its size."""
        return len(self._runs) * _RUN_BYTES + self.count * _ENTRY_BYTES

    def next_due_ms(self) -> int | None:
        """When `take_due` has something; None: it is empty."""
        return self._firsts[0] if self._runs else None

    def due_ms(self, position: Position) -> int | None:
        """When an entry is due; None: it isn't here. It takes time by the number of entries.

        REQUIRES: the entry wasn't forgotten.
        """
        ledger_id, entry_id = position
        if ledger_id in self._of_ledger:
            wanted = array("I", (entry_id,)).tobytes()
            for run in self._runs:
                if wanted in run.entries.tobytes():  # twenty times as fast as a loop
                    for time, *at in zip(run.times, run.ledgers, run.entries, strict=True):
                        if at == [ledger_id, entry_id]:
                            return time
        return None

    def take_due(self, now_ms: int, entries_max: int = 10_000) -> PositionSet:
        """Remove and return what is due, the earliest first, of at most so many entries."""
        groups: dict[int, list[int]] = {}
        while self._runs and self._firsts[0] <= now_ms and entries_max > 0:
            run = self._runs[0]
            end = min(bisect_right(run.times, now_ms), entries_max)
            rest = run.split(end)
            for ledger_id, entry_id in zip(run.ledgers, run.entries, strict=True):
                groups.setdefault(ledger_id, []).append(entry_id)
            entries_max -= end
            if rest.times:
                self._runs[0], self._firsts[0] = rest, rest.times[0]
            else:
                self._remove_run(0)
        due = PositionSet()
        for ledger_id, entries in groups.items():
            self._lower(ledger_id, len(entries))
            due.add(ledger_id, entries)
        due.remove_below((self._floor[0], self._floor[1] + 1))
        for removed in (self._removed.ledgers, self._swept.ledgers):
            for ledger_id in removed.keys() & groups.keys():
                due.take(ledger_id, removed[ledger_id])
        return due

    def _remove_run(self, at: int) -> None:
        del self._runs[at], self._firsts[at]
        if self.sweep_at is not None and at < self.sweep_at:
            self.sweep_at -= 1

    def _lower(self, ledger_id: int, entries: int) -> None:
        self.count -= entries
        self._of_ledger[ledger_id] -= entries
        if not self._of_ledger[ledger_id]:
            del self._of_ledger[ledger_id]

    # --- what is acknowledged before its time

    def forget(self, ledger_id: int, entries: BitMap) -> None:
        """These are acknowledged: those that are here never become due."""
        if ledger_id in self._of_ledger:
            self._removed.add_bits(ledger_id, entries)
            self._removed_count += len(entries)
            self._begin_sweep()

    def forget_below(self, position: Position) -> None:
        """This and lower positions are acknowledged."""
        self._floor = max(self._floor, position)
        self._begin_sweep()

    def _begin_sweep(self) -> None:
        if self.sweep_at is None and (
            0 < self.count <= self._removed_count * _REMOVED_SHARE
            or (
                self._floor > self._swept_floor
                and min(self._of_ledger, default=2**64) <= self._floor[0]
            )
        ):
            self.sweep_at = 0
            self._swept, self._swept_floor = self._removed, self._floor
            self._removed, self._removed_count = PositionSet(), 0

    def sweep(self, entries_max: int) -> None:
        """Remove dead entries; looks at about so many and goes on there next time."""
        while (at := self.sweep_at) is not None and entries_max > 0:
            if at == len(self._runs):
                self.sweep_at = None
                self._swept = PositionSet()
                self._begin_sweep()  # more were forgotten meanwhile
                return
            run = self._runs[at]
            entries_max -= len(run.times)
            self._sweep_run(run)
            if run.times:
                self._firsts[at] = run.times[0]
                self.sweep_at = at + 1
            else:
                self._remove_run(at)

    def _sweep_run(self, run: _Run) -> None:
        kept: list[int] = []
        removed, floor = self._swept.ledgers, self._swept_floor
        for index, position in enumerate(zip(run.ledgers, run.entries, strict=True)):
            ledger_id, entry_id = position
            if position <= floor or (ledger_id in removed and entry_id in removed[ledger_id]):
                self._lower(ledger_id, 1)
            else:
                kept.append(index)
        if len(kept) < len(run.times):
            run.keep(kept)
