"""What a broker and its process that compacts send each other; integers are big-endian.

    question    kind u8 | ledger i64 | first entry i64 | entries
    answer      status u8 | removed messages u64 | entries
    entries     count u32 | bytes u32 | size u32, of each | they

A question ``NOTE`` has no answer: the socket's buffers bound how far the broker is ahead. A process
that can't go on answers ``FAILED``, with the reason as its entry, and ends.
"""

from collections.abc import Sequence
from struct import Struct, pack, unpack_from
from typing import Final

from magnetar.managed_ledger.entry_batch import Buffer

NOTE: Final = 1
CHOOSE: Final = 2
TAKE: Final = 3
COMPACTED: Final = -1
"""In place of a ledger: the entries are those of a compacted ledger, which have their positions."""
QUESTION: Final = Struct(">Bqq")
DONE: Final = 0
FAILED: Final = 1
ANSWER: Final = Struct(">BQ")
ENTRIES: Final = Struct(">II")


def encode_entries(entries: Sequence[Buffer]) -> list[Buffer]:
    """Pieces of a frame."""
    sizes = [len(entry) for entry in entries]
    return [ENTRIES.pack(len(sizes), sum(sizes)), pack(f">{len(sizes)}I", *sizes), *entries]


def decode_entries(count: int, data: bytes | bytearray) -> list[memoryview]:
    """Entries from what follows their count and bytes."""
    view, at = memoryview(data), 4 * count
    entries = []
    for size in unpack_from(f">{count}I", data):
        entries.append(view[at : at + size])
        at += size
    return entries
