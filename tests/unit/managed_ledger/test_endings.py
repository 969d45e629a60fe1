"""How logs are sealed and deleted while storage or metadata fail in the middle of it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.ledger_store import ledger_path
from magnetar.bookkeeper.errors import NotEnoughBookiesError
from magnetar.managed_ledger.errors import (
    AppendFailedError,
    ManagedLedgerFencedError,
    ManagedLedgerTerminatedError,
)
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import MetadataError, MetadataWriteError
from magnetar.metadata.store import Versioned
from tests.unit.managed_ledger.cluster import (
    CONFIG,
    NAME,
    Appends,
    Cluster,
    appended,
    eventually,
    read_all,
)


def fail_writes(log: ManagedLedger, is_hit: Callable[[str], bool]) -> list[str]:
    """Writes of some paths fail from now on, without effect; the paths that did."""
    put, failed = log.store.put, list[str]()

    async def failing_put(
        path: str, value: bytes, expected_version: int | None = None
    ) -> Versioned:
        if is_hit(path):
            failed.append(path)
            raise MetadataWriteError(path, OSError("full"))
        return await put(path, value, expected_version)

    log.store.put = failing_put  # type: ignore[method-assign,assignment]  # one session's fault
    return failed


async def with_one_undecided(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> tuple[ManagedLedgerFactory, ManagedLedger, Appends]:
    """A log whose second entry is on its bookie, which didn't get to say so."""
    monkeypatch.setattr("magnetar.managed_ledger.closing.DRAIN_TIMEOUT_S", 0.05)
    monkeypatch.setattr("magnetar.managed_ledger.ledger_info_store.RETRY_DELAY_S", 0.001)
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    appends = await appended(log, b"a")
    connection = cluster.connections[-1]
    connection.hold_adds = True
    appends.send(b"b")
    await eventually(lambda: connection.requests[-1].entry_ids[-1] == 1)
    cluster.bookie.add(connection.requests[-1])
    return factory, log, appends


async def test_sealed_only_with_a_definite_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next owner would find entries behind the last position it will ever have."""
    _, log, appends = await with_one_undecided(cluster, monkeypatch)
    fenced: list[BaseException] = []
    log.on_fenced = fenced.append
    last = ledger_path(appends.acked[0][0][0])
    assert not fail_writes(log, lambda path: path == last)
    with pytest.raises(AppendFailedError, match="has no end yet"):
        await log.terminate()
    assert fenced, "its owner has to open it again: it takes no appends any more"
    cluster.connections[-1].release()
    await log.close()

    log = await cluster.factory().open(NAME, CONFIG)
    assert log.terminated is None
    assert [x for _, x in await read_all(log)] == [b"a", b"b"]
    again = Appends(log)
    again.send(b"c")
    assert await log.terminate() == again.acked[0][0]
    assert [x for _, x in await read_all(log)] == [b"a", b"b", b"c"]


async def test_a_seal_that_can_t_be_stored_leaves_a_log_that_opens_and_writes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.ledger_info_store.RETRY_DELAY_S", 0.001)
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    fenced: list[BaseException] = []
    log.on_fenced = fenced.append
    appends = await appended(log, b"a")
    is_down = True
    fail_writes(log, lambda path: is_down and path == log.path)
    with pytest.raises(MetadataError):
        await log.terminate()
    assert len(fenced) == 1
    assert isinstance(fenced[0], ManagedLedgerFencedError)
    is_down = False
    log = await factory.open(NAME, CONFIG)  # the same broker, as for its next client
    assert log.terminated is None
    again = await appended(log, b"b")
    assert await read_all(log) == appends.acked + again.acked
    assert await log.terminate() == again.acked[0][0]


async def test_sealed_while_a_failed_ledger_is_being_ended(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is found after nobody waited for it any more: that is no other owner."""
    monkeypatch.setattr("magnetar.managed_ledger.closing.DRAIN_TIMEOUT_S", 0.05)
    monkeypatch.setattr("magnetar.managed_ledger.append_path.END_RETRY_S", 0.2)
    log = await cluster.factory().open(NAME, CONFIG)
    appends = await appended(log, b"a")
    ledger_id = appends.acked[0][0][0]
    is_down = True
    failed = fail_writes(log, lambda path: is_down and path == ledger_path(ledger_id))
    cluster.bookie.refuse_adds = codes.IO_ERROR
    appends.send(b"b")
    await eventually(lambda: bool(failed))
    sealing = asyncio.create_task(log.terminate())
    await eventually(lambda: appends.failed == 1)
    assert isinstance(appends.errors[0], ManagedLedgerTerminatedError)
    is_down, cluster.bookie.refuse_adds = False, codes.OK
    assert await sealing == appends.acked[0][0]
    assert log.state == "Terminated"
    assert [x.entries for x in log.lists.info.ledgers] == [1]
    reopened = await cluster.factory().open(NAME, CONFIG)
    assert reopened.terminated == appends.acked[0][0]
    assert await read_all(reopened) == appends.acked


async def test_a_deletion_that_can_t_begin_leaves_a_log_that_opens_and_writes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.ledger_info_store.RETRY_DELAY_S", 0.001)
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    await log.open_cursor("sub", EARLIEST)
    appends = await appended(log, b"a")
    is_down = True
    fail_writes(log, lambda path: is_down and path == log.path)
    with pytest.raises(MetadataError):
        await log.delete()
    is_down = False
    again = await factory.open(NAME, CONFIG)
    assert again is not log
    more = await appended(again, b"b")
    assert not more.errors
    assert await read_all(again) == appends.acked + more.acked
    await again.delete()
    assert not await factory.exists(NAME)


async def test_retention_counts_the_ledger_that_is_written(cluster: Cluster) -> None:
    """Ledgers of ten entries of 14 bytes; what is above 300 bytes goes."""
    config = replace(CONFIG, ledger_entries_max=10, retention_ms=-1, retention_bytes=300)
    log = await cluster.factory().open(NAME, config)
    await appended(log, *[b"0123456789"] * 28)
    await log.trim()
    assert log.total_bytes == 28 * 14 - 140
    assert len(log.offsets.ledger_ids) == 2


async def test_a_close_does_not_wait_for_the_pause_before_another_ledger(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.append_core._pause_ms", lambda _: 3_600_000)
    monkeypatch.setattr("magnetar.managed_ledger.closing.DRAIN_TIMEOUT_S", 3600)
    log = await cluster.factory().open(NAME, CONFIG)

    async def fail(*_words: object, **_named: object) -> NoReturn:
        raise NotEnoughBookiesError("3 bookies are not among those that accept writes")

    monkeypatch.setattr(log.client, "create_ledger", fail)
    appends = Appends(log)
    appends.send(b"a")
    await eventually(lambda: appends.failed == 1)
    appends.send(b"b")
    async with asyncio.timeout(30):
        await log.close()
    assert appends.failed == 2


async def test_a_failed_ledger_is_ended_as_soon_as_the_session_is_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.managed_ledger.append_path.END_RETRY_S", 3600.0)
    factory = cluster.factory()
    log = await factory.open(NAME, CONFIG)
    appends = await appended(log, b"a")
    is_down = True
    failed = fail_writes(log, lambda path: is_down and path.startswith("/ledgers/"))
    cluster.bookie.refuse_adds = codes.IO_ERROR
    appends.send(b"b")
    await eventually(lambda: bool(failed))
    is_down, cluster.bookie.refuse_adds = False, codes.OK
    store = log.store
    assert isinstance(store, EmbeddedMetadataStore)
    store.lose_session()
    store.begin_session()
    await eventually(lambda: len(appends.acked) == 2)
    assert await read_all(log) == appends.acked
