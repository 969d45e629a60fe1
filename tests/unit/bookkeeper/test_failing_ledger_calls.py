"""Whatever ``Ledgers`` can do, on a store that fails at its k-th call, for every k.

Its methods are found, not listed: one that comes new is in if its parameters are known here.
"""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from magnetar.bookkeeper.errors import LedgerError, NoSuchLedgerError
from magnetar.bookkeeper.ledgers import Ledgers
from magnetar.metadata.errors import MetadataError, OutcomeUnknownError
from tests.unit.bookkeeper.replication.cluster import Cluster, virtual

_WRITES: Final = ("put", "delete")
_CALLS: Final = (*_WRITES, "get", "children", "exists")
OPERATIONS: Final = sorted(
    name
    for name, method in vars(Ledgers).items()
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
)


async def perform(ledgers: Ledgers, name: str, ledger_id: int) -> None:
    known = {"ledger_id": ledger_id, "password": b"secret"}
    known |= dict.fromkeys(("ensemble_size", "write_quorum", "ack_quorum"), 1)
    method = getattr(ledgers, name)
    given = {each: known[each] for each in inspect.signature(method).parameters if each in known}
    result = method(**given)
    if inspect.isawaitable(result):
        await result
    else:
        async for _ in result:
            pass


class Failing:
    """The k-th call of a store fails, with its effect (``is_lost``) or without."""

    def __init__(self, store: object, at: int, *, is_lost: bool) -> None:
        self.calls, self._at, self._is_lost = 0, at, is_lost
        for name in _CALLS:
            setattr(store, name, self._call(getattr(store, name), name in _WRITES))

    def _call(self, real: Callable[..., Awaitable[Any]], writes: bool) -> Callable[..., Any]:
        async def call(path: str, *more: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls - 1 != self._at:
                return await real(path, *more, **named)
            if self._is_lost and writes:
                await real(path, *more, **named)
                raise OutcomeUnknownError(path)
            raise MetadataError(f"{path}: connection loss")

        return call


def run(name: str, at: int, *, is_lost: bool) -> int:
    """The operation under a fault, then what must hold; how many calls it made."""

    async def scenario() -> int:
        async with Cluster(1) as cluster:
            ledger_id = (await cluster.write(3, (1, 1, 1), close=False)).ledger_id
            ledgers = Ledgers(cluster.store, cluster.client)
            failing, error = Failing(cluster.store, at, is_lost=is_lost), ""
            try:
                await perform(ledgers, name, ledger_id)
            except (LedgerError, MetadataError) as failure:
                error = str(failure)
            calls, failing.calls = failing.calls, 1_000_000  # it is well again
            try:
                view = await ledgers.open(ledger_id, password=b"secret")
                found = [body async for _, body in view.entries()]
                assert found == list(cluster.written[ledger_id].values())
                assert view.is_closed
            except NoSuchLedgerError:
                assert name == "delete"
            else:
                assert name != "delete" or error
            await perform(ledgers, name, ledger_id)
            return calls

    return virtual(scenario)


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_was_or_what_was_asked_for(name: str) -> None:
    calls = run(name, -1, is_lost=False)
    assert calls
    for at in range(calls):
        for is_lost in (False, True):
            run(name, at, is_lost=is_lost)
