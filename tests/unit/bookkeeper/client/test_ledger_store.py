"""The compare-and-set loop under conflicts and lost answers, and the node paths."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.client.ledger_store import OPEN_BYTES_MAX, LedgerStore, ledger_path
from magnetar.bookkeeper.errors import NoSuchLedgerError, WriteFailedError
from magnetar.bookkeeper.ledger_metadata import (
    EnsembleSegment,
    LedgerMetadata,
    LedgerState,
    begin_recovery,
    encode,
    replace_members,
)
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import OutcomeUnknownError, ValueTooLargeError
from magnetar.metadata.store import VALUE_BYTES_MAX, MetadataStore, Versioned
from tests.unit.bookkeeper.client.conftest import Cluster, eventually
from tests.unit.bookkeeper.client.conftest import cluster as cluster  # a fixture


class LossyStore:
    """Passes calls on, but loses the answers of chosen puts, which happened or did not."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.lose: list[bool] = []  # for the next puts of ledgers: did it happen?
        self.puts: list[str] = []
        self.before: list[Callable[[], Awaitable[object]]] = []  # the next puts of ledgers

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def put(self, path: str, value: bytes, expected_version: int | None = None) -> Versioned:
        self.puts.append(path)
        if "/L" in path and self.before:
            await self.before.pop(0)()
        if "/L" in path and self.lose:
            if self.lose.pop(0):
                await self._store.put(path, value, expected_version)
            raise OutcomeUnknownError(path)
        return await self._store.put(path, value, expected_version)


def new_ledger(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id, 2, 2, 2, (EnsembleSegment(0, ("a", "b")), EnsembleSegment(3, ("a", "c")))
    )


@pytest.fixture
async def lossy() -> AsyncIterator[LossyStore]:
    store = EmbeddedMetadataStore.open(None)
    yield LossyStore(store)
    await store.close()


@pytest.fixture
def ledgers(lossy: LossyStore) -> LedgerStore:
    return LedgerStore(lossy)  # type: ignore[arg-type]  # passes everything on


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "/ledgers/00/0000/L0000"),
        (42, "/ledgers/00/0000/L0042"),
        (1234567890, "/ledgers/12/3456/L7890"),
        (2**31 - 2, "/ledgers/21/4748/L3646"),
        (2**31 - 1, "/ledgers/000/0000/0021/4748/L3647"),
        (2**63 - 1, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_paths(ledger_id: int, path: str) -> None:
    assert ledger_path(ledger_id) == path


async def test_create_costs_one_put(ledgers: LedgerStore, lossy: LossyStore) -> None:
    for _ in range(10):
        await ledgers.create(new_ledger)
    assert len([path for path in lossy.puts if "/L" in path]) == 10
    assert len(lossy.puts) == 11  # and one block of ids


async def test_lost_answer_of_create(ledgers: LedgerStore, lossy: LossyStore) -> None:
    lossy.lose = [True]
    created = await ledgers.create(new_ledger)
    assert (await ledgers.require(created.metadata.ledger_id)) == created
    lossy.lose = [False]
    another = await ledgers.create(new_ledger)
    assert another.metadata.ledger_id > created.metadata.ledger_id
    assert (await ledgers.require(another.metadata.ledger_id)) == another


async def test_create_never_takes_anothers_node(ledgers: LedgerStore, lossy: LossyStore) -> None:
    await lossy.put(ledger_path(0), encode(replace(new_ledger(0), creator_token=9)), -1)
    created = await ledgers.create(new_ledger)
    assert created.metadata.ledger_id == 1


@pytest.mark.parametrize("happened", [True, False])
async def test_lost_answer_of_an_update(
    ledgers: LedgerStore, lossy: LossyStore, happened: bool
) -> None:
    created = await ledgers.create(new_ledger)
    lossy.lose = [happened]
    calls: list[LedgerState] = []

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        calls.append(metadata.state)
        return begin_recovery(metadata)

    updated = await ledgers.update(created.metadata.ledger_id, change, created)
    assert updated.metadata.state is LedgerState.IN_RECOVERY
    assert updated.version == created.version + 1
    # Its own value read back is success: the change isn't asked again.
    assert len(calls) == (1 if happened else 2)


async def test_conflict_applies_the_change_to_what_is_stored(
    ledgers: LedgerStore, lossy: LossyStore
) -> None:
    created = await ledgers.create(new_ledger)
    ledger_id = created.metadata.ledger_id
    lossy.before.append(
        lambda: ledgers.update(ledger_id, lambda m: replace_members(m, 0, {1: ("b", "x")}))
    )
    updated = await ledgers.update(ledger_id, begin_recovery, created)
    assert updated.metadata.segments[0].bookies == ("a", "x")
    assert updated.metadata.state is LedgerState.IN_RECOVERY


async def test_update_of_a_deleted_ledger(ledgers: LedgerStore) -> None:
    created = await ledgers.create(new_ledger)
    await ledgers.delete(created.metadata.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await ledgers.update(created.metadata.ledger_id, begin_recovery, created)
    assert not await ledgers.exists(created.metadata.ledger_id)


async def test_ranges_are_ascending_and_complete(ledgers: LedgerStore, lossy: LossyStore) -> None:
    ids = [0, 9_999, 10_000, 123_456_789, 2**31 - 2, 2**31 - 1, 2**40, 2**63 - 1]
    for ledger_id in ids:
        await lossy.put(ledger_path(ledger_id), encode(new_ledger(ledger_id)), -1)
    await lossy.put("/ledgers/available/b1", b"")
    await lossy.put("/ledgers/cookies/b1", b"")
    found = [part async for part in ledgers.ranges()]
    assert [ledger_id for part in found for ledger_id in part.ledger_ids] == ids
    assert [part.first for part in found] == sorted(part.first for part in found)
    assert all(part.first <= i < part.end for part in found for i in part.ledger_ids)


# The end of what a node holds


def filling(cluster: Cluster, room: int) -> dict[str, bytes]:
    """Custom metadata that leave so many bytes of what an open ledger may have."""
    metadata = LedgerMetadata(
        1 << 30, 3, 3, 2, (EnsembleSegment(0, ("b0", "b1", "b2")),), custom_metadata={"x": b""}
    )
    return {"x": bytes((OPEN_BYTES_MAX - len(encode(metadata)) - room) * 3 // 4)}  # base64


async def test_custom_metadata_too_large_for_a_node_make_no_ledger(cluster: Cluster) -> None:
    cluster.add_bookies(3)
    with pytest.raises(ValueTooLargeError, match=f"at most {OPEN_BYTES_MAX}"):
        await cluster.client.create_ledger(LedgerConfig(3, 3, 2), filling(cluster, -100))
    assert await cluster.store.children("/ledgers") == ["idgen"]


@pytest.mark.parametrize("end", ["close", "recover"])
async def test_a_ledger_whose_metadata_are_full_can_still_be_ended(
    cluster: Cluster, end: str
) -> None:
    """One more change of the ensemble is refused, which ends the writer; all that it has confirmed
    is there, for its owner and for whoever recovers it."""
    cluster.add_bookies(4)
    config = LedgerConfig(3, 3, 2)
    writer = await cluster.client.create_ledger(config, filling(cluster, 200))

    async def append_with_a_change() -> None:
        for bookie in cluster.bookies.values():
            bookie.up = True
        cluster.bookies[writer.metadata.last_segment.bookies[0]].up = False
        wanted = writer.append([b"head"], [b"body"])
        await eventually(lambda: writer.error is not None or writer.last_confirmed == wanted)

    while writer.error is None:
        await append_with_a_change()
    appended = writer.next_entry
    assert appended > 1
    assert isinstance(writer.error, WriteFailedError)
    assert isinstance(writer.error.__cause__, ValueTooLargeError)
    if end == "close":
        await writer.close()
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_confirmed >= appended - 2
    stored = await cluster.client.ledgers.require(writer.ledger_id)
    assert stored.metadata.state is LedgerState.CLOSED
    assert OPEN_BYTES_MAX - 500 < len(encode(stored.metadata)) < VALUE_BYTES_MAX
