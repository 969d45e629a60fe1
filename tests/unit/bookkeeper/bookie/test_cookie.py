"""The cookie survives power cuts at any moment of a first start, thanks to both of its syncs."""

import contextlib
import random

import pytest

from magnetar.bookkeeper.bookie import cookie as cookies
from magnetar.bookkeeper.bookie.cookie import DirectoryState
from magnetar.bookkeeper.errors import CookieMismatchError
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.memory_file_system import Faults, MemoryFileSystem, PowerLoss


async def first_start(fs: MemoryFileSystem, store: EmbeddedMetadataStore) -> None:
    checked = await cookies.check_cookie(fs, store, "b1", accept_data_loss=False)
    if checked.state is not DirectoryState.COMPLETE:
        assert checked.state is DirectoryState.NEW
        if not fs.exists("journal/1"):
            fs.create("journal/1")  # the storage is opened between the two
            fs.sync_dir("journal", "other")
    await cookies.complete_cookie(fs, store, checked, "/zone/domain")


async def starts_with_crashes(seed: int, ignored: set[str]) -> None:
    """Starts that lose power in a random call, then one that must find a complete cookie."""
    rng = random.Random(seed)
    store = EmbeddedMetadataStore.open(None)
    try:
        fs = MemoryFileSystem(Faults(ignored_sync_points=set(ignored)))
        for _ in range(3):
            fs.faults.power_loss_at = fs.call_count + rng.randrange(14)
            with contextlib.suppress(PowerLoss):
                await first_start(fs, store)
            fs = fs.crash(rng)
            fs.faults.ignored_sync_points = set(ignored)
        await first_start(fs, store)
        fs.power_off()
        fs = fs.crash(rng)
        checked = await cookies.check_cookie(fs, store, "b1", accept_data_loss=False)
        assert checked.state is DirectoryState.COMPLETE
    finally:
        await store.close()


async def test_a_first_start_may_lose_power_anywhere() -> None:
    for seed in range(100):
        await starts_with_crashes(seed, set())


@pytest.mark.parametrize("sync_point", ["cookie.data", "cookie.name"])
async def test_every_sync_of_the_cookie_is_needed(sync_point: str) -> None:
    caught = 0
    for seed in range(30):
        try:
            await starts_with_crashes(seed, {sync_point})
        except (CookieMismatchError, AssertionError):
            caught += 1
    assert caught > 0


async def test_the_network_location_may_change_and_is_published() -> None:
    store = EmbeddedMetadataStore.open(None)
    fs = MemoryFileSystem()
    await first_start(fs, store)
    checked = await cookies.check_cookie(fs, store, "b1", accept_data_loss=False)
    await cookies.complete_cookie(fs, store, checked, "/other/place")
    found = await store.get("/ledgers/cookies/b1")
    assert found is not None
    assert b"/other/place" in found.value
    checked = await cookies.check_cookie(fs, store, "b1", accept_data_loss=False)
    assert checked.state is DirectoryState.COMPLETE
    await store.close()


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"state": "complete"}', b"\xff"])
async def test_an_unreadable_cookie_is_refused(data: bytes) -> None:
    store = EmbeddedMetadataStore.open(None)
    fs = MemoryFileSystem()
    cookies.write_local_cookie(fs, data)
    with pytest.raises(CookieMismatchError, match=r"cookie\.json: unreadable"):
        await cookies.check_cookie(fs, store, "b1", accept_data_loss=False)
    await store.close()


async def test_an_old_copy_is_refused_or_taken_as_one_that_lost_data() -> None:
    store = EmbeddedMetadataStore.open(None)
    fs = MemoryFileSystem()
    await first_start(fs, store)
    old = fs.crash(random.Random(1))
    await first_start(fs, store)
    with pytest.raises(CookieMismatchError, match=r"of start 1, but .* of start 2: .* an old copy"):
        await cookies.check_cookie(old, store, "b1", accept_data_loss=False)
    checked = await cookies.check_cookie(old, store, "b1", accept_data_loss=True)
    assert checked.state is DirectoryState.ROLLED_BACK
    await cookies.complete_cookie(old, store, checked, "/zone/domain")
    checked = await cookies.check_cookie(old, store, "b1", accept_data_loss=False)
    assert checked.state is DirectoryState.COMPLETE
    with pytest.raises(CookieMismatchError, match="old copy"):  # and now the other one is
        await cookies.check_cookie(fs, store, "b1", accept_data_loss=False)
    await store.close()


async def test_a_decommissioned_or_swapped_directory_is_refused() -> None:
    store = EmbeddedMetadataStore.open(None)
    one, two = MemoryFileSystem(), MemoryFileSystem()
    await first_start(one, store)
    await store.delete("/ledgers/cookies/b1")
    with pytest.raises(CookieMismatchError, match="decommissioned"):
        await cookies.check_cookie(one, store, "b1", accept_data_loss=False)
    await first_start(two, store)
    with pytest.raises(CookieMismatchError, match="swapped"):
        await cookies.check_cookie(one, store, "b1", accept_data_loss=False)
    await store.close()
