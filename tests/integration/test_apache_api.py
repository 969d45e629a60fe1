"""Apache BookKeeper's client says the same of our bookies, call by call, as of Apache's."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.apache_bookies import ApacheBookie, needs_bookkeeper
from tests.bookie_process import BookieProcess
from tests.integration.test_apache_layout import uri_of
from tests.nightly import NIGHTLY
from tests.zookeeper_process import ZooKeeperProcess

pytestmark = [
    needs_bookkeeper,
    pytest.mark.skipif(not NIGHTLY, reason="make nightly: minutes of Apache's client"),
]
BOOKIES = 4


def said_with(folder: Path, ours: int) -> list[str]:
    """Of a cluster with ``ours`` bookies of ours; the others are Apache's."""
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeperProcess(folder))
        theirs = [ApacheBookie(folder / f"a{n}", uri_of(zookeeper)) for n in range(BOOKIES)]
        if not ours:
            theirs[0].shell("initnewcluster")
        for number in range(ours):
            stack.enter_context(BookieProcess(folder / f"o{number}", zookeeper.url()))
        for each in theirs[ours:]:
            stack.enter_context(each)
        return theirs[0].api()


async def test_all_calls(tmp_path: Path) -> None:
    """Also with two bookies of each kind in one ensemble."""
    expected = await asyncio.to_thread(said_with, tmp_path / "theirs", 0)
    assert len(expected) == 62
    for ours in (BOOKIES, BOOKIES // 2):
        assert await asyncio.to_thread(said_with, tmp_path / f"ours{ours}", ours) == expected
