"""A bookie that gets rid of its writers by order."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.config import BookieConfig
from magnetar.bookkeeper.bookie.drain import Drain
from magnetar.bookkeeper.bookie.open_bookie import open_bookie
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, READ_ONLY_PATH
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.memory_file_system import MemoryFileSystem
from tests.memory_store import MemoryStore
from tests.simulation.bookie_machine import CONFIG
from tests.unit.bookkeeper.bookie.test_stalled_journal import add
from tests.waiting import eventually

QUIET_S = 0.3
ENDS_S_MAX = 60.0


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedMetadataStore]:
    opened = EmbeddedMetadataStore.open(None)
    yield opened
    await opened.close()


@pytest.fixture
async def bookie(store: EmbeddedMetadataStore) -> AsyncIterator[Bookie]:
    files = MemoryFileSystem()
    config = BookieConfig("b0", Path("/b0"), CONFIG, disk_reserve_bytes=0, disk_usage_max=1.0)
    opened = await open_bookie(config, files, store, index=MemoryStore(files))
    yield opened
    await opened.close()


async def answer(bookie: Bookie, entry_id: int) -> int:
    done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    add(bookie, entry_id, done.set_result)
    return await done


async def test_writers_are_refused_and_what_was_taken_is_kept(
    bookie: Bookie, store: EmbeddedMetadataStore
) -> None:
    assert await answer(bookie, 0) == codes.OK
    drain = Drain(bookie, QUIET_S)
    assert not drain.is_under_way
    drain.begin()
    drain.begin()  # once is enough
    await eventually(lambda: bookie.read_only)
    assert await answer(bookie, 1) == codes.READ_ONLY
    assert await drain.wait(ENDS_S_MAX)
    assert drain.done
    assert await store.exists(f"{READ_ONLY_PATH}/b0")
    assert not await store.exists(f"{AVAILABLE_PATH}/b0")
    assert bookie.is_registered
    assert not bookie.storage.has_unflushed
    bookie._check_disk()
    assert bookie.read_only, "there is room, but the order holds"


async def test_writers_are_kept_while_the_store_is_away(
    bookie: Bookie, store: EmbeddedMetadataStore
) -> None:
    """To go elsewhere they would have to write there."""
    store.lose_session()
    drain = Drain(bookie, QUIET_S)
    drain.begin()
    assert not await drain.wait(2 * QUIET_S)
    assert await answer(bookie, 0) == codes.OK
    store.begin_session()
    assert await drain.wait(ENDS_S_MAX)
    assert await answer(bookie, 1) == codes.READ_ONLY


async def test_a_writer_that_stays_is_waited_for(bookie: Bookie) -> None:
    drain = Drain(bookie, QUIET_S)
    drain.begin()
    await eventually(lambda: bookie.read_only)
    stays = asyncio.Event()

    async def write() -> None:
        number = 0
        while not stays.is_set():
            number += 1
            assert await answer(bookie, number) == codes.READ_ONLY
            await asyncio.sleep(0.001)

    writer = asyncio.create_task(write())
    assert not await drain.wait(4 * QUIET_S)
    stays.set()
    await writer
    assert await drain.wait(ENDS_S_MAX)


async def test_an_order_that_is_taken_back(bookie: Bookie, store: EmbeddedMetadataStore) -> None:
    drain = Drain(bookie, QUIET_S)
    drain.begin()
    await eventually(lambda: bookie.is_registered)
    await drain.end()
    assert not drain.is_under_way
    assert await answer(bookie, 0) == codes.OK
    await eventually(lambda: bookie.is_registered)
    assert await store.exists(f"{AVAILABLE_PATH}/b0")
    assert not drain.done
    drain.begin()
    assert await drain.wait(ENDS_S_MAX)


async def test_the_end_of_the_bookie_is_the_drain_s(bookie: Bookie) -> None:
    drain = Drain(bookie, 1e9)
    drain.begin()
    await eventually(lambda: bookie.read_only)
    await drain.close()
    assert not drain.done
    assert bookie.read_only
