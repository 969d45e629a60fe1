"""One name, one process, one directory: what else claims to be a bookie doesn't answer as it."""

import asyncio
import shutil
from pathlib import Path

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie import registration
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.limbo import note_steps
from magnetar.bookkeeper.client.ledger_store import ledger_path
from magnetar.bookkeeper.errors import CookieMismatchError, MissingFileError
from magnetar.bookkeeper.service_info import AVAILABLE_PATH
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.integration.bookie_node import KEY, Node, add


async def _end_of(bookie: Bookie) -> BaseException:
    ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    bookie.on_fatal = ended.set_result
    async with asyncio.timeout(30):
        return await ended


async def test_empty_directories_beside_a_cookie_are_a_loss(
    tmp_path: Path, store: EmbeddedMetadataStore
) -> None:
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    await store.put(ledger_path(7), b"metadata")
    assert await add(bookie, 7, range(3)) == codes.OK
    await bookie.close()
    for each in node.path.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
    with pytest.raises(MissingFileError, match=r"cookie\.json"):
        await node.start()
    bookie = await node.start(accept_data_loss=True)
    assert (await bookie.read_entries(ReadRequest(7, 0, 1, 1))).code == codes.UNKNOWN_LEDGER_STATE
    assert await add(bookie, 7, [3]) == codes.UNKNOWN_LEDGER_STATE
    await bookie.close()


async def test_another_directory_waits_until_the_name_is_free(
    tmp_path: Path, store: EmbeddedMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookie = await Node(tmp_path / "b1", store).start()
    await store.put(ledger_path(7), b"metadata")
    duplicate = Node(tmp_path / "twin", store.new_session(), accept_data_loss=True)
    monkeypatch.setattr(registration, "_FREE_S_MAX", 0.0)
    with pytest.raises(CookieMismatchError, match="is running with another data directory"):
        await duplicate.start()
    assert await add(bookie, 7, range(3)) == codes.OK
    monkeypatch.setattr(registration, "_FREE_S_MAX", 30.0)
    starting = asyncio.create_task(duplicate.start())
    await store.put(ledger_path(8), b"metadata")
    assert await add(bookie, 8, range(3)) == codes.OK  # while the other waits
    await bookie.close()
    other = await starting
    for ledger_id in (7, 8):
        reply = await other.read_entries(ReadRequest(ledger_id, 0, 1, 1))
        assert reply.code == codes.UNKNOWN_LEDGER_STATE
    await other.close()


async def test_who_lost_its_name_in_an_outage_ends(
    tmp_path: Path, store: EmbeddedMetadataStore
) -> None:
    theirs = store.new_session()
    bookie = await Node(tmp_path / "b1", theirs).start()
    session_id = theirs.session_id
    theirs.lose_session()
    await store.expire_session(session_id)
    other = await Node(tmp_path / "twin", store, accept_data_loss=True).start()
    ended = asyncio.create_task(_end_of(bookie))
    await asyncio.sleep(0)
    theirs.begin_session()
    assert isinstance(await ended, CookieMismatchError)
    assert await add(bookie, 7, [0]) == codes.IO_ERROR
    found = await store.get(f"{AVAILABLE_PATH}/b1")
    assert found is not None
    assert found.stat.created_by_self
    await bookie.close()
    assert await store.exists(f"{AVAILABLE_PATH}/b1")  # which is the other's
    await other.close()


async def test_a_decommissioned_bookie_does_not_come_back(
    tmp_path: Path, store: EmbeddedMetadataStore
) -> None:
    theirs = store.new_session()
    bookie = await Node(tmp_path / "b1", theirs).start()
    theirs.lose_session()
    await store.delete("/ledgers/cookies/b1")
    ended = asyncio.create_task(_end_of(bookie))
    await asyncio.sleep(0)
    theirs.begin_session()
    assert "decommissioned" in str(await ended)
    await bookie.close()
    assert not await store.exists(f"{AVAILABLE_PATH}/b1")


async def test_the_older_of_two_copies_of_a_directory_ends(
    tmp_path: Path, store: EmbeddedMetadataStore
) -> None:
    bookie = await Node(tmp_path / "b1", store.new_session()).start()
    shutil.copytree(tmp_path / "b1", tmp_path / "copy")  # of the running one
    ended = asyncio.create_task(_end_of(bookie))
    await asyncio.sleep(0)
    copied = await Node(tmp_path / "copy", store.new_session()).start()
    assert isinstance(await ended, CookieMismatchError)
    await bookie.close()
    assert await add(copied, 7, [0]) == codes.OK
    assert await store.exists(f"{AVAILABLE_PATH}/b1")
    await copied.close()


async def test_a_fence_that_was_lost_is_not_denied_when_limbo_is_over(
    tmp_path: Path, store: EmbeddedMetadataStore
) -> None:
    """A recovery fenced it here, lost it, and closed the ledger without it: no metadata tells."""
    node = Node(tmp_path / "b1", store)
    bookie = await node.start()
    await store.put(ledger_path(7), b"metadata")
    await bookie.read_entries(ReadRequest(6, 0, 1, 1, fence=True, master_key=KEY))
    assert await add(bookie, 6, [0]) == codes.FENCED
    await bookie.close()
    shutil.rmtree(node.path)
    bookie = await node.start(accept_data_loss=True)
    assert await add(bookie, 6, [0]) == codes.UNKNOWN_LEDGER_STATE
    await bookie.run_maintenance(note_steps(bookie.storage, 0, -1))  # limbo is over
    await bookie.flush()
    for _ in range(2):
        assert await add(bookie, 6, [0]) == codes.UNKNOWN_LEDGER_STATE
        assert await bookie.write_lac(6, 0, master_key=KEY) == codes.UNKNOWN_LEDGER_STATE
        assert (await bookie.read_entries(ReadRequest(6, 0, 1, 1))).code == codes.NO_LEDGER
        assert await add(bookie, 8, [0]) == codes.OK
        await bookie.close()
        bookie = await node.start()
    assert await add(bookie, 6, [0], recovery=True) == codes.OK
    await bookie.close()
