"""Reads a stripe of a ledger as rows: entries that follow each other, and then a gap."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.transport import Stripe

_ROWS_AT_A_TIME: Final = 64

Packets = list["bytes | memoryview"]
ReadRow = Callable[[int, int, int], Awaitable[tuple[int, Packets]]]
"""Code and consecutive packets from an entry on, so many and so many bytes at most."""


async def read_rows(
    read_row: ReadRow, first: int, count_max: int, bytes_max: int, stripe: Stripe
) -> tuple[int, Packets]:
    """Code and consecutive packets of ``stripe`` from ``first`` on, as ``read_row`` gives them."""
    packets: Packets = []
    entry_id = first
    for rows in itertools.count(1):
        end = stripe.run_end(entry_id, entry_id + count_max - len(packets))
        code, row = await read_row(entry_id, end - entry_id, bytes_max)
        if not row:  # a read of this one gets the reason
            return (codes.OK if packets else code), packets
        for packet in row:
            bytes_max -= len(packet)
            if bytes_max < 0 and packets:
                return codes.OK, packets
            packets.append(packet)
        if len(packets) >= count_max or bytes_max <= 0:
            return codes.OK, packets
        entry_id = stripe.nth(entry_id, len(row))
        if rows % _ROWS_AT_A_TIME == 0:
            await asyncio.sleep(0)  # what is in memory is read without a wait: let others in
    raise AssertionError("the count ends")
