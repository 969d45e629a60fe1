"""Adds that are acknowledged before they are durable, and what ``force`` may promise about them.

A writer of such adds relies on nothing but ``force``. Its danger is a bookie that was started again
in between: it has lost entries that it acknowledged, has nothing left to sync, and would say OK. So
the bookie remembers, as long as it runs, from which entry on it acknowledged early; it vouches for
no entry below that. It forgets ledgers that are deleted or emptied, and of very many those that
were idle longest (it isn't told when a ledger is closed): who then asks is told that it can't
vouch for anything, as after a restart.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.transport import AddRequest

LEDGERS_MAX: Final = 100_000  # remembered; some 20 MB


@dataclass(slots=True, eq=False)
class _Unsynced(AddRequest):
    """Stands in the journal's queue for a request that was answered already."""

    answered: AddRequest | None  # None: not answered early
    waiting: list[asyncio.Future[int]]  # of ``force``


class DeferredAdds:
    """Acknowledges adds before they are synced; ``force`` waits for the sync. Loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Ledger -> lowest entry acknowledged early since we run; the longest idle one first.
        self._first: OrderedDict[int, int] = OrderedDict()
        self._newest: dict[int, _Unsynced] = {}  # ledger -> the last add that isn't durable yet

    def stand_in(self, request: AddRequest) -> AddRequest:
        """Return the request to pass to the storage instead of ``request``."""
        return _Unsynced(
            request.ledger_id,
            request.master_key,
            request.entry_ids,
            request.heads,
            request.bodies,
            request.body_bytes,
            request.recovery,
            self._on_durable,
            request,
            [],
        )

    def on_accepted(self, stand_in: AddRequest, *, early: bool) -> None:
        """Acknowledge an accepted request: now, or (not ``early``) once it is durable.

        Late acknowledgements slow down a writer that is faster than the disk.
        """
        assert isinstance(stand_in, _Unsynced)
        ledger_id = stand_in.ledger_id
        self._newest[ledger_id] = stand_in
        if early:
            request, stand_in.answered = stand_in.answered, None
            assert request is not None
            self._note(ledger_id, request.entry_ids[0])
            self._loop.call_soon(request.done, request, codes.OK)

    async def force(self, ledger_id: int, first: int) -> int:
        """Return a result code once early acknowledged entries from ``first`` on are durable."""
        if self._first.get(ledger_id, first + 1) > first:
            return codes.UNKNOWN_LEDGER_STATE
        return await self.sync(ledger_id)

    async def sync(self, ledger_id: int) -> int:
        """Return a result code once everything that was acknowledged early is durable."""
        newest = self._newest.get(ledger_id)
        if newest is None:
            return codes.OK
        done: asyncio.Future[int] = self._loop.create_future()
        newest.waiting.append(done)
        return await done

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted, or belongs to other bookies now."""
        self._first.pop(ledger_id, None)

    def _note(self, ledger_id: int, first: int) -> None:
        """An entry was acknowledged, or is durable and will be."""
        known = self._first
        known[ledger_id] = min(first, known.get(ledger_id, first))
        known.move_to_end(ledger_id)
        while len(known) > LEDGERS_MAX:
            idle = next((id_ for id_ in known if id_ not in self._newest), ledger_id)
            if idle == ledger_id:
                return  # the others wait for the disk: no more than the journal may queue
            del known[idle]

    def _on_durable(self, request: AddRequest, code: int) -> None:
        assert isinstance(request, _Unsynced)
        # A ledger's adds become durable in order: behind the newest there is nothing.
        if self._newest.get(request.ledger_id) is request:
            del self._newest[request.ledger_id]
        if request.answered is not None:
            # It is durable, but a force that names it must not be told that we know nothing.
            if code == codes.OK:
                self._note(request.ledger_id, request.entry_ids[0])
            request.answered.done(request.answered, code)
        for done in request.waiting:
            if not done.done():
                done.set_result(code)
