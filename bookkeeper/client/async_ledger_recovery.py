"""asyncio shell of LedgerRecovery: metadata, bookies and the pauses between attempts."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, cast

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.ledger_recovery import (
    AbortRecovery,
    CloseRecoveredLedger,
    LedgerRecovery,
    ReadLac,
    RecoveryEffect,
    RecoveryRead,
    ReplaceBookies,
)
from magnetar.bookkeeper.client.ledger_store import LedgerStore
from magnetar.bookkeeper.client.pending_adds import SendAdds
from magnetar.bookkeeper.client.placement import (
    EnsemblePlacementPolicy,
    PlacementRandom,
    choose_replacements,
)
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import BookkeeperError, LedgerRecoveryError
from magnetar.bookkeeper.ledger_metadata import (
    EnsembleSegment,
    LedgerMetadata,
    LedgerState,
    begin_recovery,
    close_by_recovery,
)
from magnetar.bookkeeper.transport import AddRequest, ReadRequest


class _LastSegmentChanged(Exception):
    """Another client changed the segment that our reads went by: begin again."""


async def recover_ledger(
    ledger_id: int,
    ledgers: LedgerStore,
    bookies: BookiePool,
    placement: EnsemblePlacementPolicy,
    rng: PlacementRandom,
    config: ClientConfig,
) -> LedgerMetadata:
    """Close a ledger whose writer is gone, or adopt the end that another client closed it at.

    Returns:
        The CLOSED metadata as stored.

    Raises:
        LedgerRecoveryError: too few bookies answered; the ledger stays IN_RECOVERY, retry later.
        NoSuchLedgerError: it doesn't exist.
        UnauthorizedAccessError: a bookie knows the ledger with another password.
        MetadataError: the store failed.
    """
    for attempt in range(config.recovery_attempts):
        if attempt:
            await asyncio.sleep(rng.random() * config.recovery_backoff_ms / 1000)
        current = await ledgers.update(ledger_id, begin_recovery)
        if current.metadata.state is LedgerState.CLOSED:
            return current.metadata
        close = await _Attempt(current.metadata, bookies, placement, config).run()
        change = partial(_close_unless_changed, current.metadata.last_segment, close)
        try:
            closed = await ledgers.update(ledger_id, change, current)
        except _LastSegmentChanged:
            continue
        # Ours or another recoverer's: in both cases what is stored is the end.
        return closed.metadata
    raise LedgerRecoveryError(f"ledger {ledger_id}: its last segment kept changing")


def _close_unless_changed(
    segment: EnsembleSegment, close: CloseRecoveredLedger, metadata: LedgerMetadata
) -> LedgerMetadata | None:
    if metadata.state is not LedgerState.CLOSED and metadata.last_segment != segment:
        raise _LastSegmentChanged
    return close_by_recovery(metadata, close.last_entry, close.length, close.segments)


class _Attempt:
    """One run of the core; owns its requests in flight."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        bookies: BookiePool,
        placement: EnsemblePlacementPolicy,
        config: ClientConfig,
    ) -> None:
        self._ledger_id = metadata.ledger_id
        self._master_key = metadata.master_key
        self._creator = metadata.creator_token
        self._bookies = bookies
        self._placement = placement.for_ledger(metadata.custom_metadata)
        self._config = config
        self._failed: set[str] = set()
        self._core = LedgerRecovery(
            metadata, self._on_add_done, read_entries_max=config.recovery_read_entries
        )
        self._result: asyncio.Future[CloseRecoveredLedger] = (
            asyncio.get_running_loop().create_future()
        )
        self._tasks: dict[asyncio.Task[None], None] = {}  # in their order

    async def run(self) -> CloseRecoveredLedger:
        try:
            self._core.start()
            self._perform()
            return await self._result
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _perform(self) -> None:
        for send in self._core.take_sends():
            self._bookies.client(send.bookie).add_entries(send)
        for effect in self._core.take_effects():
            self._perform_one(effect)

    def _perform_one(self, effect: RecoveryEffect) -> None:
        match effect:
            case RecoveryRead():
                self._start(self._read_entries(effect))
            case ReadLac():
                self._start(self._read_lac(effect))
            case ReplaceBookies(ensemble, failed):
                self._failed.update(failed.values())
                others = self._bookies.writable.difference(self._failed)
                chosen = choose_replacements(
                    self._placement, ensemble, self._core.metadata.write_quorum, failed, others
                )
                self._core.on_replacements(chosen)
                self._perform()
            case CloseRecoveredLedger():
                if not self._result.done():
                    self._result.set_result(effect)
            case AbortRecovery(error):
                if not self._result.done():
                    self._result.set_exception(error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._result.done():
            self._result.set_exception(error)  # a bug: without this the caller waits for ever

    async def _read_lac(self, effect: ReadLac) -> None:
        client = self._bookies.client(effect.bookie)
        try:
            reply = await client.read_lac(
                self._ledger_id, fence=True, master_key=self._master_key, creator=self._creator
            )
        except BookkeeperError:
            self._bookies.health.note_error(effect.bookie)
            self._core.on_lac(effect.slot, codes.UNAVAILABLE, None, -1)
        else:
            self._bookies.health.note_code(effect.bookie, reply.code)
            self._core.on_lac(effect.slot, reply.code, reply.last_packet, reply.explicit_lac)
        self._perform()

    async def _read_entries(self, effect: RecoveryRead) -> None:
        client = self._bookies.client(effect.bookie)
        slow = asyncio.get_running_loop().call_later(
            self._config.recovery_slow_ms / 1000, self._on_slow, effect.first
        )
        try:
            request = ReadRequest(
                self._ledger_id,
                effect.first,
                effect.count_max,
                self._config.recovery_read_bytes,
                fence=True,
                master_key=self._master_key,
                creator=self._creator,
            )
            reply = await client.read_entries(request)
        except BookkeeperError:
            self._bookies.health.note_error(effect.bookie)
            self._core.on_read(effect, codes.UNAVAILABLE, [])
        else:
            self._bookies.health.note_code(effect.bookie, reply.code)
            self._core.on_read(effect, reply.code, reply.packets)
        finally:
            slow.cancel()
        self._perform()

    def _on_slow(self, first: int) -> None:
        self._core.on_slow(first)
        self._perform()

    def _on_add_done(self, request: AddRequest, code: int) -> None:
        sent = cast(SendAdds, request)
        if code != codes.OK:
            self._bookies.health.note_code(sent.bookie, code)
        self._core.on_add_done(sent, code)
        self._perform()
