"""asyncio shell of LedgerWriter: hands requests to bookies, publishes changes, calls the owner.

``append`` sends at once: no task, no future, no wait. Answers only move the core; what follows from
them (one watermark, an ensemble change, the end) is done once per loop tick.

A bookie beyond the ack quorum may be slower than the others for ever: while too much waits for one,
the watermark is held back, so that the owner slows down instead of losing the bookie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from bookkeeper import codes
from bookkeeper.client.config import ClientConfig
from bookkeeper.client.ledger_reader import LedgerReader
from bookkeeper.client.ledger_store import LedgerStore, VersionedLedger
from bookkeeper.client.ledger_writer import ChangeEnsemble, Confirmed, Failed, LedgerWriter
from bookkeeper.client.placement import Placement, choose_replacements
from bookkeeper.client.pool import BookiePool
from bookkeeper.client.quorum_adds import SendAdds
from bookkeeper.errors import LedgerError, NotEnoughBookiesError, WriteFailedError
from bookkeeper.ledger_metadata import (
    LedgerMetadata,
    change_ensemble,
    close_by_writer,
    require_open,
)
from bookkeeper.transport import AddRequest
from metadata.errors import MetadataError

_HOLD_S: Final = 0.005  # how often a held watermark is looked at again


class AsyncLedgerWriter:
    """The only writer of a new ledger.

    Attributes:
        on_confirmed: called with the watermark: every entry up to it is durable on an ack quorum;
            at most once per loop tick.
        on_failed: called once when the writer stops for good; entries above ``last_confirmed`` have
            an unknown fate until the ledger is closed or recovered.
    """

    def __init__(
        self,
        created: VersionedLedger,
        ledgers: LedgerStore,
        bookies: BookiePool,
        placement: Placement,
        config: ClientConfig,
    ) -> None:
        self.ledger_id = created.metadata.ledger_id
        self.on_confirmed: Callable[[int], None] | None = None
        self.on_failed: Callable[[LedgerError], None] | None = None
        self._stored = created
        self._ledgers = ledgers
        self._bookies = bookies
        self._placement = placement
        self._config = config
        self._core = LedgerWriter(created.metadata, self._on_add_done)
        self._loop = asyncio.get_running_loop()
        self._run_scheduled = False
        self._change: asyncio.Task[None] | None = None
        self._excluded: set[str] = set()  # failed since the ensemble was last whole
        self._refusals: dict[str, int] = {}  # bookie -> its last answer that wasn't OK
        self._reader: _WriterReader | None = None
        self._held = -1  # the watermark, not told to the owner yet; -1: nothing is held
        self._hold_timer: asyncio.TimerHandle | None = None

    @property
    def last_confirmed(self) -> int:
        return self._core.last_confirmed

    @property
    def next_entry(self) -> int:
        return self._core.next_entry

    @property
    def length(self) -> int:
        """Payload bytes appended, confirmed or not."""
        return self._core.length

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for their quorum."""
        return self._core.pending_bytes

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this writer last stored or read it."""
        return self._stored.metadata

    @property
    def error(self) -> LedgerError | None:
        """Why ``append`` raises; None while the writer works."""
        return self._core.error

    def append(self, heads: list[bytes], bodies: list[bytes]) -> int:
        """Send a batch; never blocks.

        Args:
            heads, bodies: parallel and not empty; the writer's property afterwards.

        Returns:
            The first entry's id.

        Raises:
            LedgerError: the writer has stopped; nothing of the batch was sent.
        """
        core = self._core
        first = core.append(heads, bodies)
        client = self._bookies.client
        for send in core.take_sends():
            client(send.bookie).add_entries(send)
        if core.has_effects:
            self._run_soon()
        return first

    async def close(self) -> LedgerMetadata:
        """End the ledger at ``last_confirmed``; entries above it are dead. May be repeated.

        Raises:
            LedgerFencedError: another client recovers it or has closed it elsewhere.
            NoSuchLedgerError: it was deleted.
            MetadataError: the store failed; the ledger may or may not be closed, try again.
        """
        last_entry, length = self._core.close()
        if self._core.has_effects or self._held >= 0:
            self._run_soon()
        change = partial(close_by_writer, last_entry=last_entry, length=length)
        self._stored = await self._ledgers.update(self.ledger_id, change, self._stored)
        return self._stored.metadata

    def reader(self) -> LedgerReader:
        """Reads this ledger up to ``last_confirmed``, also while it grows."""
        if self._reader is None:
            self._reader = _WriterReader(self, self._ledgers, self._bookies, self._config)
        return self._reader

    def _on_add_done(self, request: AddRequest, code: int) -> None:
        core = self._core
        sent = cast(SendAdds, request)
        if code != codes.OK:
            self._refusals[sent.bookie] = code
        core.on_add_done(sent, code)
        if core.has_effects and not self._run_scheduled:
            self._run_scheduled = True
            self._loop.call_soon(self._run)

    def _run_soon(self) -> None:
        if not self._run_scheduled:
            self._run_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """Everything that this tick's answers brought: all sends first, the owner's code last."""
        self._run_scheduled = False
        for send in self._core.take_sends():
            self._bookies.client(send.bookie).add_entries(send)
        upto, failed = self._held, None
        for effect in self._core.take_effects():
            match effect:
                case Confirmed(entry_id):
                    upto = entry_id
                case ChangeEnsemble():
                    self._change = self._loop.create_task(self._change_ensemble(effect))
                case Failed(error):
                    failed = error
        if upto >= 0 and self._core.error is None and self._is_backlogged():
            self._hold(upto)
            return  # nothing has failed, or there would be an error
        self._held = -1
        try:
            if upto >= 0 and self.on_confirmed is not None:
                self.on_confirmed(upto)
        finally:
            if failed is not None and self.on_failed is not None:
                self.on_failed(failed)

    def _is_backlogged(self) -> bool:
        client = self._bookies.client
        return any(client(bookie).is_backlogged for bookie in self._core.ensemble)

    def _hold(self, upto: int) -> None:
        self._held = upto
        if self._hold_timer is None:
            # A timer, because the backlog may be of other ledgers, whose answers we don't see.
            self._hold_timer = self._loop.call_later(_HOLD_S, self._look_again)

    def _look_again(self) -> None:
        self._hold_timer = None
        if self._held >= 0:
            self._run()

    async def _change_ensemble(self, effect: ChangeEnsemble) -> None:
        self._excluded.update(effect.failed.values())
        change = partial(self._replace_failed, effect)
        try:
            stored = await self._ledgers.update(self.ledger_id, change, self._stored)
        except LedgerError as error:
            self._core.on_fatal(error)
        except MetadataError as error:
            failure = WriteFailedError(f"ledger {self.ledger_id}: ensemble change: {error}")
            failure.__cause__ = error
            self._core.on_fatal(failure)
        else:
            if self._core.error is None:
                self._stored = stored
                self._core.on_ensemble_changed(stored.metadata.last_segment.bookies)
                if not self._core.is_changing:
                    self._excluded.clear()
        self._run_soon()

    def _replace_failed(
        self, effect: ChangeEnsemble, metadata: LedgerMetadata
    ) -> LedgerMetadata | None:
        require_open(metadata)
        members = metadata.last_segment.bookies
        if all(members[slot] != bookie for slot, bookie in effect.failed.items()):
            return None
        chosen = choose_replacements(
            self._placement, members, effect.failed, self._excluded, self._bookies.writable
        )
        if not chosen:
            failed = ", ".join(
                f"{bookie} ({codes.code_name(self._refusals.get(bookie, codes.UNAVAILABLE))})"
                for bookie in sorted(effect.failed.values())
            )
            others = sorted(self._bookies.writable.difference(self._excluded, members))
            raise NotEnoughBookiesError(
                f"ledger {self.ledger_id}: nobody can replace {failed}; "
                f"other writable bookies: {others}"
            )
        return change_ensemble(metadata, effect.first_entry, chosen)


class _WriterReader(LedgerReader):
    """The writer's own reader: bound and metadata are the writer's, as they are now."""

    def __init__(
        self,
        writer: AsyncLedgerWriter,
        ledgers: LedgerStore,
        bookies: BookiePool,
        config: ClientConfig,
    ) -> None:
        self._writer = writer
        super().__init__(writer.metadata, -1, ledgers, bookies, config)

    @property
    def last_confirmed(self) -> int:
        return self._writer.last_confirmed

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata
