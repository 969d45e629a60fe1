"""Metadata of a stopped cluster get BookKeeper's form, whichever step is the last one at first."""

import itertools
from collections.abc import AsyncIterator

import pytest

from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.convert_metadata import convert, look_at_conversion
from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.cookie_format import Cookie, decode_cookie, location_of
from magnetar.bookkeeper.layout.find_layout import find_layout, open_layout
from magnetar.bookkeeper.layout.layout import JsonLayout, Layout
from magnetar.bookkeeper.ledger_metadata import (
    EnsembleSegment,
    LedgerMetadata,
    begin_recovery,
    same_master_key,
)
from magnetar.bookkeeper.replication.under_replication import (
    CHECK_ALL_LEDGERS,
    UnderReplicationStore,
)
from magnetar.bookkeeper.service_info import ServiceInfo
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import MetadataError, MetadataWriteError, OutcomeUnknownError
from magnetar.metadata.store import MetadataStore, Versioned

BOOKIES = ("127.0.0.1:3181", "b2")
Tree = dict[str, bytes]


class FailsOnce(EmbeddedMetadataStore):
    """Its change number ``fail_at`` fails; ``happens``: and is done all the same."""

    fail_at = 0
    happens = False
    changes = 0

    async def put(self, path: str, *rest: object, **more: object) -> Versioned:
        self.changes += 1
        fails = self.changes == self.fail_at
        if fails and not self.happens:
            raise MetadataWriteError(path, OSError())
        node = await super().put(path, *rest, **more)  # type: ignore[arg-type]
        if fails:
            raise OutcomeUnknownError(path)
        return node

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        self.changes += 1
        fails = self.changes == self.fail_at
        if fails and not self.happens:
            raise MetadataWriteError(path, OSError())
        await super().delete(path, expected_version)
        if fails:
            raise OutcomeUnknownError(path)


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    store = EmbeddedMetadataStore.open(None)
    yield store
    await store.close()


def new_ledger(ledger_id: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id,
        2,
        2,
        1,
        (EnsembleSegment(0, BOOKIES),),
        password=b"pw" if ledger_id % 2 else b"",
        custom_metadata={"who": b"us"},
        created_ms=17,
        creator_token=99,
    )


async def make_cluster(store: MetadataStore) -> None:
    """Of our own layout."""
    layout = JsonLayout()
    await store.put("/ledgers/INSTANCEID", b"the-cluster")
    for number, bookie in enumerate(BOOKIES):
        cookie = Cookie(bookie, "the-cluster", f"directory-{number}", generation=4)
        await store.put(layout.cookie_path(bookie), layout.encode_cookie(cookie, "/z/u", None))
    ledgers = LedgerStore(store)
    for _ in range(3):
        await ledgers.create(new_ledger)
    await ledgers.update(2, begin_recovery)
    markers = UnderReplicationStore(store, lambda: 1000)
    await markers.mark(1, ["b2"], suspects=["b2"])
    await markers.note(1, "no target")
    await markers.set_lost_bookie_delay_s(90.5)
    await markers.set_check_time_ms(CHECK_ALL_LEDGERS, 300)
    await markers.disable("a reason")


async def tree(store: MetadataStore, path: str = "/ledgers") -> Tree:
    node = await store.get(path)
    assert node is not None
    found = {path: node.value}
    for name in await store.children(path):
        found |= await tree(store, f"{path}/{name}")
    return found


async def seen(store: MetadataStore, layout: Layout) -> list[object]:
    """What processes of the cluster make of its metadata."""
    ledgers, markers = LedgerStore(store, layout), UnderReplicationStore(store, lambda: 1, layout)
    read = [(await ledgers.require(each)).metadata for each in range(3)]
    cookies = [await store.get(layout.cookie_path(each)) for each in BOOKIES]
    marker = await markers.read(1)
    assert marker is not None
    return [
        read,
        [(decode_cookie(each.value, ""), location_of(each.value)) for each in cookies if each],
        (marker.bookies, marker.suspects, marker.reason, marker.created_ms),
        await markers.disabled(),
        await markers.check_time_ms(CHECK_ALL_LEDGERS),
    ]


async def finish(store: MetadataStore) -> None:
    found = await look_at_conversion(store)
    if found.is_needed:
        assert found.problems == ()
        await convert(store, lambda _: None)


async def test_everything_is_kept(store: MetadataStore) -> None:
    await make_cluster(store)
    # Not an operator's: what the settings of an auditor say later takes its place.
    await store.put("/ledgers/underreplication/lostBookieRecoveryDelay", b"+90.5")
    before, values = await seen(store, JsonLayout()), await tree(store)
    looked = await look_at_conversion(store)
    assert (looked.ledgers, looked.cookies, looked.marks) == (3, 2, 1)
    assert (looked.first_id, looked.problems) == (1 << 32, ())
    assert await tree(store) == values  # it only looked

    counts: list[int] = []
    await convert(store, counts.append)
    assert sum(counts) == 3
    assert isinstance(await find_layout(store), BookKeeperLayout)
    assert await seen(store, BookKeeperLayout()) == before
    for path, value in (await tree(store)).items():
        assert not value.startswith(b"{") or path.endswith("/disable"), path
    assert sorted(await store.children("/ledgers/cookies")) == sorted(BOOKIES)
    delay = await store.get("/ledgers/underreplication/lostBookieRecoveryDelay")
    assert delay is not None
    assert delay.value == b"+91"
    created = await LedgerStore(store, BookKeeperLayout()).create(new_ledger)
    assert created.metadata.ledger_id == looked.first_id
    assert not (await look_at_conversion(store)).is_needed


@pytest.mark.parametrize("happens", [False, True])
async def test_it_may_be_cut_short_anywhere(happens: bool) -> None:
    expected: Tree | None = None
    for fail_at in itertools.count(0):
        store = FailsOnce.open(None)
        assert isinstance(store, FailsOnce)
        try:
            await make_cluster(store)
            store.changes, store.fail_at, store.happens = 0, fail_at, happens
            try:
                await convert(store, lambda _: None)
                is_cut = False
            except MetadataError:
                is_cut = True
                if await store.exists("/ledgers/conversion"):
                    with pytest.raises(LedgerMetadataError, match="metadata convert"):
                        await open_layout(store)
                await finish(store)
            found = await tree(store)
            expected = expected or found
            assert found == expected, fail_at
            if fail_at and not is_cut:
                assert fail_at > 12  # as many changes there are at least
                return
        finally:
            await store.close()


async def test_a_running_or_damaged_cluster_is_left_alone(store: MetadataStore) -> None:
    await make_cluster(store)
    layout = JsonLayout()
    info = ServiceInfo("b2", "/z/u", ("host", 1))
    await store.put(layout.bookie_path("b2", read_only=True), layout.encode_bookie(info))
    await store.put("/ledgers/00/0000/L0001", b"{}")
    await store.put(layout.cookie_path("a b"), b"{}")
    problems = (await look_at_conversion(store)).problems
    assert len(problems) == 3
    assert problems[0] == "bookie b2 is registered: stop it"
    assert problems[1].startswith("ledger 1: ")
    assert "/ledgers/cookies/a+b" in problems[2]


async def test_there_may_be_nothing_to_do(store: MetadataStore) -> None:
    assert not (await look_at_conversion(store)).is_needed
    await open_layout(store)
    assert not (await look_at_conversion(store)).is_needed


def test_both_keys_of_no_password_are_one() -> None:
    ours = new_ledger(0)
    theirs = BookKeeperLayout().new_ledger(ours)
    assert ours.master_key != theirs.master_key
    assert same_master_key(ours.master_key, theirs.master_key)
    assert same_master_key(theirs.master_key, ours.master_key)
    other = new_ledger(1).master_key
    assert not same_master_key(ours.master_key, other)
    assert not same_master_key(other, theirs.master_key)
