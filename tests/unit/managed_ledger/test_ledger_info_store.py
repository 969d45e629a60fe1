"""Compare-and-set of the list: lost answers, other owners, failing stores."""

import pytest

from magnetar.managed_ledger.errors import ManagedLedgerFencedError
from magnetar.managed_ledger.ledger_info_store import UPDATE_ATTEMPTS, LedgerInfoStore
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo, encode_info
from magnetar.metadata.embedded import EmbeddedMetadataStore
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import MetadataStore, Versioned

PATH = "/managed-ledgers/t/n/persistent/x"


class Unreliable:
    """A store whose next puts fail, before or after they are applied."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.fail_before = 0
        self.fail_after = 0
        self.puts = 0

    async def get(self, path: str) -> Versioned | None:
        return await self.store.get(path)

    async def put(self, path: str, value: bytes, expected_version: int | None = None) -> Versioned:
        self.puts += 1
        if self.fail_before:
            self.fail_before -= 1
            raise MetadataError("not sent")
        stored = await self.store.put(path, value, expected_version)
        if self.fail_after:
            self.fail_after -= 1
            raise MetadataError("answer lost")
        return stored


async def make(monkeypatch: pytest.MonkeyPatch) -> tuple[Unreliable, LedgerInfoStore]:
    monkeypatch.setattr("magnetar.managed_ledger.ledger_info_store.RETRY_DELAY_S", 0)
    store = EmbeddedMetadataStore.open(None)
    info = ManagedLedgerInfo(owner="me")
    await store.put(PATH, encode_info(info), -1)
    unreliable = Unreliable(store)
    return unreliable, LedgerInfoStore(unreliable, PATH, "me", info, 0)  # type: ignore[arg-type]  # two methods are used


async def test_update_and_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lists = await make(monkeypatch)
    info = await lists.update(lambda x: x.with_ledger(4))
    assert lists.info is info
    assert lists.version == 1
    assert await lists.update(lambda x: x.with_ledger(4)) is info
    assert store.puts == 1
    await store.store.close()


async def test_lost_answer_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    store, lists = await make(monkeypatch)
    store.fail_after = 1
    info = await lists.update(lambda x: x.with_ledger(4))
    assert [x.ledger_id for x in info.ledgers] == [4]
    assert lists.version == 1
    assert not lists.is_lost
    await store.store.close()


async def test_failing_store_gives_up_and_looks_before_the_next_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, lists = await make(monkeypatch)
    store.fail_before = UPDATE_ATTEMPTS - 1
    store.fail_after = 1
    with pytest.raises(MetadataError, match="answer lost"):
        await lists.update(lambda x: x.with_ledger(4))
    info = await lists.update(lambda x: x.with_properties({"a": "b"}))
    assert [x.ledger_id for x in info.ledgers] == [4]
    assert info.properties == {"a": "b"}
    await store.store.close()


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_another_owner(monkeypatch: pytest.MonkeyPatch, is_deleted: bool) -> None:
    store, lists = await make(monkeypatch)
    if is_deleted:
        await store.store.delete(PATH)
    else:
        theirs = ManagedLedgerInfo(owner="other", doomed=(5,)).with_ledger(4)
        await store.store.put(PATH, encode_info(theirs), 0)
    assert not lists.is_unlisted(3)
    with pytest.raises(ManagedLedgerFencedError):
        await lists.update(lambda x: x.with_ledger(4))
    assert lists.is_lost
    assert lists.is_unlisted(3)
    assert lists.is_unlisted(4) is lists.is_unlisted(5) is is_deleted
    with pytest.raises(ManagedLedgerFencedError):
        await lists.update(lambda x: x)
    assert store.puts == 0
    await store.store.close()


async def test_a_list_made_anew_isn_t_overwritten_though_its_version_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, lists = await make(monkeypatch)
    # Versions begin at 0 again when a topic is deleted and made anew.
    await store.store.delete(PATH)
    anew = encode_info(ManagedLedgerInfo(owner="other").with_ledger(9))
    assert (await store.store.put(PATH, anew, -1)).stat.version == lists.version
    with pytest.raises(ManagedLedgerFencedError):
        await lists.update(lambda x: x.with_ledger(4))
    found = await store.store.get(PATH)
    assert found is not None
    assert found.value == anew
    assert lists.is_unlisted(4)
    await store.store.close()


async def test_another_owner_between_the_look_and_the_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, lists = await make(monkeypatch)
    theirs = encode_info(ManagedLedgerInfo(owner="other").with_ledger(4))
    put = store.put

    async def overtaken(path: str, value: bytes, expected_version: int | None = None) -> Versioned:
        await store.store.put(path, theirs, 0)
        return await put(path, value, expected_version)

    monkeypatch.setattr(store, "put", overtaken)
    with pytest.raises(ManagedLedgerFencedError):
        await lists.update(lambda x: x.with_ledger(5))
    assert store.puts == 1
    await store.store.close()
