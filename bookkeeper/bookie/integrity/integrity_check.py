"""The data-integrity check: what should be here by the metadata, is here; what isn't is copied.

It ends limbo, ledger by ledger, and runs when an operator wants it. Where it is
needs no notes: a ledger that is done is out of limbo, and the others are looked at again after a
restart.

A repair names its target in the metadata when the target has acknowledged everything. Should the
target lose it before that, its check would find itself in no metadata, and limbo would be over when
the repair goes on. So ledgers that were locked for repair when the check began stay in limbo until
that lock has ended: then the metadata either names this bookie, or that repair never will.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.integrity.integrity_listener import IntegrityMetrics
from magnetar.bookkeeper.bookie.integrity.replica_source import ReplicaSource
from magnetar.bookkeeper.bookie.limbo import lives_on, note_steps
from magnetar.bookkeeper.errors import BookieClosedError, BookkeeperError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from magnetar.bookkeeper.replication.fragments import fragments_of, subtract_runs
from magnetar.bookkeeper.transport import AddRequest
from magnetar.metadata.errors import MetadataError

_log = logging.getLogger(__name__)

_LEDGERS_AT_ONCE: Final = 4
_BATCH: Final = 64
_ABSENT_MAX: Final = 1000  # of one ledger in one round; each costs a request to every replica
_UNRESOLVED_SHOWN: Final = 100
_BUSY_S: Final = 0.2  # the bookie takes no more just now


@dataclass(frozen=True, slots=True)
class IntegrityConfig:
    """
    Attributes:
        open_grace_s: how long the writer of an open ledger may take to replace this bookie by
            itself, before the ledger is closed over its head.
        retry_s, retry_max_s: pause after a round that left something.
    """

    open_grace_s: float = 30.0
    retry_s: float = 15.0
    retry_max_s: float = 1800.0

    def __post_init__(self) -> None:
        if self.open_grace_s < 0:
            raise ValueError("openLedgerRereplicationGracePeriod must not be negative")


@dataclass(eq=False, repr=False)
class IntegrityCheck:
    """``start()``, ``request()`` for a round at once, ``close()``."""

    _bookie: Bookie
    _replica_source: ReplicaSource
    _metrics: IntegrityMetrics
    _config: IntegrityConfig
    _wanted: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _running: bool = field(default=False, init=False)
    _checked: int = field(default=0, init=False)
    _unresolved: dict[int, str] = field(default_factory=dict, init=False)
    # in limbo, and a writer may be at work
    _open: list[int] = field(default_factory=list, init=False)
    # Locks of repairs that may count copies which are lost; None: not looked yet.
    _repairs: Mapping[int, bytes] | None = field(default=None, init=False)

    def start(self, *, by_itself: bool = True) -> None:
        """Begin if the bookie is in limbo; else, or not ``by_itself``, wait to be asked."""
        self._task = asyncio.get_running_loop().create_task(self._run(by_itself=by_itself))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def request(self) -> None:
        """Compare every ledger with the metadata, now."""
        self._wanted.set()

    def status(self) -> dict[str, object]:
        shown = list(self._unresolved.items())[:_UNRESOLVED_SHOWN]
        return {
            "running": self._running,
            "ledgersChecked": self._checked,
            "entriesRestored": self._metrics.restored_entries,
            "bytesRestored": self._metrics.restored_bytes,
            "unresolvedLedgers": len(self._unresolved),
            "unresolved": [{"ledger": id_, "reason": reason} for id_, reason in shown],
        }

    # ---- rounds

    async def _run(self, *, by_itself: bool) -> None:
        pause_s = self._config.retry_s
        if not by_itself:
            await self._wanted.wait()
        while True:
            full = self._wanted.is_set()
            storage = self._bookie.storage
            in_limbo = storage.limbo_phase != 0 or bool(storage.limbo_ledgers())
            if not full and not in_limbo:
                pause_s = self._config.retry_s
                await self._wanted.wait()
                continue
            self._wanted.clear()
            try:
                done = await self.run_round(full=full)
            except BookieClosedError:
                return
            except (BookkeeperError, MetadataError, OSError) as error:
                _log.error("data-integrity check: %s; it will be tried again", error)
                done = False
            if not done:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._wanted.wait()
                pause_s = min(2 * pause_s, self._config.retry_max_s)

    async def run_round(self, *, full: bool) -> bool:
        """Go through all ledgers once.

        Args:
            full: those that aren't in limbo, too.

        Returns:
            Nothing is left to do.

        Raises:
            BookieClosedError, MetadataError: it was cut short.
        """
        self._running, self._checked = True, 0
        self._unresolved, self._open = {}, []
        began_s = asyncio.get_running_loop().time()
        try:
            await self._look_at_repairs()  # before any metadata
            async for ids in self._replica_source.ledger_ids():
                for start in range(0, len(ids), _BATCH):
                    await self._check_all(ids[start : start + _BATCH], full=full)
            await self._check_local()
            if self._open:
                passed_s = asyncio.get_running_loop().time() - began_s
                await asyncio.sleep(max(0.0, self._config.open_grace_s - passed_s))
                again, self._open = self._open, []
                await self._check_all(again, full=full, patient=False)
            return await self._finish()
        finally:
            self._running = False

    async def _look_at_repairs(self) -> None:
        if self._repairs:
            now = await self._replica_source.repairs()
            self._repairs = {id_: v for id_, v in self._repairs.items() if now.get(id_) == v}
        elif self._repairs is None:
            self._repairs = await self._replica_source.repairs()

    async def _check_local(self) -> None:
        """Ledgers in limbo that the metadata no longer lists were deleted."""
        storage = self._bookie.storage
        seen = self._unresolved.keys() | set(self._open)
        rest = [ledger_id for ledger_id in storage.limbo_ledgers() if ledger_id not in seen]
        for start in range(0, len(rest), _BATCH):
            await self._check_all(rest[start : start + _BATCH], full=False)

    async def _finish(self) -> bool:
        """End limbo if nothing is left in it."""
        storage = self._bookie.storage
        if self._unresolved or storage.limbo_ledgers():
            if self._unresolved:
                first = next(iter(self._unresolved.items()))
                _log.warning(
                    "data-integrity check: %d ledgers are left, ledger %d: %s",
                    *(len(self._unresolved), *first),
                )
            return False
        await self._bookie.flush()  # what was cleared is durably so
        if storage.limbo_phase:
            await self._bookie.run_maintenance(note_steps(storage, 0, -1))
            _log.warning(
                "limbo is over: %d entries were copied from other bookies",
                self._metrics.restored_entries,
            )
        return True

    async def _check_all(
        self, ledger_ids: Sequence[int], *, full: bool, patient: bool = True
    ) -> None:
        room = asyncio.Semaphore(_LEDGERS_AT_ONCE)

        async def check(ledger_id: int) -> None:
            async with room:
                try:
                    why = await self._check(ledger_id, full=full, patient=patient)
                except BookieClosedError:
                    raise
                except (BookkeeperError, MetadataError, OSError) as error:
                    why = str(error)
                if why:
                    self._unresolved[ledger_id] = why

        wanted = [id_ for id_ in ledger_ids if full or self._is_uncertain(id_)]
        for result in await asyncio.gather(*map(check, wanted), return_exceptions=True):
            if result is not None:
                raise result

    def _is_uncertain(self, ledger_id: int) -> bool:
        storage = self._bookie.storage
        state = storage.ledgers.get(ledger_id)
        return storage.is_unknown(ledger_id) if state is None else state.limbo

    # ---- one ledger

    async def _check(self, ledger_id: int, *, full: bool, patient: bool) -> str:
        """Check one ledger; why it can't leave limbo yet, "": it isn't in it any more.

        Args:
            patient: an open ledger may still lose this bookie by its writer's own doing.
        """
        storage, bookie_id = self._bookie.storage, self._bookie.bookie_id
        metadata = await self._replica_source.metadata(ledger_id)
        self._checked += 1
        if metadata is None:
            storage.clear_limbo(ledger_id, fenced=True)  # deleted: no answer matters any more
            return ""
        uncertain = self._is_uncertain(ledger_id)
        at_work = bookie_id in metadata.last_segment.bookies
        if uncertain and (
            metadata.state is LedgerState.IN_RECOVERY
            or (metadata.state is LedgerState.OPEN and at_work)
        ):
            if patient:
                self._open.append(ledger_id)
                return ""
            metadata = await self._replica_source.recover(metadata)
        if lives_on(metadata, bookie_id):
            why = await self._fill(metadata, uncertain=uncertain)
            if why:
                return why
        if uncertain and self._repairs and ledger_id in self._repairs:
            return "a repair of it began before the loss, and may count on what is lost"
        # Open still, and read after the loss: no recovery had begun, so nobody had fenced it here,
        # and its last entries are elsewhere.
        storage.clear_limbo(ledger_id, fenced=metadata.state is LedgerState.CLOSED)
        return ""

    async def _fill(self, metadata: LedgerMetadata, *, uncertain: bool) -> str:
        """Copy what is missing of closed segments; why something is missing still."""
        bookie_id, ledger_id = self._bookie.bookie_id, metadata.ledger_id
        creator = metadata.creator_token
        if self._bookie.storage.is_other(ledger_id, creator):
            return "two ledgers share the id, and the other one is here"
        held = await self._bookie.held_entries(ledger_id)
        absent = 0
        for fragment in fragments_of(metadata):
            if not fragment.is_closed or bookie_id not in fragment.bookies:
                continue
            slot = fragment.bookies.index(bookie_id)
            for first, end in subtract_runs(fragment.runs_of(slot), held):
                if uncertain or metadata.state is LedgerState.CLOSED:
                    self._bookie.storage.set_limbo(ledger_id, metadata.master_key, creator)
                at = first
                while at < end:
                    fetched = await self._replica_source.fetch(metadata, at, end)
                    if fetched.packets:
                        await self._store(metadata, at, fetched.packets)
                        at += len(fetched.packets)
                        continue
                    absent += 1
                    if not fetched.absent or absent >= _ABSENT_MAX:
                        return f"entry {at}: {fetched.reason}"
                    at += 1
        return f"{absent} entries are nowhere" if absent else ""

    async def _store(self, metadata: LedgerMetadata, first: int, packets: list[bytes]) -> None:
        """Durable on return. Raises: BookkeeperError: the bookie doesn't take them."""
        size = sum(map(len, packets))
        loop = asyncio.get_running_loop()
        while True:
            answer: asyncio.Future[int] = loop.create_future()

            def on_done(_: AddRequest, code: int, answer: asyncio.Future[int] = answer) -> None:
                if not answer.done():
                    answer.set_result(code)

            request = AddRequest(
                metadata.ledger_id,
                metadata.master_key,
                range(first, first + len(packets)),
                [packet[:PACKET_HEADER_BYTES] for packet in packets],
                [packet[PACKET_HEADER_BYTES:] for packet in packets],
                size,
                True,
                on_done,
                creator=metadata.creator_token,
            )
            self._bookie.add_entries(request)
            code = await answer
            if code != codes.TOO_MANY_REQUESTS:
                break
            await asyncio.sleep(_BUSY_S)
        if code != codes.OK:
            raise BookkeeperError(f"entry {first} could not be stored: {codes.code_name(code)}")
        self._metrics.restored_entries += len(packets)
        self._metrics.restored_bytes += size
