"""The edit log: a list of ledgers in one metadata node, of which the last one is being written.

Whoever wants to write takes over in this order: **fence, replay, write**.

1. Open every ledger of the list that isn't closed with recovery. From here on the old writer can't
   confirm anything, whatever it believes; what it had confirmed is all there.
2. Apply what hasn't been applied yet.
3. Create a ledger and append it to the list by compare-and-set on the version read before 1. If
   that fails, somebody else has changed the list: start again. Only now write.

So at most one writer gets confirmations at a time, and none depends on a clock or a session for
it: the election only chooses who should try.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from examples.edit_log.namespace import Edit, Namespace
from magnetar.bookkeeper.errors import LedgerError, NoSuchLedgerError
from magnetar.bookkeeper.ledgers import Ledgers, ReadHandle, WriteHandle
from magnetar.metadata.errors import BadVersionError, OutcomeUnknownError
from magnetar.metadata.store import CREATE_ONLY

IMAGE_PART_BYTES = 512 * 1024


class TakenOverError(Exception):
    """Another node writes the log now, or nobody knows: take over again before writing."""


@dataclass(frozen=True)
class LedgerList:
    """Value of the log's node.

    Attributes:
        image: ledger with the whole name space as it was before the first of ``ledgers``; -1: none.
        ledgers: ids, in the order of the edits.
    """

    image: int = -1
    ledgers: tuple[int, ...] = ()

    def encode(self) -> bytes:
        return json.dumps({"image": self.image, "ledgers": self.ledgers}).encode()

    @classmethod
    def decode(cls, value: bytes) -> LedgerList:
        fields = json.loads(value)
        return cls(fields["image"], tuple(fields["ledgers"]))


class EditLog:
    """One node's access to the log; ``namespace`` is what it has applied of it.

    Args:
        edits_max: a ledger is ended after so many edits. The name space is then written as an
            image, and the ledgers before it are deleted.
    """

    def __init__(
        self,
        ledgers: Ledgers,
        name: str,
        quorums: tuple[int, int, int] = (3, 3, 2),
        edits_max: int = 1000,
    ) -> None:
        self.namespace = Namespace()
        self._ledgers = ledgers
        self._path = f"/edit-logs/{name}/ledgers"
        self._quorums = quorums
        self._edits_max = edits_max
        self._list, self._version = LedgerList(), CREATE_ONLY
        self._view: ReadHandle | None = None  # the ledger that is being followed
        self._next_entry = 0
        self._writing: WriteHandle | None = None
        self._written = 0  # edits in the ledger that is being written

    # A standby follows

    async def follow(self, wait_s: float = 0.0) -> int:
        """Apply what is confirmed by now, and fence nobody; returns the number of edits applied.

        Args:
            wait_s: if there is nothing new, wait so long for something.

        Raises:
            LedgerError, MetadataError: try again later.
        """
        before = self.namespace.last_edit
        try:
            while await self._apply_next():
                pass
            view = self._view
            if view is not None and not view.is_closed and self.namespace.last_edit == before:
                await view.wait(view.last_confirmed, wait_s)
                await self._apply_new(view)
        except NoSuchLedgerError:
            # The writer made an image and deleted what came before it: begin with that image.
            self._forget()
            raise
        return self.namespace.last_edit - before

    async def _apply_next(self) -> bool:
        """Whatever is new in the ledger that is being followed; True: look at once again."""
        view = self._view
        if view is None:
            await self._begin_with_image()
            if not self._list.ledgers:
                return False
            self._view = await self._ledgers.open(self._list.ledgers[0], recover=False)
            return True
        await view.refresh()
        await self._apply_new(view)
        if not view.is_closed:
            return False
        await self._read_list()
        if view.ledger_id not in self._list.ledgers:
            self._forget()
            return True
        later = self._list.ledgers[self._list.ledgers.index(view.ledger_id) + 1 :]
        if later:
            self._view, self._next_entry = await self._ledgers.open(later[0], recover=False), 0
        return bool(later)

    async def _apply_new(self, view: ReadHandle) -> None:
        async for entry_id, entry in view.entries(self._next_entry):
            self.namespace.apply(json.loads(entry))
            self._next_entry = entry_id + 1

    # The active one takes over and writes

    async def take_over(self) -> None:
        """Fence, replay, and begin a ledger of our own.

        Raises:
            LedgerError, MetadataError: try again, as long as this node is meant to be active.
        """
        self._writing = None
        while self._writing is None:
            try:
                await self._replay_all()
                await self._begin_ledger(self._list)
            except (NoSuchLedgerError, TakenOverError):
                self._forget()  # somebody was faster: the list is another one now

    async def _replay_all(self) -> None:
        """Fence all ledgers and apply what hasn't been applied."""
        await self._read_list()
        if self._view is None or self._view.ledger_id not in self._list.ledgers:
            self._forget()
            await self._begin_with_image()
        current = -1 if self._view is None else self._view.ledger_id
        ledgers = self._list.ledgers
        for ledger_id in ledgers[0 if current < 0 else ledgers.index(current) :]:
            view = await self._ledgers.open(ledger_id, recover=True)
            if ledger_id != current:
                self._next_entry = 0
            self._view = view
            await self._apply_new(view)

    async def append(self, edits: Sequence[Edit]) -> None:
        """Make edits durable that ``namespace`` has applied already.

        Raises:
            TakenOverError: they may or may not be in the log; only taking over tells.
        """
        if self._writing is None:
            raise TakenOverError("not writing")
        try:
            await self._writing.append_all([json.dumps(edit).encode() for edit in edits])
            self._written += len(edits)
            if self._written >= self._edits_max:
                await self._roll()
        except LedgerError as error:
            self.reset()
            raise TakenOverError(str(error)) from error
        except BaseException:
            self.reset()
            raise

    async def _roll(self) -> None:
        """All edits so far are confirmed: write them as an image, and go on in a new ledger."""
        assert self._writing is not None
        await self._writing.close()
        image = await self._ledgers.create(*self._quorums)
        data = self.namespace.encode()
        parts = range(0, len(data), IMAGE_PART_BYTES)
        await image.append_all([data[at : at + IMAGE_PART_BYTES] for at in parts])
        await image.close()
        before = self._list
        await self._begin_ledger(LedgerList(image.ledger_id))
        # A crash here leaves ledgers that nobody needs, and never the other way round.
        for ledger_id in (*before.ledgers, before.image):
            if ledger_id >= 0:
                await self._ledgers.delete(ledger_id)

    async def _begin_ledger(self, base: LedgerList) -> None:
        """Append a ledger of our own to ``base``, the list as it is to be."""
        ledger = await self._ledgers.create(*self._quorums)
        wanted = replace(base, ledgers=(*base.ledgers, ledger.ledger_id))
        try:
            await self._put(wanted)
        except TakenOverError:
            await self._ledgers.delete(ledger.ledger_id)
            raise
        self._writing, self._written = ledger, 0

    async def _put(self, wanted: LedgerList) -> None:
        try:
            stored = await self._ledgers.store.put(self._path, wanted.encode(), self._version)
        except (BadVersionError, OutcomeUnknownError) as error:
            # The answer of our own write may have been lost: what is stored tells.
            found = await self._ledgers.store.get(self._path)
            if found is None or found.value != wanted.encode():
                raise TakenOverError("another node changed the list of ledgers") from error
            stored = found
        self._list, self._version = wanted, stored.stat.version

    def reset(self) -> None:
        """Forget what was applied: some of it may not be in the log."""
        self._writing = None
        self._forget()

    def _forget(self) -> None:
        self.namespace = Namespace()
        self._view, self._next_entry = None, 0

    # The list and the image

    async def _read_list(self) -> None:
        found = await self._ledgers.store.get(self._path)
        if found is None:
            self._list, self._version = LedgerList(), CREATE_ONLY
        else:
            self._list, self._version = LedgerList.decode(found.value), found.stat.version

    async def _begin_with_image(self) -> None:
        await self._read_list()
        if self._list.image >= 0:
            view = await self._ledgers.open(self._list.image)
            parts = [part async for _, part in view.entries()]
            self.namespace = Namespace.decode(b"".join(parts))
