"""What a broker and its process that compacts send each other; integers are big-endian.

    question    kind u8 | ledger i64 | first entry i64 | entries
    answer      status u8 | number u64 | entries
    entries     count u32 | bytes u32 | size u32, of each | they

A question ``NOTE`` has no answer: the socket's buffers bound how far the broker is ahead. What
answers ``CHOOSE`` has the number of removed messages. A process that can't go on answers
``FAILED``, with the reason as its entry, and ends.

Entries that lie in files of this machine don't travel: ``NOTE_STORED`` and ``TAKE_STORED`` say
where runs of them are. Their first entry is how many bytes a second the process may read, u64 (0:
no limit). For each run there are three: path | offset u64, ledger of the records i64, first entry
of them i64, is cached u8 | packet size u32, of each. The answer's number is that of the runs that
were there: from the next one on nothing was done.

What is kept is answered in portions, so that the broker is never held up for long: all but the last
one are ``MORE``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct, pack, unpack_from
from typing import Final

from magnetar.bookkeeper.transport import StoredRun
from magnetar.managed_ledger.entry_batch import Buffer

NOTE: Final = 1
CHOOSE: Final = 2
TAKE: Final = 3
NOTE_STORED: Final = 4
TAKE_STORED: Final = 5
COMPACTED: Final = -1
"""In place of a ledger: the entries are those of a compacted ledger, which have their positions."""
QUESTION: Final = Struct(">Bqq")
DONE: Final = 0
FAILED: Final = 1
MORE: Final = 2
ANSWER: Final = Struct(">BQ")
ENTRIES: Final = Struct(">II")
_RATE: Final = Struct(">Q")
_PLACE: Final = Struct(">Qqq?")
_PORTION_BYTES: Final = 64 * 1024


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


@dataclass(frozen=True, slots=True)
class LocatedEntries:
    """Entries that don't travel: the process reads them itself.

    Attributes:
        runs: one behind the other; at least one.
        bytes_per_s: how fast it may read them; 0: no limit.
    """

    runs: Sequence[StoredRun]
    bytes_per_s: int = 0

    @property
    def first(self) -> int:
        return self.runs[0].first

    @property
    def bytes(self) -> int:
        return sum(sum(run.sizes) for run in self.runs)

    def count(self, runs: int) -> int:
        """How many entries so many runs have, from the first one on."""
        return sum(len(run.sizes) for run in self.runs[:runs])


def encode_runs(located: LocatedEntries) -> list[Buffer]:
    """What a question has in place of entries."""
    parts: list[Buffer] = [_RATE.pack(located.bytes_per_s)]
    for run in located.runs:
        parts += (
            run.path.encode(),
            _PLACE.pack(run.offset, run.ledger_id, run.first, run.is_cached),
            pack(f">{len(run.sizes)}I", *run.sizes),
        )
    return parts


def decode_runs(entries: Sequence[Buffer]) -> LocatedEntries:
    runs: list[StoredRun] = []
    for path, place, sizes in zip(entries[1::3], entries[2::3], entries[3::3], strict=True):
        offset, ledger_id, first, is_cached = _PLACE.unpack(place)
        of_each = unpack_from(f">{len(sizes) // 4}I", sizes)
        runs.append(StoredRun(ledger_id, first, str(path, "utf-8"), offset, of_each, is_cached))
    return LocatedEntries(runs, *_RATE.unpack(entries[0]))


def portions(entries: Sequence[Buffer]) -> list[Sequence[Buffer]]:
    """Entries that travel together; at least one portion."""
    found: list[Sequence[Buffer]] = []
    first = size = 0
    for at, entry in enumerate(entries):
        if at > first and size + len(entry) > _PORTION_BYTES:
            found.append(entries[first:at])
            first, size = at, 0
        size += len(entry)
    return [*found, entries[first:]]
