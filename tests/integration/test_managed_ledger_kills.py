"""A managed ledger on a real ZooKeeper and real bookies while owners and bookies are killed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.managed_ledger.position import EARLIEST
from tests.bookie_process import BookieProcess
from tests.child_process import ChildProcess
from tests.managed_ledger_history import (
    CursorAcks,
    OwnerHistory,
    Position,
    check_found,
    check_log,
)
from tests.managed_ledger_owner import CURSORS, opened, opened_factory

SESSION = ("--set", "metadataStoreSessionTimeoutMillis=4000")
ENOUGH = 350
"""Entries: some rotations, trims and cursor ledgers."""


class OwnerProcess(ChildProcess):
    """One `tests/managed_ledger_owner.py`, which says what it was told."""

    def __init__(self, folder: Path, url: str, number: int) -> None:
        super().__init__(folder / f"owner-{number}.log")
        self._url, self.number = url, number

    def start(self) -> None:
        command = (sys.executable, "-m", "tests.managed_ledger_owner")
        self._process = self.popen([*command, self._url, str(self.number), "7"])

    def history(self) -> OwnerHistory:
        return OwnerHistory(self.log)

    def wait_for(self, condition: Callable[[OwnerHistory], bool], what: str) -> None:
        """Generous: a bookie that doesn't answer costs a time-out for each ledger it is in."""
        deadline = time.monotonic() + 120.0
        while not condition(self.history()):
            assert self.is_running, f"owner {self.number} ended:\n{self.log[-4000:]}"
            assert time.monotonic() < deadline, f"owner {self.number}: {what}\n{self.log[-4000:]}"
            time.sleep(0.05)

    def go_on(self, entries: int = ENOUGH) -> None:
        """Wait until it has appended so many more."""
        before = len(self.history().appended)
        self.wait_for(lambda now: len(now.appended) >= before + entries, "no progress")

    def end_by_itself(self) -> None:
        process = self.take()
        try:
            assert process.wait(120.0) == 0, self.log[-4000:]
        finally:
            process.kill()
            process.wait()


async def end_of(url: str) -> tuple[dict[Position, int], dict[str, CursorAcks]]:
    """What a last owner reads and finds."""
    async with opened_factory(url) as factory:
        log = await opened(factory)
        found = {}
        for name, cursor in log.cursors.items():
            acks = found[name] = CursorAcks(cursor.mark_delete)
            for (ledger_id, before), (_, last) in cursor.state.ranges(1 << 20):
                acks.each |= {(ledger_id, entry) for entry in range(before + 1, last + 1)}
        stored: dict[Position, int] = {}
        position = EARLIEST
        while (batch := await log.read(position, 1000, 1 << 20)) is not None:
            for entry_id, body in enumerate(batch.bodies, batch.first):
                stored[batch.ledger_id, entry_id] = int(bytes(body))
            position = (batch.ledger_id, batch.last + 1)
        await factory.close()
        return stored, found


@pytest.mark.slow
def test_history_survives_kills_pauses_and_takeovers(
    tmp_path: Path, url: str, bookies: list[BookieProcess]
) -> None:
    owners = [OwnerProcess(tmp_path, url, number) for number in (1, 2, 3)]
    with contextlib.ExitStack() as stack:
        for owner in owners:
            stack.push(owner)
        first, second, third = owners
        first.start()
        first.go_on()
        bookies[0].kill()
        first.go_on()
        bookies[0].start()
        first.go_on(50)
        first.pause()  # it believes that the log is its own
        second.start()
        second.go_on()
        first.resume()
        first.end_by_itself()
        assert first.history().is_fenced
        bookies[1].pause()
        second.go_on()
        bookies[1].resume()
        second.kill()
        bookies[2].kill()
        third.start()  # recovers with what two of three bookies have
        third.go_on()
        for process in (*bookies[:2], third):
            process.kill()
        for bookie in bookies:
            bookie.start()
        verify([owner.history() for owner in owners], *asyncio.run(end_of(url)))


def verify(
    histories: list[OwnerHistory], stored: dict[Position, int], found: dict[str, CursorAcks]
) -> None:
    entries = {*stored, *(each for owner in histories for each in owner.appended)}
    for number, owner in enumerate(histories):
        assert owner.is_open
        assert set(owner.found) == (set() if number == 0 else set(CURSORS))
        check_found(owner.found, histories[:number], entries)
    assert set(found) == set(CURSORS)
    check_found(found, histories, entries)
    check_log(stored, histories, found)
    ledgers = {ledger_id for owner in histories for ledger_id, _ in owner.appended}
    assert len(ledgers) > 20, "it didn't rotate"
    assert min(stored)[0] > sorted(ledgers)[10], "it didn't trim"
    assert all(owner.acked["holes"].each for owner in histories)
    assert found["holes"].each, "no holes were left"
