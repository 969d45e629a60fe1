"""A bookie behind a port for readers: entries are read, nothing is changed."""

import asyncio
from collections.abc import Awaitable

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.read_only_client import ReadOnlyBookieClient
from magnetar.bookkeeper.errors import LedgerError, UnauthorizedAccessError
from magnetar.bookkeeper.packet import encode_head
from magnetar.bookkeeper.transport import AddRequest, ReadRequest
from tests.simulation.model_bookie import ModelBookie, ModelBookieClient

MINE, OTHERS = 7, 8
KEY = bytes(20)


@pytest.fixture
async def bookie() -> ModelBookie:
    """Two ledgers with an entry each."""
    found = ModelBookie("b0")
    for ledger_id in (MINE, OTHERS):
        assert found.add(add_of(ledger_id, 0)) == codes.OK
    return found


def add_of(
    ledger_id: int, entry_id: int, answers: list[int] | None = None, *, recovery: bool = False
) -> AddRequest:
    head = encode_head(ledger_id, entry_id, entry_id - 1, 8, b"head", b"body")

    def done(_: AddRequest, code: int) -> None:
        assert answers is not None
        answers.append(code)

    return AddRequest(ledger_id, KEY, [entry_id], [head], [b"body"], len(head) + 4, recovery, done)


async def mine_only(ledger_id: int) -> int:
    return codes.OK if ledger_id == MINE else codes.UNAUTHORIZED


def reader(bookie: ModelBookie, *, checked: bool = False) -> ReadOnlyBookieClient:
    return ReadOnlyBookieClient(ModelBookieClient(bookie), mine_only if checked else None)


async def test_entries_are_read(bookie: ModelBookie) -> None:
    client = reader(bookie)
    assert client.bookie_id == "b0"
    reply = await client.read_entries(ReadRequest(OTHERS, 0, 10, 1 << 20))
    assert (reply.code, len(reply.packets)) == (codes.OK, 1)
    lac = await client.read_lac(OTHERS, fence=False)
    assert (lac.code, lac.last_packet) == (codes.OK, reply.packets[0])
    assert (await client.wait_lac(OTHERS, -1, 0.0)).last_packet == reply.packets[0]
    assert await client.list_entries(OTHERS) == [(0, 1)]
    assert (await client.info()).bookie_id == "b0"
    heads = await client.read_heads(ReadRequest(OTHERS, 0, 10, head_bytes=4))
    assert (heads.code, heads.heads) == (codes.OK, [b"head"])


@pytest.mark.parametrize("recovery", [False, True])
async def test_nothing_is_added(bookie: ModelBookie, recovery: bool) -> None:
    answers: list[int] = []
    client = reader(bookie)
    client.add_entries(add_of(MINE, 1, answers, recovery=recovery))
    assert answers == []
    await asyncio.sleep(0)
    assert answers == [codes.READ_ONLY]
    assert list(bookie.ledgers[MINE].entries) == [0]


async def test_nothing_is_fenced_or_set(bookie: ModelBookie) -> None:
    client = reader(bookie)
    reply = await client.read_entries(ReadRequest(MINE, 0, 1, 1, fence=True, master_key=KEY))
    assert (reply.code, reply.packets) == (codes.READ_ONLY, [])
    lac = await client.read_lac(MINE, fence=True, master_key=KEY)
    assert (lac.code, lac.last_packet) == (codes.READ_ONLY, None)
    assert not bookie.ledgers[MINE].fenced
    assert await client.write_lac(MINE, 5, master_key=KEY) == codes.READ_ONLY
    assert bookie.ledgers[MINE].explicit_lac == -1
    assert await client.force(MINE, 0, master_key=KEY) == codes.READ_ONLY
    assert await client.report_corrupt(MINE, 0) == codes.READ_ONLY


async def test_what_is_about_the_whole_bookie_is_refused(bookie: ModelBookie) -> None:
    client = reader(bookie)
    for call in (client.list_ledgers(0, 10), client.check_data(), client.check_data(scrub=True)):
        with pytest.raises(UnauthorizedAccessError):
            await call


async def test_who_may_read_one_ledger_reads_no_other(bookie: ModelBookie) -> None:
    client = reader(bookie, checked=True)
    assert (await client.read_entries(ReadRequest(MINE, 0, 1, 1))).code == codes.OK
    assert (await client.read_lac(MINE, fence=False)).code == codes.OK
    assert await client.list_entries(MINE) == [(0, 1)]

    answers = [
        (await client.read_entries(ReadRequest(OTHERS, 0, 1, 1))).code,
        (await client.read_lac(OTHERS, fence=False)).code,
        (await client.wait_lac(OTHERS, -1, 0.0)).code,
        (await client.read_heads(ReadRequest(OTHERS, 0, 1, head_bytes=4))).code,
        await _code_of(client.list_entries(OTHERS)),
    ]
    assert answers == [codes.UNAUTHORIZED] * len(answers)


async def _code_of(call: Awaitable[object]) -> int:
    with pytest.raises(LedgerError) as caught:
        await call
    return caught.value.code
