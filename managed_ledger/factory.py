"""Opens managed ledgers, one of each name, and does for all of them what depends on time."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final, Protocol
from uuid import UUID

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.replica_choice import ReadMetrics
from magnetar.bookkeeper.errors import LedgerError
from magnetar.managed_ledger import closing
from magnetar.managed_ledger.append_core import AppendBudget
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.errors import CursorFencedError
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.errors import (
    ManagedLedgerClosedError,
    ManagedLedgerError,
    ManagedLedgerFencedError,
    ManagedLedgerNotFoundError,
    OpenFailedError,
)
from magnetar.managed_ledger.ledger_list_claim import claim_list
from magnetar.managed_ledger.ledger_rows import LedgerRows
from magnetar.managed_ledger.logger import logger
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.managed_ledger_info import (
    DELETED_WITH,
    LedgerOffsets,
    ManagedLedgerInfo,
    decode_list_node,
    encode_info,
)
from magnetar.managed_ledger.offload.interfaces import LedgerOffloader
from magnetar.managed_ledger.offload.offload_path import Offloading
from magnetar.managed_ledger.orphan_ledgers import collect_leaked_chunks, collect_leaked_ledgers
from magnetar.metadata.errors import BadVersionError, MetadataError
from magnetar.metadata.item_errors import Item, ItemErrors
from magnetar.metadata.loop_turns import in_turns
from magnetar.metadata.store import CREATE_ONLY, MetadataStore

ROOT = "/managed-ledgers"
_ROWS_A_TURN = 20_000  # whose positions are computed at once
_REPLACED_MAX = 100
"""Last ledgers that a sweep replaces: a broker with many idle topics must not make all at once."""
_STEPS = 3
"""Sweeps from an old open ledger to its deletion: it is closed, another one begins, it goes."""


class OwnerTokenSource(Protocol):
    """Chance, for owner tokens; ``random.Random`` fits."""

    def getrandbits(self, k: int, /) -> int:
        """A number of k random bits."""


@dataclass(frozen=True, slots=True)
class FactoryConfig:
    """Settings of the process's factory."""

    cache_sweep_s: float = 5.0
    """Pause between looks at idle cached entries, while there are any."""
    append_bytes_max: int = 256 << 20
    """Bytes that may be appended and unconfirmed before callers of `append` should pause."""
    ledger_sweep_s: float = 60.0
    """Pause between looks at what is due by age: the only timer of an idle process."""


class ManagedLedgerFactory:
    """Every managed ledger of the process.

    Args:
        cache: shared by all logs; its budget is the process's.
        clock: wall clock in milliseconds since the epoch.
        rng: chance, for owner tokens and names of copies.
        offloaders: keep copies of closed ledgers; one for each driver.
    """

    def __init__(
        self,
        client: BookKeeperClient,
        store: MetadataStore,
        cache: EntryCache,
        config: FactoryConfig,
        clock: Callable[[], int],
        rng: OwnerTokenSource,
        offloaders: Iterable[LedgerOffloader] = (),
    ) -> None:
        self.cache = cache
        self.append_budget = AppendBudget(config.append_bytes_max)
        """Of all logs together: callers that append a lot go by it."""
        self._client = client
        self._store = store
        self._config = config
        self._clock = clock
        self._rng = rng
        self.offloaders = {x.driver: x for x in offloaders}
        """By driver."""
        self.are_chunks_read = True
        """Whether every broker that may open a log reads lists of ledgers in chunks."""
        self._chunks_are_read = lambda: self.are_chunks_read  # made once: each log keeps it
        self._offloading = Offloading(self.offloaders, self._new_uuid)
        self._open: dict[str, ManagedLedger] = {}
        self._forget = self._on_closed  # bound once: each log keeps it
        self._opening: dict[str, asyncio.Task[ManagedLedger]] = {}
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._ledgers_due_s = 0.0
        self._sweeping: asyncio.Task[None] | None = None
        self._sweeps = ItemErrors("sweep of logs", logger, ())
        self.rounds: Final = {"sweep of logs": self._sweep}
        """Lists the factory's periodic tasks by name; each gets the time."""

    @property
    def read_metrics(self) -> ReadMetrics:
        """Of all reads of ledgers by this process."""
        return self._client.replicas.metrics

    @property
    def open_ledgers(self) -> dict[str, ManagedLedger]:
        """Open logs by name; a copy."""
        return dict(self._open)

    async def open(self, name: str, config: ManagedLedgerConfig) -> ManagedLedger:
        """The log of that name, taken over from its last owner; the open one if there is one.

        Args:
            name: ``tenant/ns/persistent/topic``, each part encoded by metadata.paths.encode_name.

        Raises:
            ManagedLedgerNotFoundError: it doesn't exist and ``config.create_if_missing`` is False,
                or the end of its deletion, which a failure had interrupted, was made up for.
            OpenFailedError: bookies or metadata don't answer as needed, or another process opened
                it meanwhile; retry later.
            ManagedLedgerFormatError: stored metadata is damaged.
        """
        if self._is_closed:
            raise ManagedLedgerClosedError("the factory is closed")
        while (log := self._open.get(name)) is not None:
            # It may have been open for long without a write that would have found another owner.
            if log.is_open and await self._is_ours(log):
                return log
            await log.close()  # fenced or closing: this is a new beginning
        task = self._opening.get(name)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load(name, config))
            self._opening[name] = task
            task.add_done_callback(lambda _: self._opening.pop(name, None))
        return await asyncio.shield(task)

    async def _is_ours(self, log: ManagedLedger) -> bool:
        try:
            is_ours = await log.owns_list()
        except MetadataError as error:
            raise OpenFailedError(f"{log.path}: can't be read: {error}") from error
        if not is_ours:
            log.fence(ManagedLedgerFencedError(f"{log.path}: another owner has taken over"))
        return is_ours

    async def create(self, name: str) -> bool:
        """Stores an empty log for its first opener; one that exists stays as it is.

        Returns:
            False: one is being deleted, which the next open makes up for.

        Raises:
            MetadataError; ManagedLedgerFormatError: what is stored is damaged.
        """
        path = f"{ROOT}/{name}"
        try:
            await self._store.put(path, encode_info(ManagedLedgerInfo()), CREATE_ONLY)
        except BadVersionError:
            stored = await self._store.get(path)
            return stored is not None and not decode_list_node(stored.value, path).is_deleted
        return True

    async def exists(self, name: str) -> bool:
        """Tells whether the log is stored."""
        return await self._store.exists(f"{ROOT}/{name}")

    async def delete(self, name: str, config: ManagedLedgerConfig | None = None) -> None:
        """Deletes a log, open or not; a missing one is success.

        Args:
            config: to open it with, if it isn't open: only the password matters.

        Raises:
            OpenFailedError: an unclosed ledger can't be taken over now; retry later.
        """
        try:
            config = replace(config or ManagedLedgerConfig(), create_if_missing=False)
            log = await self.open(name, config)
        except ManagedLedgerNotFoundError:
            return
        try:
            await log.delete()
        except BaseException:  # also when it is cancelled
            await log.close()
            raise

    async def collect_leaked_ledgers(self, item: Item = nullcontext) -> list[int]:
        """Deletes ledgers that crashed owners created but never listed; see `leaks`.

        Args:
            item: entered for each page of ledgers.

        Returns:
            Their ids.
        """
        return await collect_leaked_ledgers(self._client, self._store, ROOT, item)

    async def collect_leaked_chunks(self, item: Item = nullcontext) -> list[str]:
        """Deletes chunks of lists that crashed owners left; see `leaks`."""
        return await collect_leaked_chunks(self._store, ROOT, item)

    async def sweep(self, now_ms: int) -> None:
        """Does at once what is due by age, and what cursors would write by and by."""
        logs = list(self._open.values())
        for log in logs:
            for cursor in list(log.cursors.values()):
                await cursor.write_now()
        for _ in range(_STEPS):
            await self._sweep(now_ms)
            for log in logs:
                if log.appends is not None:
                    await log.appends.finish_tasks()
                await log.trimmer.finish()

    async def close(self) -> None:
        """Closes every log."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        if self._opening:
            await asyncio.wait(list(self._opening.values()))
        logs = list(self._open.values())
        results = await asyncio.gather(*(x.close() for x in logs), return_exceptions=True)
        for log, result in zip(logs, results, strict=True):
            if isinstance(result, BaseException):
                logger.error("%s: close failed", log.name, exc_info=result)

    async def _load(self, name: str, config: ManagedLedgerConfig) -> ManagedLedger:
        path = f"{ROOT}/{name}"
        token = f"{self._rng.getrandbits(64):016x}"
        client, store, clock = self._client, self._store, self._clock
        lists = await claim_list(client, store, path, token, config, clock, self._chunks_are_read)
        ledgers = await _ledger_list(lists.info.ledgers)
        log = ManagedLedger(
            *(name, path, client, store, self.cache, self.append_budget, config, clock),
            *(lists, ledgers, self._forget, self._offloading),
        )
        if closing.is_deleted(log):
            try:
                await self._delete_others(log)
                await closing.finish_deletion(log)
            except (LedgerError, MetadataError, ManagedLedgerError) as error:
                raise OpenFailedError(f"{path}: its deletion can't be finished: {error}") from error
            raise ManagedLedgerNotFoundError(path)
        try:
            await log.load_cursors()
        except (ManagedLedgerFencedError, CursorFencedError) as error:
            raise OpenFailedError(f"{path}: another owner opened it meanwhile") from error
        self._open[name] = log
        self._arm()
        return log

    async def _delete_others(self, log: ManagedLedger) -> None:
        for name in log.lists.info.properties.get(DELETED_WITH, "").splitlines():
            await self.delete(name, log.config)

    def _new_uuid(self) -> str:
        return str(UUID(int=self._rng.getrandbits(128), version=4))

    def _on_closed(self, log: ManagedLedger) -> None:
        if self._open.get(log.name) is log:
            del self._open[log.name]

    def _arm(self) -> None:
        if self._timer is None and self._sweeping is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            config = self._config
            delay_s = config.ledger_sweep_s if self.cache.is_empty else config.cache_sweep_s
            self._timer = loop.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._open and self.cache.is_empty:
            return  # the next open arms it again
        self.cache.sweep()
        loop = asyncio.get_running_loop()
        if loop.time() >= self._ledgers_due_s:
            self._ledgers_due_s = loop.time() + self._config.ledger_sweep_s
            self._sweeping = loop.create_task(self._sweep(self._clock()))
            self._sweeping.add_done_callback(self._on_swept)
        else:
            self._arm()

    async def _sweep(self, now_ms: int) -> None:
        replaced = 0
        with self._sweeps.round() as each:
            async for log in in_turns(list(self._open.values())):
                with each.item(log.name):
                    log.sweep(now_ms)
                    if replaced < _REPLACED_MAX:
                        replaced += log.replace_last(now_ms)

    def _on_swept(self, task: asyncio.Task[None]) -> None:
        self._sweeping = None
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the sweep failed", exc_info=error)
        self._arm()


async def _ledger_list(rows: LedgerRows) -> LedgerOffsets:
    """The positions of a list; gives way, as there may be a million ledgers."""
    ledgers, rows_added = LedgerOffsets(), 0
    for block in rows.blocks():
        ledgers.extend(block.ids, block.entry_counts)
        rows_added += len(block)
        if rows_added >= _ROWS_A_TURN:
            rows_added = 0
            await asyncio.sleep(0)
    return ledgers
