"""Does the managed ledger's simulation bite? Bugs that ``rotation.py`` plants.

docs/internals/simulation.md says in how many seeds of each world they are noticed.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final
from zlib import crc32

from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.errors import LedgerError
from magnetar.managed_ledger import append_path, factory, ledger_info_chunks, ledger_list_claim
from magnetar.managed_ledger.append_core import AppendCore, AppendState, CloseLedger, PendingBatch
from magnetar.managed_ledger.append_path import AppendPath
from magnetar.managed_ledger.cursor import cursor_ledger, cursor_writer
from magnetar.managed_ledger.cursor.cursor import Cursor
from magnetar.managed_ledger.cursor.cursor_format import properties_sections, seal_snapshot
from magnetar.managed_ledger.cursor.cursor_store import (
    NO_LEDGER,
    CursorStore,
    decode_node,
    encode_node,
)
from magnetar.managed_ledger.cursor.cursor_writer import CursorWriter
from magnetar.managed_ledger.cursor.errors import CursorFencedError
from magnetar.managed_ledger.cursor_set import CursorSet
from magnetar.managed_ledger.errors import ManagedLedgerFencedError, OpenFailedError
from magnetar.managed_ledger.ledger_info_chunks import LedgerInfoChunks, read_list
from magnetar.managed_ledger.ledger_info_store import LedgerInfoStore
from magnetar.managed_ledger.ledger_rows import PackedRows
from magnetar.managed_ledger.managed_ledger_info import (
    ManagedLedgerInfo,
    decode_list_node,
    encode_info,
)
from magnetar.managed_ledger.offload.context import LedgerCopy
from magnetar.managed_ledger.offload.offload_path import OffloadPath
from magnetar.managed_ledger.orphan_ledgers import custom_metadata
from magnetar.metadata.errors import MetadataError
from tests.simulation import test_cursor, test_managed_ledger, test_managed_ledger_offload
from tests.simulation.plant import Bugs, Plant, planted
from tests.simulation.simulator import run_simulation
from tests.simulation.test_managed_ledger_chunks import takeover_beside_a_collector, tiny_chunks
from tests.simulation.test_managed_ledger_openers import open_together
from tests.simulation.test_managed_ledger_takeover import takeover_of


def _log(seed: int) -> None:
    run_simulation(seed, lambda each: test_managed_ledger.Scenario(each).run())


def _race(seed: int) -> None:
    run_simulation(seed, test_managed_ledger.race)


def _rotation(seed: int) -> None:
    run_simulation(
        seed, lambda each: test_managed_ledger.crash_while_rotating(each, seed, 1 + seed % 2 * 3)
    )


def _takeover(seed: int) -> None:
    run_simulation(seed, lambda each: takeover_of(each).run())


def _openers(seed: int) -> None:
    run_simulation(seed, open_together)


def _cursor(seed: int) -> None:
    asyncio.run(test_cursor.World(seed).run())


def _offload(seed: int) -> None:
    run_simulation(seed, test_managed_ledger_offload.come_and_go)


def _offload_late(seed: int) -> None:
    run_simulation(seed, test_managed_ledger_offload.come_late)


def _offload_crash(seed: int) -> None:
    run_simulation(
        seed,
        lambda each: test_managed_ledger_offload.crash_while_offloading(
            each, seed, 1 + seed % 2 * 3
        ),
    )


def _sliced(seed: int) -> None:
    """Cursors whose every write is in slices, and whose states are too large for a node."""
    with planted(lambda plant: test_cursor.tiny_limits(plant.set)):
        _cursor(seed)


def _chunks_takeover(seed: int) -> None:
    with planted(lambda plant: tiny_chunks(plant.set)):
        run_simulation(seed, takeover_beside_a_collector)


#: One seed each; AssertionError tells what is violated.
WORLDS: Final[dict[str, Callable[[int], None]]] = {
    "log": _log,
    "race": _race,
    "rotation": _rotation,
    "takeover": _takeover,
    "openers": _openers,
    "cursor": _cursor,
    "sliced": _sliced,
    "offload": _offload,
    "offload crash": _offload_crash,
    "offload late": _offload_late,
    "chunks takeover": _chunks_takeover,
}

LEDGER_WORLDS: Final = ("log", "race", "rotation", "takeover")
CURSOR_WORLDS: Final = ("cursor", "takeover", "log")

BUGS: Final = Bugs(lambda world, seed: WORLDS[world](seed))
bug: Final = BUGS.of


# Appending and rotation


@bug(*LEDGER_WORLDS)
def acknowledged_before_the_ledger_is_listed(plant: Plant) -> None:
    async def create(self: Any, after_ms: int) -> None:
        await self._pause(after_ms / 1000)
        log, core, config = self._log, self.core, self._log.config
        listed = log.lists.info.ledgers
        writer = await log.client.create_ledger(
            LedgerConfig(
                config.ensemble_size, config.write_quorum, config.ack_quorum, config.password
            ),
            custom_metadata(log.name),
            above=listed[-1].ledger_id if listed else -1,
        )
        ledger_id = writer.ledger_id
        self.writers[ledger_id] = writer
        writer.on_confirmed = lambda entry: self.on_confirmed(ledger_id, entry)
        writer.on_failed = lambda error: self.on_failed(ledger_id, error)
        log.offsets.add(ledger_id)
        core.on_ledger_ready(ledger_id, log.now_ms())
        self.run()
        try:
            log.on_list_changed(await log.lists.update(lambda x: x.with_ledger(ledger_id)))
        except ManagedLedgerFencedError as error:
            log.fence(error)

    plant.set(AppendPath, "_create", create)


class HastyCore(AppendCore):
    """Writes the next ledger as soon as it is listed, and still reports in order."""

    def __init__(self, limits: Any) -> None:
        super().__init__(limits)
        self.older: list[tuple[int, list[PendingBatch]]] = []
        self.upto: dict[int, int] = {}

    def _advance(self, now_ms: int) -> None:
        if self.state is AppendState.SWITCHING and self._sent and self._next >= 0:
            self.older.append((self.current, self._sent))
            self._sent = []
            self._open_next(now_ms)
        else:
            super()._advance(now_ms)

    def on_confirmed(self, ledger_id: int, entry_id: int) -> None:
        if not self.older:
            super().on_confirmed(ledger_id, entry_id)
            return
        self.upto[ledger_id] = entry_id
        while self.older:
            old, sent = self.older[0]
            mine = (self.current, self._sent, self._acked)
            self.current, self._sent = old, sent
            self._confirm(self.upto.get(old, -1))
            self.current, self._sent, self._acked = mine
            if sent:
                return
            del self.older[0]
            self._effects.append(CloseLedger(old))
        super().on_confirmed(self.current, self.upto.get(self.current, -1))


class OvertakingCore(AppendCore):
    """Writes an append at once although others are queued."""

    def append(
        self, heads: list[bytes], bodies: list[Any], on_done: Any, now_ms: int
    ) -> PendingBatch | None:
        if self.state is not AppendState.OPEN:
            return super().append(heads, bodies, on_done, now_ms)
        queued, self._queued = self._queued, []
        batch = super().append(heads, bodies, on_done, now_ms)
        self._queued += queued
        return batch


@bug(*LEDGER_WORLDS)
def an_append_overtakes_what_is_queued(plant: Plant) -> None:
    plant.set(append_path, "AppendCore", OvertakingCore)


@bug(*LEDGER_WORLDS)
def next_ledger_written_before_the_old_one_is_whole(plant: Plant) -> None:
    plant.set(append_path, "AppendCore", HastyCore)


@bug(*LEDGER_WORLDS)
def sent_again_without_a_definite_end(plant: Plant) -> None:
    async def definite_end(self: Any, writer: Any, *, is_retry: bool) -> Any:
        if self.core.state is AppendState.ENDING:
            return SimpleNamespace(last_entry=writer.last_confirmed, length=writer.length)
        return await old(self, writer, is_retry=is_retry)

    old = plant.set(AppendPath, "_definite_end", definite_end)


@bug(*LEDGER_WORLDS)
def told_before_it_can_be_read(plant: Plant) -> None:
    def report(self: Any, reports: Any) -> None:
        old(self, reports)
        admit(self, reports)

    admit = plant.set(AppendPath, "_admit", lambda self, reports: None)
    old = plant.set(AppendPath, "_report", report)


@bug(*LEDGER_WORLDS)
def a_lost_answer_means_not_listed(plant: Plant) -> None:
    async def update(self: Any, change: Any) -> Any:
        is_listing = len(change(self.info).ledgers) > len(self.info.ledgers)
        try:
            return await old(self, change)
        except MetadataError as error:
            if is_listing:
                raise LedgerError(str(error)) from error
            raise

    old = plant.set(LedgerInfoStore, "update", update)
    plant.set(sys.modules[LedgerInfoStore.__module__], "UPDATE_ATTEMPTS", 1)


# Who owns the log


@bug(*LEDGER_WORLDS)
def only_the_last_ledger_is_fenced(plant: Plant) -> None:
    async def recover(client: Any, info: Any, config: Any, now_ms: Any, ends: Any) -> Any:
        for ledger in info.ledgers[:-1]:
            if not ledger.closed_ms:
                reader = await client.open_ledger(ledger.ledger_id, config.password, recover=False)
                metadata = reader.metadata
                entries = reader.last_confirmed + 1
                info = info.with_closed(ledger.ledger_id, entries, metadata.length, now_ms())
        return await old(client, info, config, now_ms, ends)

    old = plant.set(ledger_list_claim, "recover_ledgers", recover)


@bug(*LEDGER_WORLDS)
def the_list_is_written_without_a_condition(plant: Plant) -> None:
    async def update(self: Any, change: Any) -> Any:
        self.info = change(self.info)
        await self._store.put(self._path, encode_info(self.info), None)
        return self.info

    plant.set(LedgerInfoStore, "update", update)


@bug(*LEDGER_WORLDS)
def a_refused_write_adopts_the_other_list(plant: Plant) -> None:
    async def look(self: Any) -> None:
        stored = await self._store.get(self._path)
        self.info = replace(decode_list_node(stored.value, self._path).info, owner=self._token)
        self.version = stored.stat.version

    plant.set(LedgerInfoStore, "_look", look)


@bug(*LEDGER_WORLDS)
def the_claim_ignores_who_was_faster(plant: Plant) -> None:
    async def claim(
        client: Any, store: Any, path: str, token: str, config: Any, now_ms: Any, _: Any
    ) -> LedgerInfoStore:
        stored = await store.get(path)
        info = ManagedLedgerInfo() if stored is None else decode_list_node(stored.value, path).info
        recovered = await ledger_list_claim.recover_ledgers(client, info, config, now_ms, {})
        info = replace(recovered, owner=token)
        written = await store.put(path, encode_info(info), None)
        return LedgerInfoStore(store, path, token, info, written.stat.version)

    plant.set(factory, "claim_list", claim)


# Of several openers one is left


@bug("openers", "takeover", "cursor")
def whoever_took_the_cursor_node_last_has_the_log(plant: Plant) -> None:
    async def adopt(self: Any, found: Any, known: Any, cause: Any) -> None:
        if decode_node(found.value, self.path)[1] not in known:
            raise CursorFencedError("another owner wrote the node")
        await old(self, found, known, cause)

    old = plant.set(CursorStore, "_adopt", adopt)


@bug("openers", "takeover")
def cursors_serve_without_a_look_at_the_list(plant: Plant) -> None:
    async def require_list(self: Any) -> None:
        pass

    plant.set(CursorSet, "_require_list", require_list)


# Cursors


@bug(*CURSOR_WORLDS)
def a_lost_answer_means_the_cursor_node_is_as_it_was(plant: Plant) -> None:
    async def put_node(self: Any, node: Any) -> None:
        try:
            await old(self, node)
        except MetadataError:
            self._store.is_uncertain = False
            raise

    old = plant.set(CursorWriter, "_put_node", put_node)


@bug(*CURSOR_WORLDS)
def the_cursor_node_is_not_written_by_the_next_owner(plant: Plant) -> None:
    async def claim(self: Any) -> Any:
        return await self.read()

    plant.set(CursorStore, "claim", claim)


@bug(*CURSOR_WORLDS)
def the_cursor_node_is_taken_without_a_condition(plant: Plant) -> None:
    async def claim(self: Any) -> Any:
        if (node := await self.read()) is not None:
            stored = await self._view.store.put(self.path, encode_node(node, self.writer), None)
            self._version, self._seen = stored.stat.version, self.writer
        return node

    plant.set(CursorStore, "claim", claim)


@bug(*CURSOR_WORLDS)
def a_cursor_rewinds_on_a_transient_error(plant: Plant) -> None:
    async def recover(ledger: Any, name: str, node: Any) -> Any:
        try:
            return await old(ledger, name, node)
        except OpenFailedError:
            return node.image(name)

    old = plant.set(cursor_ledger, "recover_image", recover)


@bug(*CURSOR_WORLDS)
def the_node_names_a_cursor_ledger_without_a_snapshot(plant: Plant) -> None:
    async def write_snapshot(self: Any, ledger: Any) -> None:
        if ledger is not self._ledger:
            node = self._node_for(self._state.image(), b"", ledger.ledger_id)
            await self._put_node(replace(node, mark_delete=self.stored_mark_delete))
        await old(self, ledger)

    old = plant.set(CursorWriter, "_write_snapshot", write_snapshot)


@bug(*CURSOR_WORLDS)
def the_old_cursor_ledger_is_deleted_first(plant: Plant) -> None:
    async def put_node(self: Any, node: Any) -> None:
        if self.node.ledger_id not in (NO_LEDGER, node.ledger_id):
            await self._view.client.delete_ledger(self.node.ledger_id)
        await old(self, node)

    old = plant.set(CursorWriter, "_put_node", put_node)


@bug(*CURSOR_WORLDS)
def acknowledged_when_sent(plant: Plant) -> None:
    def append(self: Any, done: Any) -> bool:
        answered: list[Any] = []

        def once(error: Any) -> None:
            if not answered:
                answered.append(error)
                done(error)

        if (sent := old(self, lambda error: None)) is True:
            asyncio.get_running_loop().call_soon(once, None)
        return bool(sent)

    old = plant.set(CursorWriter, "append", append)


@bug(*CURSOR_WORLDS)
def a_new_cursor_ledger_begins_without_the_holes(plant: Plant) -> None:
    def sections(image: Any) -> Any:
        return old(replace(image, acked={}))

    old = plant.set(cursor_writer, "body_sections", sections)


@bug("log")
def acknowledgements_without_receipt_stay_unstored(plant: Plant) -> None:
    def write_soon(self: Any, on_durable: Any) -> None:
        if on_durable is not None or self._waiting:
            old(self, on_durable)

    old = plant.set(Cursor, "_write_soon", write_soon)


@bug("log", "cursor")
def a_close_drops_what_nobody_waits_for(plant: Plant) -> None:
    quiet: set[int] = set()

    async def close(self: Any) -> None:
        if self._writer is not None and not self._waiting and not self._in_flight:
            quiet.add(id(self._writer))
        await old(self)

    async def close_writer(self: Any, is_changed: bool) -> None:
        if id(self) in quiet:
            quiet.discard(id(self))
            return
        await old_writer(self, is_changed)

    old = plant.set(Cursor, "close", close)
    old_writer = plant.set(CursorWriter, "close", close_writer)


@bug("cursor", "sliced")
def a_reset_leaves_the_node_ahead(plant: Plant) -> None:
    async def lower_node(self: Any, mark_delete: Any) -> None:
        pass

    plant.set(CursorWriter, "_lower_node", lower_node)


@bug("sliced")
def what_is_acknowledged_between_slices_is_in_no_increment(plant: Plant) -> None:
    async def write_snapshot(self: Any, ledger: Any) -> Any:
        body = await self._body(self._state.image())
        self._state.mark_stored()
        mark_delete = self._state.mark_delete
        records = seal_snapshot(
            body, mark_delete, properties_sections(self._state.properties), ledger.base
        )
        await ledger.append_all(records, is_snapshot=True)
        return mark_delete

    plant.set(CursorWriter, "_write_snapshot", write_snapshot)


# Trimming


@bug("takeover", "log")
def trimmed_by_the_position_in_memory(plant: Plant) -> None:
    plant.set(Cursor, "durable_mark_delete", property(lambda self: self.mark_delete))


# Chunks of the list


@bug("chunks takeover")
def a_chunk_is_deleted_before_the_node_lets_go_of_it(plant: Plant) -> None:
    async def write(self: Any, info: Any, version: int) -> Any:
        found = await old(self, info, version)
        await self.settle(found[0], version)
        return found

    old = plant.set(LedgerInfoChunks, "write", write)


@bug("chunks takeover")
def the_node_is_written_before_its_chunk_is_stored(plant: Plant) -> None:
    kept = set[asyncio.Task[Any]]()

    async def put(store: Any, path: str, value: bytes) -> None:
        await asyncio.sleep(0.02)
        with contextlib.suppress(MetadataError):
            await store.put(path, value)

    async def put_later(self: Any, segment: Any, version: int) -> Any:
        value = segment.encode()
        self._count += 1
        name = f"{version + 1:010d}-{self._token}-{self._count}"
        kept.add(asyncio.ensure_future(put(self._store, self.path_of(name), value)))
        self._known[name] = segment.stored_as(name, crc32(value))
        return self._known[name]

    plant.set(LedgerInfoChunks, "_put", put_later)


@bug("chunks takeover")
def rows_that_left_come_back_when_segments_are_joined(plant: Plant) -> None:
    def joined(cls: type[PackedRows], segments: list[PackedRows]) -> PackedRows:
        rows: PackedRows = old(cls, [PackedRows(x._columns(), x._copies) for x in segments])
        return rows

    old = plant.set(PackedRows, "joined", classmethod(joined))


@bug("chunks takeover")
def a_chunk_that_may_yet_be_named_is_collected(plant: Plant) -> None:
    plant.set(ledger_info_chunks, "_version_of", lambda name: 0)


@bug("chunks takeover")
def chunks_of_crashed_owners_stay(plant: Plant) -> None:
    plant.set(ledger_info_chunks, "_version_of", lambda name: sys.maxsize)


# Copies elsewhere


@bug("offload", "offload crash")
def bookies_forget_before_the_list_says_so(plant: Plant) -> None:
    release: Any = None

    async def delete_first(self: Any, ledger_id: int) -> None:
        await self._log.client.delete_ledger(ledger_id)
        await release(self, ledger_id)

    release = plant.set(OffloadPath, "_release", delete_first)


@bug("offload", "offload crash")
def a_copy_is_called_complete_when_it_begins(plant: Plant) -> None:
    started: Any = None

    def complete_at_once(self: ManagedLedgerInfo, copy: LedgerCopy) -> ManagedLedgerInfo:
        return started(self, copy).with_copy_complete(copy, 1, 1)  # type: ignore[no-any-return]

    started = plant.set(ManagedLedgerInfo, "with_copy_started", complete_at_once)


@bug("offload late", "offload")
def a_doomed_copy_that_comes_late_stays(plant: Plant) -> None:
    """Found here, with seed 1000079 of offload."""
    take_back: Any = None

    async def trust_the_next_owner(self: Any, copy: LedgerCopy) -> None:
        stored = await read_list(self._log.store, self._log.path)
        if stored is None or copy not in stored.info.doomed_copies:
            await take_back(self, copy)

    take_back = plant.set(OffloadPath, "_take_back", trust_the_next_owner)
