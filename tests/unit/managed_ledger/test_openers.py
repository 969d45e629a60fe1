"""Two open one log: what happens between the look at the list and the compare-and-set."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from magnetar.managed_ledger.cursor.errors import CursorFencedError
from magnetar.managed_ledger.errors import ManagedLedgerFencedError, OpenFailedError
from magnetar.managed_ledger.factory import ROOT, ManagedLedgerFactory
from magnetar.managed_ledger.ledger_list_claim import CLAIM_REFUSALS_MAX
from magnetar.managed_ledger.position import EARLIEST
from tests.unit.managed_ledger.cluster import CONFIG, NAME, Appends, Cluster, read_all

PATH = f"{ROOT}/{NAME}"


def before(
    cluster: Cluster, method: str, path: str, act: Callable[[], Awaitable[object]], times: int = 1
) -> ManagedLedgerFactory:
    """A broker in whose first calls of a method of the store for that path others act first."""
    factory = cluster.factory()
    session: Any = cluster.sessions[-1]
    call, left = getattr(session, method), times

    async def later(path_: str, *arguments: Any, **named: Any) -> Any:
        nonlocal left
        if path_ == path and left:
            left -= 1
            await act()
        return await call(path_, *arguments, **named)

    setattr(session, method, later)
    return factory


async def test_an_opener_yields_to_one_that_came_with_it(cluster: Cluster) -> None:
    first = Appends(await cluster.factory().open(NAME, CONFIG))
    await first.stored(b"a")
    fast: list[Appends] = []

    async def overtake() -> None:
        fast.append(Appends(await cluster.factory().open(NAME, CONFIG)))
        fast[0].send(b"b")
        await fast[0].settle()

    slow = before(cluster, "put", PATH, overtake)
    with pytest.raises(OpenFailedError, match="another owner opened it meanwhile"):
        await slow.open(NAME, CONFIG)
    fast[0].send(b"c")  # its ledger isn't fenced
    await fast[0].settle()
    assert fast[0].failed == 0
    later = await slow.open(NAME, CONFIG)  # asked again it takes the log, as anybody may
    assert await read_all(later) == first.acked + fast[0].acked


async def test_an_old_owner_that_writes_once_more_is_fenced_all_the_same(cluster: Cluster) -> None:
    """(ii) of docs/spec/storage.md, "Owners of a log": an unseen ledger is listed."""
    config = replace(CONFIG, ledger_entries_max=2)
    old = Appends(await cluster.factory().open(NAME, config))
    await old.log.open_cursor("hold", EARLIEST)
    await old.stored(b"a")

    async def rotate() -> None:
        old.log.append_path().core.rotate(cluster.now_ms)
        old.log.append_path().run()
        await old.stored(b"late")

    log = await before(cluster, "put", PATH, rotate).open(NAME, config)
    assert [x for _, x in await read_all(log)] == [b"a", b"late"]
    await old.stored(b"fenced")
    assert [type(x) for x in old.errors] == [ManagedLedgerFencedError]
    assert await read_all(log) == old.acked


async def test_an_old_owner_that_goes_on_trimming_is_overtaken_in_the_end(cluster: Cluster) -> None:
    old = await cluster.factory().open(NAME, CONFIG)
    count = 0

    async def write_list() -> None:
        nonlocal count
        count += 1
        await old.set_properties({"n": str(count)})

    patient = before(cluster, "put", PATH, write_list, times=CLAIM_REFUSALS_MAX - 1)
    assert (await patient.open(NAME, CONFIG)).properties == {"n": str(CLAIM_REFUSALS_MAX - 1)}
    old = await cluster.factory().open(NAME, CONFIG)
    refused = before(cluster, "put", PATH, write_list, times=CLAIM_REFUSALS_MAX)
    with pytest.raises(OpenFailedError, match="goes on writing"):
        await refused.open(NAME, CONFIG)
    await old.set_properties({"still": "ours"})


async def test_an_opener_that_lost_the_list_takes_no_cursor_for_good(cluster: Cluster) -> None:
    """It claims the list, another does so after it, and then it takes the cursors' nodes."""
    first = Appends(await cluster.factory().open(NAME, CONFIG))
    await first.log.open_cursor("sub", EARLIEST)
    await first.stored(b"a", b"b", b"c")
    at = [x for x, _ in first.acked]
    winners = []

    async def overtake() -> None:
        winner = await cluster.factory().open(NAME, CONFIG)
        winners.append(winner)
        winner.cursors["sub"].ack([at[0]])
        await winner.cursors["sub"].flush()

    slow = before(cluster, "children", PATH, overtake)
    with pytest.raises(OpenFailedError, match="another owner opened it meanwhile"):
        await slow.open(NAME, CONFIG)
    winner = winners[0]
    winner.cursors["sub"].ack([at[1]])  # its cursor ledger and its node were taken meanwhile
    await winner.cursors["sub"].flush()
    assert winner.is_owner
    new_owner = await cluster.factory().open(NAME, CONFIG)
    assert new_owner.cursors["sub"].mark_delete == at[1]
    winner.cursors["sub"].ack([at[2]])
    with pytest.raises(CursorFencedError):
        await winner.cursors["sub"].flush()
    assert winner.state == "Fenced"
    with pytest.raises(ManagedLedgerFencedError):
        await winner.open_cursor("another")


async def test_a_cursor_that_is_opened_after_the_list_was_lost_isn_t_served(
    cluster: Cluster,
) -> None:
    stale = await cluster.factory().open(NAME, CONFIG)
    await cluster.factory().open(NAME, CONFIG)
    with pytest.raises(ManagedLedgerFencedError):
        await stale.open_cursor("sub", EARLIEST)
    assert not stale.is_owner
