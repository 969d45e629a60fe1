"""The node's compare-and-set discipline, one interleaving at a time."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.managed_ledger.cursor.cursor_store import (
    CursorNode,
    CursorStore,
    decode_node,
    encode_node,
)
from magnetar.managed_ledger.cursor.errors import CursorFencedError
from magnetar.metadata.errors import (
    BadVersionError,
    MetadataWriteError,
    OutcomeUnknownError,
)
from magnetar.metadata.store import Versioned
from tests.unit.managed_ledger.cursor_doubles import FakeLog, FakeNodes, FakeStore, Faults

PATH = "/managed-ledgers/t/n/persistent/log/sub"
NODE = CursorNode((1, 2))


class ScriptedStore(FakeStore):
    """Each put or delete first runs the next line of a script; None: nothing special."""

    def __init__(self, nodes: FakeNodes) -> None:
        super().__init__(nodes, Faults(), "s")
        self.script: list[Callable[[str, bytes, int | None], None] | None] = []

    def next_line(self, path: str, value: bytes, expected: int | None) -> None:
        if self.script and (line := self.script.pop(0)) is not None:
            line(path, value, expected)

    async def put(self, path: str, value: bytes, expected_version: int | None = None) -> Versioned:
        self.next_line(path, value, expected_version)
        return await super().put(path, value, expected_version)

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        self.next_line(path, b"", expected_version)
        await super().delete(path, expected_version)


@pytest.fixture
def nodes() -> FakeNodes:
    return FakeNodes()


@pytest.fixture
def fake(nodes: FakeNodes) -> ScriptedStore:
    return ScriptedStore(nodes)


@pytest.fixture
def log(fake: ScriptedStore, nodes: FakeNodes) -> FakeLog:
    log = FakeLog({1: 9}, nodes=nodes)
    log.store = fake
    return log


@pytest.fixture
def store(log: FakeLog) -> CursorStore:
    return new_store(log)


def new_store(log: FakeLog) -> CursorStore:
    any_log: Any = log  # it implements what is used of a ManagedLedgerView
    return CursorStore(any_log, PATH, "me")


def stored(nodes: FakeNodes) -> tuple[CursorNode, str]:
    return decode_node(nodes.nodes[PATH][0], PATH)


def lost(path: str, value: bytes, expected: int | None) -> None:
    raise OutcomeUnknownError(path)


def refused(path: str, value: bytes, expected: int | None) -> None:
    raise MetadataWriteError(path, OSError("disk full"))


async def test_create_and_change(store: CursorStore, nodes: FakeNodes) -> None:
    await store.write(NODE)
    await store.write(CursorNode((1, 3)))
    assert stored(nodes) == (CursorNode((1, 3)), "me")
    assert nodes.nodes[PATH][1] == 1


async def test_a_lost_reply_whether_applied_or_not(
    store: CursorStore, fake: ScriptedStore, nodes: FakeNodes
) -> None:
    def applied(path: str, value: bytes, expected: int | None) -> None:
        nodes.apply(path, value, expected)
        raise OutcomeUnknownError(path)

    fake.script = [applied, None, lost, None, applied, lost, lost]
    await store.write(NODE)
    await store.write(CursorNode((1, 3)))
    await store.write(CursorNode((1, 4)))
    assert stored(nodes)[0] == CursorNode((1, 4))
    assert nodes.nodes[PATH][1] == 2  # each value once
    assert not store.is_uncertain


async def test_lost_for_good_and_applied_late(
    store: CursorStore, fake: ScriptedStore, nodes: FakeNodes
) -> None:
    await store.write(NODE)
    late = (encode_node(CursorNode((1, 3), 77), "me"), 0)
    fake.script = [lost] * 4
    with pytest.raises(OutcomeUnknownError):
        await store.write(CursorNode((1, 3), 77))
    uncertain = [store.is_uncertain]
    nodes.apply(PATH, *late)
    await store.write(CursorNode((1, 5)))  # the version is refused, the value is ours: over it
    assert stored(nodes)[0] == CursorNode((1, 5))
    uncertain.append(store.is_uncertain)
    assert uncertain == [True, False]
    with pytest.raises(BadVersionError):
        nodes.apply(PATH, *late)


async def test_a_failed_write_settles_nothing_of_an_earlier_one(
    store: CursorStore, fake: ScriptedStore
) -> None:
    fake.script = [refused]
    with pytest.raises(MetadataWriteError):
        await store.write(NODE)
    assert not store.is_uncertain
    fake.script = [lost, refused, refused]
    for _ in range(2):
        with pytest.raises(MetadataWriteError):
            await store.write(NODE)
        assert store.is_uncertain


async def test_another_owner_means_fenced(
    store: CursorStore, nodes: FakeNodes, log: FakeLog
) -> None:
    await store.write(NODE)
    log.successor("other")
    nodes.apply(PATH, encode_node(CursorNode((9, 9)), "other"), 0)
    with pytest.raises(CursorFencedError, match="another owner wrote"):
        await store.write(NODE)
    with pytest.raises(CursorFencedError, match="another owner wrote"):
        await store.delete()
    nodes.apply(PATH, b"garbage", 1)
    with pytest.raises(CursorFencedError, match="another owner wrote"):
        await store.write(NODE)
    assert nodes.nodes[PATH][0] == b"garbage"


async def test_the_owner_of_the_list_writes_over_whoever_lost_it(
    store: CursorStore, nodes: FakeNodes, fake: ScriptedStore, log: FakeLog
) -> None:
    rival = encode_node(CursorNode((1, 1)), "rival")

    def overtaken(path: str, value: bytes, expected: int | None) -> None:
        nodes.apply(PATH, rival, None)

    await store.write(NODE)
    nodes.apply(PATH, rival, 0)  # found by the look before the write
    await store.write(CursorNode((1, 3)))
    assert stored(nodes) == (CursorNode((1, 3)), "me")
    fake.script = [overtaken, None, overtaken]  # and by the refused version
    await store.write(CursorNode((1, 4)))
    assert stored(nodes) == (CursorNode((1, 4)), "me")
    assert log.list_reads == 2
    await store.delete()
    assert nodes.nodes == {}


async def test_the_owner_of_the_list_makes_a_node_that_was_just_made(
    store: CursorStore, nodes: FakeNodes, fake: ScriptedStore
) -> None:
    rival = encode_node(CursorNode((1, 1)), "rival")

    def faster(path: str, value: bytes, expected: int | None) -> None:
        nodes.apply(PATH, rival, -1)

    fake.script = [faster]
    await store.write(NODE)
    assert stored(nodes) == (NODE, "me")


async def test_not_even_the_owner_writes_over_what_doesn_t_parse(
    store: CursorStore, nodes: FakeNodes
) -> None:
    await store.write(NODE)
    nodes.apply(PATH, b"garbage", 0)
    with pytest.raises(CursorFencedError, match="another owner wrote"):
        await store.write(NODE)
    assert nodes.nodes[PATH][0] == b"garbage"


async def test_a_node_deleted_by_another_is_not_made_again(
    store: CursorStore, nodes: FakeNodes
) -> None:
    await store.write(NODE)
    del nodes.nodes[PATH]
    with pytest.raises(CursorFencedError, match="deleted"):
        await store.write(NODE)
    assert nodes.nodes == {}
    await store.delete()  # missing: success


async def test_create_races_with_a_node_that_vanishes(
    store: CursorStore, fake: ScriptedStore, nodes: FakeNodes
) -> None:
    def exists(path: str, value: bytes, expected: int | None) -> None:
        raise BadVersionError(path, -1, 0)

    fake.script = [exists]
    await store.write(NODE)
    assert stored(nodes) == (NODE, "me")


async def test_versions_refused_for_ever(store: CursorStore, fake: ScriptedStore) -> None:
    def moved(path: str, value: bytes, expected: int | None) -> None:
        raise BadVersionError(path, 0, 1)

    await store.write(NODE)
    fake.script = [moved] * 4
    with pytest.raises(OutcomeUnknownError):
        await store.write(CursorNode((1, 7)))
    assert store.is_uncertain
    fake.script = [moved] * 4
    with pytest.raises(MetadataWriteError):  # a new version was written: it stays
        await store.delete()
    assert await store.read() is not None


async def test_claim_rewrites_and_retries(
    store: CursorStore, fake: ScriptedStore, nodes: FakeNodes
) -> None:
    assert await store.claim() is None
    nodes.apply(PATH, encode_node(CursorNode((1, 1)), "other"), None)

    def overtaken(path: str, value: bytes, expected: int | None) -> None:
        nodes.apply(PATH, encode_node(CursorNode((1, 2)), "other"), None)

    fake.script = [overtaken]
    assert await store.claim() == CursorNode((1, 2))
    assert stored(nodes) == (CursorNode((1, 2)), "me")
    fake.script = [overtaken] * 4
    with pytest.raises(CursorFencedError, match="keep writing"):
        await store.claim()


async def test_delete_with_lost_replies(
    store: CursorStore, fake: ScriptedStore, nodes: FakeNodes, log: FakeLog
) -> None:
    def applied(path: str, value: bytes, expected: int | None) -> None:
        del nodes.nodes[PATH]
        raise OutcomeUnknownError(path)

    def moved(path: str, value: bytes, expected: int | None) -> None:
        raise BadVersionError(path, 0, 1)

    def gone(path: str, value: bytes, expected: int | None) -> None:
        del nodes.nodes[PATH]
        raise BadVersionError(path, 0, None)

    for line in (lost, applied, moved, gone):
        await new_store(log).write(NODE)
        found = await store.read()
        assert found == NODE
        fake.script = [line]
        await store.delete()
        assert nodes.nodes == {}


async def test_a_delete_that_was_given_up_has_no_effect_later(
    store: CursorStore, fake: ScriptedStore, nodes: FakeNodes
) -> None:
    await store.write(NODE)
    (_, before) = nodes.nodes[PATH]
    fake.script = [lost] * 4
    with pytest.raises(MetadataWriteError):  # "it is there, and stays"
        await store.delete()
    assert nodes.nodes[PATH][1] > before  # what may still arrive asks for the version before
    assert stored(nodes) == (NODE, "me")


async def test_a_node_made_anew_isn_t_overwritten_though_its_version_is_the_same(
    store: CursorStore, nodes: FakeNodes, log: FakeLog
) -> None:
    await store.write(NODE)
    del nodes.nodes[PATH]
    log.successor("other")
    nodes.apply(PATH, encode_node(CursorNode((9, 9)), "other"), -1)
    assert nodes.nodes[PATH][1] == 0  # the version that the first node had
    with pytest.raises(CursorFencedError, match="another owner wrote"):
        await store.write(CursorNode((1, 3)))
    with pytest.raises(CursorFencedError, match="another owner wrote"):
        await store.delete()
    assert stored(nodes) == (CursorNode((9, 9)), "other")
