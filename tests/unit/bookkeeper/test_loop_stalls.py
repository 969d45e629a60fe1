"""The watch for long turns of the loop: what it counts, what it doesn't, and what it says."""

import asyncio
import gc
import linecache
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from magnetar.bookkeeper import loop_stalls
from magnetar.bookkeeper.loop_stalls import CAUSES, LoopStalls
from tests import stalls


@pytest.fixture
def watch() -> Iterator[LoopStalls]:
    yield LoopStalls(0.05)
    stalls.skip("they are what is tested")


def compute(seconds: float) -> None:
    """Of this thread's processor time, so that a busy machine changes nothing."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def hold(watch: LoopStalls, what: Any) -> None:
    watch.start()
    await asyncio.sleep(2 * watch.threshold_s)  # four beats
    what()
    await asyncio.sleep(2 * watch.threshold_s)  # four beats
    watch.close()


async def test_a_turn_that_computes_is_told_with_its_place(
    watch: LoopStalls, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await hold(watch, lambda: compute(0.3))
    assert watch.counts["running"] >= 1
    assert watch.longest_s["running"] > 0.1
    (line,) = [each for each in caplog.messages if "cause: running" in each and "compute" in each]
    assert "test_loop_stalls.py" in line


async def test_a_turn_that_waits_is_blocked(watch: LoopStalls) -> None:
    await hold(watch, lambda: threading.Event().wait(0.3))
    assert watch.counts["blocked"] >= 1
    assert watch.longest_s["blocked"] > 0.1


async def test_collections_are_a_cause_of_their_own(watch: LoopStalls) -> None:
    def collect() -> None:
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            gc.collect()

    await hold(watch, collect)
    assert watch.counts["gc"] >= 1


async def test_many_short_turns_are_no_stall(watch: LoopStalls) -> None:
    watch.start()
    end = time.thread_time() + 0.5
    while time.thread_time() < end:
        compute(0.001)
        await asyncio.sleep(0)
    watch.close()
    assert watch.counts["running"] == 0


async def test_waiting_for_a_processor_is_not_the_turn_s_time(
    watch: LoopStalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel tells it; here it says that nearly all of the turn was such a wait."""
    waits = iter((0.0, 0.0))
    told = [0.0]
    monkeypatch.setattr(loop_stalls._Thread, "waited_s", lambda _: next(waits, told[0]))

    def turn() -> None:
        compute(0.3)
        told[0] = 60.0

    await hold(watch, turn)
    assert watch.counts["running"] == 0  # real waits of this machine, now not known, are "blocked"


async def test_it_leaves_nothing_behind(watch: LoopStalls) -> None:
    files, callbacks = len(os.listdir("/proc/self/fd")), len(gc.callbacks)
    await hold(watch, lambda: None)
    assert len(os.listdir("/proc/self/fd")) == files
    assert len(gc.callbacks) == callbacks
    assert "loop stalls" not in {thread.name for thread in threading.enumerate()}
    assert set(watch.counts) == set(CAUSES)


def test_a_place_is_told_without_reading_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the loop would go on meanwhile, and its frames change")

    monkeypatch.setattr(linecache, "checkcache", refuse)
    monkeypatch.setattr(linecache, "getline", refuse)
    told = loop_stalls._told(sys._getframe())
    assert told[0].startswith("test_loop_stalls.py:")
    assert told[0].endswith(" test_a_place_is_told_without_reading_sources")
    assert len(told) == loop_stalls._FRAMES_MAX
    assert loop_stalls._told(refuse) == []  # what a frame's f_back was in Python 3.11
