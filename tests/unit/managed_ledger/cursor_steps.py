"""Opening, closing and watching cursors: steps that the cursor tests share."""

import asyncio
from collections.abc import Callable

from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor.cursor import (
    Cursor,
    load_or_create_cursor,
)
from magnetar.managed_ledger.cursor.cursor_store import CursorNode, decode_node
from magnetar.managed_ledger.position import Position
from tests.unit.managed_ledger.cursor_doubles import FakeLog

START: Position = (1, -1)


class Answers(list[BaseException | None]):
    """Collects on_durable calls."""

    def __call__(self, error: BaseException | None) -> None:
        self.append(error)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition never came true")


async def opened(log: FakeLog) -> Cursor:
    return await load_or_create_cursor(log, "sub", START, {})


async def opened_log(
    ledgers: dict[int, int],
    config: ManagedLedgerConfig | None = None,
    *,
    acked: list[Position] | None = None,
) -> tuple[FakeLog, Cursor]:
    log = FakeLog(ledgers, config=config)
    cursor = await opened(log)
    if acked is not None:
        await ack_and_flush(cursor, acked)
    return log, cursor


async def ack_and_flush(cursor: Cursor, positions: list[Position]) -> None:
    cursor.ack(positions)
    await cursor.flush()


def node_of(log: FakeLog) -> CursorNode:
    return decode_node(log.nodes.nodes[log.path + "/sub"][0], "test")[0]


async def reopened(log: FakeLog) -> Cursor:
    return await opened(log.successor("s2"))
