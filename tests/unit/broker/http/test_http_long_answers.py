"""Answers about topics with very many ledgers: whole, by pieces, and no long turn of the loop."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
import starlette.responses
from fastapi import Request
from starlette.responses import StreamingResponse

from magnetar.broker.http.streamed_answers import (
    StreamedAnswer,
    in_pieces,
    long_array,
    long_object,
)
from magnetar.broker.http.topics.topic_internals import internal_stats, ledger_info, offline_stats
from magnetar.broker.http.topics.topic_segments import topic_segments
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.ledger_rows import CHUNK_ROWS, LedgerInfo, LedgerRows, PackedRows
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.managed_ledger_info import LedgerOffsets
from magnetar.managed_ledger.offload.context import CopyState, LedgerCopy, OffloadContext
from magnetar.managed_ledger.stored_info import StoredManagedLedger
from magnetar.metadata.store import Stat
from tests.unit.broker.http.long_answer import whole
from tests.unit.managed_ledger.cluster import CONFIG, NAME, Cluster
from tests.unit.managed_ledger.turns import Turns

LEDGERS = 120_000


def row(n: int) -> LedgerInfo:
    copy = LedgerCopy(n, f"uuid-{n}", "filesystem", {"fileSystemURI": "file:///copies"})
    offload = OffloadContext(copy, CopyState.ONLY, 7, 100) if n % 4 == 0 else None
    return LedgerInfo(n, 2, 20, 1000, offload)


@pytest.fixture
async def log(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ManagedLedger]:
    cluster = Cluster()
    log = await cluster.factory().open(NAME, CONFIG)
    starts = range(0, LEDGERS, CHUNK_ROWS)
    segments = [PackedRows.of([*map(row, range(n, n + CHUNK_ROWS))]) for n in starts]
    rows = LedgerRows(map(row, range(LEDGERS, LEDGERS + 1500)), tuple(segments))
    with monkeypatch.context() as patch:
        patch.setattr(log.lists, "info", log.lists.info.with_rows(rows))
        patch.setattr(log, "offsets", LedgerOffsets((n, 2) for n in range(LEDGERS + 1500)))
        yield log
    await cluster.close()


async def test_no_answer_about_very_many_ledgers_holds_the_loop(log: ManagedLedger) -> None:
    names: dict[str, Any] = {
        "ledger": log,
        "subscriptions": {},
        "compacted": None,
    }
    names["service"] = SimpleNamespace(config=SimpleNamespace(advertised_host="h"))
    names["name"] = SimpleNamespace(namespace="t/n", domain="persistent", local="x")
    topic = cast(PersistentTopic, SimpleNamespace(**names))
    stored = StoredManagedLedger(log.lists.info, Stat(1, 0, 0, False, False), {})
    with Turns():
        answers = [
            [piece async for piece in pieces]
            for pieces in (
                internal_stats(topic),
                offline_stats(topic, 1),
                ledger_info(stored),
                await topic_segments(topic, None, -1, locations=False),
            )
        ]
    stats, offline, info, segments = (orjson.loads(b"".join(x)) for x in answers)
    ids = list(range(LEDGERS + 1500))
    for rows in (
        stats["ledgers"],
        offline["dataLedgerDetails"],
        info["ledgers"],
        segments["ledgers"],
    ):
        assert [x["ledgerId"] for x in rows] == ids
    assert [x["offloaded"] for x in stats["ledgers"]] == [n % 4 == 0 for n in ids]
    assert segments["lastConfirmed"] == {"ledgerId": ids[-1], "entryId": 1}


def asked(version: str = "1.1") -> Request:
    return Request({"type": "http", "http_version": version, "state": {}})


async def numbers(count: int) -> AsyncIterator[bytes]:
    for n in range(count):
        yield orjson.dumps([n] * 10_000)


async def sent(answer: Any) -> bytes:
    assert isinstance(answer, StreamingResponse)
    return b"".join([bytes(x) async for x in answer.body_iterator])  # type: ignore[arg-type]


async def test_a_short_answer_goes_out_at_once_and_a_long_one_by_pieces() -> None:
    short = await in_pieces(asked(), long_array({"a": 1}, "rows", numbers(2)))
    assert (short.headers["content-length"], short.media_type) == ("40016", "application/json")
    expected = {"a": 1, "rows": [0] * 10_000 + [1] * 10_000}
    assert orjson.loads(bytes(short.body)) == expected
    assert bytes((await in_pieces(asked(), long_array({}, "n", _none()))).body) == b'{"n":[]}'

    request = asked()
    long = orjson.loads(await sent(await in_pieces(request, long_array({}, "n", numbers(40)))))
    assert long == {"n": [n for n in range(40) for _ in range(10_000)]}
    assert request.scope["state"]  # it may be compressed
    old = await in_pieces(asked("1.0"), long_array({}, "n", numbers(40)))
    assert orjson.loads(bytes(old.body)) == long


async def _none() -> AsyncIterator[bytes]:
    yield b"[]"


async def test_pieces_without_elements_leave_no_trace() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"[]", b"[1,2]", b"[]", b"[]", b"[3]", b"[]"):
            yield piece

    assert await whole(long_array({}, "n", pieces())) == {"n": [1, 2, 3]}


async def test_parts_of_an_answer() -> None:
    text = orjson.dumps(["x" * 1_000_000])
    parts: dict[str, AsyncIterator[bytes] | bytes] = {
        "a": long_array({"b": None}, "n", numbers(1)),
        '"': text,
        "c": b"{}",
    }
    answer = long_object({"version": 0}, "partitions", parts)
    pieces = [piece async for piece in answer]
    assert max(map(len, pieces)) < 300_000
    assert orjson.loads(b"".join(pieces)) == {
        "version": 0,
        "partitions": {"a": {"b": None, "n": [0] * 10_000}, '"': ["x" * 1_000_000], "c": {}},
    }
    assert await whole(long_object({}, "partitions", {})) == {"partitions": {}}


async def test_what_fails_at_the_beginning_is_an_error_of_the_request() -> None:
    async def fail() -> AsyncIterator[bytes]:
        yield b"[1]"
        raise OSError("down")

    with pytest.raises(OSError, match="down"):
        await in_pieces(asked(), long_array({}, "n", fail()))


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_long_answer_is_made_as_long_as_its_client_is_there(
    monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """And without a task group of anyio: the first one of a process imports it for 12 ms."""
    monkeypatch.delattr(starlette.responses, "create_collapsing_task_group")
    left, asked, sent, ended = asyncio.Event(), list[str](), list[bytes](), list[bool]()

    async def pieces() -> AsyncIterator[bytes]:
        try:
            yield b"1"
            if leaves:
                left.set()
                await asyncio.Event().wait()
            yield b"2"
        finally:
            ended.append(True)

    async def receive() -> dict[str, Any]:
        if not asked:
            asked.append("body")
            return {"type": "http.request", "body": b"", "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("body", b""))

    await StreamedAnswer(pieces())({"type": "http"}, receive, send)
    assert sent == ([b"", b"1"] if leaves else [b"", b"1", b"2", b""])
    assert ended == [True]
