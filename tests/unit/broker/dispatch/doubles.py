"""In-memory ledger and cursor with the reading faces that dispatch needs."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct

from magnetar.broker.dispatch.active_consumer import ActiveConsumerSelector
from magnetar.broker.dispatch.interfaces import ConsumerState
from magnetar.managed_ledger.empty_containers import NO_ITEMS
from magnetar.managed_ledger.entry_batch import Buffer, EntryBatch
from magnetar.managed_ledger.errors import InvalidPositionError
from magnetar.managed_ledger.position import Position

_HEAD = Struct(">BBHIQQII")


def head(
    messages: int = 1,
    flags: int = 0,
    *,
    publish_ms: int = 1_700_000_000_000,
    deliver_at_ms: int = 0,
    chunk: int = 0,
    key: int = 0,
) -> bytes:
    """An entry head; a batch unless it is one message or other flags are given."""
    if messages != 1:
        flags |= 1
    return _HEAD.pack(0x4D, 1, flags, messages, publish_ms, deliver_at_ms, key, chunk)


class MemoryLedger:
    """A log of several ledgers. ``cached`` False: every read goes through ``read``."""

    def __init__(self, ledger_sizes: Sequence[int] = ()) -> None:
        self.ledgers: dict[int, list[tuple[bytes, Buffer]]] = {}
        self.cached = True
        self.reads = 0
        self.fail_reads = 0
        self.read_error: Exception = OSError("no bookie answers")
        self.may_read = asyncio.Event()
        self.may_read.set()
        for ledger_id, size in enumerate(ledger_sizes, 10):
            self.ledgers[ledger_id] = []
            for _ in range(size):
                self.append(ledger_id=ledger_id)

    def append(
        self,
        entry_head: bytes | None = None,
        *,
        ledger_id: int | None = None,
        body: Buffer | None = None,
    ) -> Position:
        if ledger_id is None:
            ledger_id = max(self.ledgers, default=10)
        entries = self.ledgers.setdefault(ledger_id, [])
        position = (ledger_id, len(entries))
        entries.append((entry_head or head(), body or b"%d:%d" % position))
        return position

    @property
    def last_confirmed(self) -> Position:
        for ledger_id in sorted(self.ledgers, reverse=True):
            if self.ledgers[ledger_id]:
                return (ledger_id, len(self.ledgers[ledger_id]) - 1)
        return (-1, -1)

    @property
    def entry_count(self) -> int:
        return sum(map(len, self.ledgers.values()))

    @property
    def total_bytes(self) -> int:
        return sum(len(a) + len(b) for entries in self.ledgers.values() for a, b in entries)

    @property
    def offsets(self) -> "MemoryLedger":
        return self

    def entries(self, ledger_id: int) -> int | None:
        found = self.ledgers.get(ledger_id)
        return None if found is None else len(found)

    def entries_between(self, after: Position, upto: Position) -> int:
        return sum(
            after < (ledger_id, entry_id) <= upto
            for ledger_id, entries in self.ledgers.items()
            for entry_id in range(len(entries))
        )

    def bytes_after(self, position: Position) -> int:
        return sum(
            len(a) + len(b)
            for ledger_id, entries in self.ledgers.items()
            for entry_id, (a, b) in enumerate(entries)
            if (ledger_id, entry_id) > position
        )

    def _slice(self, position: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        for ledger_id in sorted(self.ledgers):
            entries = self.ledgers[ledger_id]
            if ledger_id < position[0]:
                continue
            first = max(position[1], 0) if ledger_id == position[0] else 0
            run = entries[first : first + entries_max]
            while len(run) > 1 and sum(len(body) for _, body in run) > bytes_max:
                run = run[: len(run) // 2]
            if run:
                return EntryBatch(ledger_id, first, [h for h, _ in run], [b for _, b in run])
        return None

    def read_nowait(
        self, position: Position, entries_max: int, bytes_max: int
    ) -> EntryBatch | None:
        return self._slice(position, entries_max, bytes_max) if self.cached else None

    async def read(self, position: Position, entries_max: int, bytes_max: int) -> EntryBatch | None:
        self.reads += 1
        await asyncio.sleep(0)
        await self.may_read.wait()
        if self.fail_reads:
            self.fail_reads -= 1
            raise self.read_error
        return self._slice(position, entries_max, bytes_max)

    def positions(self) -> list[Position]:
        return [
            (ledger_id, entry_id)
            for ledger_id in sorted(self.ledgers)
            for entry_id in range(len(self.ledgers[ledger_id]))
        ]

    def next_position(self, position: Position) -> Position:
        for ledger_id in sorted(self.ledgers):
            first = max(position[1] + 1, 0) if ledger_id == position[0] else 0
            if ledger_id >= position[0] and first < len(self.ledgers[ledger_id]):
                return (ledger_id, first)
        last = self.last_confirmed
        return (last[0], last[1] + 1)

    def previous_position(self, position: Position) -> Position:
        before = [each for each in self.positions() if each < position]
        return before[-1] if before else (min(self.ledgers, default=-1), -1)

    def first_position(self) -> Position:
        return self.next_position((-1, -1))

    def position_after(self, position: Position, entries: int) -> Position:
        after = [each for each in self.positions() if each > position]
        if entries <= 0:
            return position
        return after[entries - 1] if len(after) >= entries else self.next_position((2**63, 0))

    async def find_newest(
        self,
        predicate: Callable[[bytes, bytes], bool],
        *,
        after: Position = (-1, -1),
        upto: Position = (2**63, 0),
    ) -> Position | None:
        found = None
        for position in [each for each in self.positions() if after < each <= upto]:
            entry_head, body = self.ledgers[position[0]][position[1]]
            if predicate(entry_head, bytes(body)):
                found = position
        return found

    async def delete_cursor(self, name: str) -> None:
        self.deleted = name


class MemoryCursor:
    """Acknowledged positions as a plain set."""

    def __init__(self, ledger: MemoryLedger, name: str = "s") -> None:
        self.ledger = ledger
        self.name = name
        self.acked: set[Position] = set()
        self.partly: dict[Position, list[int]] = {}
        self.cursor_properties: dict[str, str] = {}
        self.properties: dict[str, int] = {}

    @property
    def state(self) -> "MemoryCursor":
        return self

    def _position_list(self) -> list[Position]:
        return self.ledger.positions()

    @property
    def mark_delete(self) -> Position:
        mark = (min(self.ledger.ledgers, default=-1), -1)
        for position in self._position_list():
            if position not in self.acked:
                break
            mark = position
        return mark

    @property
    def backlog(self) -> int:
        return sum(1 for each in self._position_list() if each not in self.acked)

    @property
    def range_count(self) -> int:
        above = {each for each in self.acked if each > self.mark_delete}
        return sum(1 for ledger_id, entry_id in above if (ledger_id, entry_id - 1) not in above)

    @property
    def bitmap_bytes(self) -> int:
        return 2 * len(self.acked)

    def ack(
        self,
        positions: Sequence[Position],
        on_durable: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        self.acked.update(positions)
        if on_durable is not None:
            on_durable(None)

    def ack_cumulative(
        self,
        position: Position,
        properties: Mapping[str, int] | None = None,
        on_durable: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        if position > self.ledger.last_confirmed:
            raise InvalidPositionError(f"{position} is beyond the end")
        self.properties = dict(properties or {})
        self.ack([each for each in self._position_list() if each <= position], on_durable)

    def ack_cumulative_batch(
        self,
        position: Position,
        ack_set: Sequence[int],
        on_durable: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        self.acked.update(each for each in self._position_list() if each < position)
        self.ack_batch(position, ack_set, on_durable)

    def ack_batch(
        self,
        position: Position,
        ack_set: Sequence[int],
        on_durable: Callable[[BaseException | None], None] | None = None,
    ) -> bool:
        known = self.partly.get(position, [-1] * len(ack_set))
        words = [old & new for old, new in zip(known, ack_set, strict=True)]
        if on_durable is not None:
            on_durable(None)
        if any(words):
            self.partly[position] = words
            return False
        self.partly.pop(position, None)
        self.acked.add(position)
        return True

    def acked_in(self, ledger_id: int, first: int, count: int) -> list[int] | None:
        found = [entry for entry in range(first, first + count) if (ledger_id, entry) in self.acked]
        return found or None

    def is_acked(self, position: Position) -> bool:
        return position in self.acked

    def batch_messages_left(self, position: Position) -> int:
        return sum(word.bit_count() for word in self.partly.get(position, ()))

    def batch_ack_set(self, position: Position) -> list[int] | None:
        return self.partly.get(position)

    def first_unacked(self) -> Position:
        return self.ledger.next_position(self.mark_delete)

    def first_unacked_from(self, position: Position) -> Position | None:
        left = (at for at in self.ledger.positions() if at >= position and at not in self.acked)
        return next(left, None)

    async def reset(
        self,
        position: Position,
        ack_set: Sequence[int] = (),
        properties: Mapping[str, int] = NO_ITEMS,
    ) -> None:
        await asyncio.sleep(0)
        self.properties = dict(properties)
        self.acked = {each for each in self._position_list() if each < position}
        self.partly.clear()
        if ack_set:
            self.partly[position] = list(ack_set)

    async def flush(self) -> None:
        """What is acknowledged here is as durable as it gets."""

    async def set_cursor_properties(self, properties: Mapping[str, str]) -> None:
        self.cursor_properties = dict(properties)

    async def close(self) -> None:
        self.closed = True


def choose_active(
    consumers: Sequence[ConsumerState] | Iterable[ConsumerState], topic: str, partition_index: int
) -> ConsumerState:
    """The choice among consumers in the order of their joining. REQUIRES: there is one."""
    choice = ActiveConsumerSelector(topic, partition_index)
    for consumer in consumers:
        choice.add(consumer)
    return choice.choose()
