"""Compaction of a log, read twice: the first pass finds the newest message of each key, the second
one takes the entries that hold one.

Both passes must be given the same entries in the same order. The second one opens only those of
which a part is kept.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from magnetar.broker.compaction.keyed_messages import OpenedEntry
from magnetar.broker.compaction.latest_keys import LatestKeys, MessageBits
from magnetar.managed_ledger.entry_batch import Buffer


class _Counts:
    """Numbers of messages, one for each entry, in order: few bytes for many that are the same."""

    __slots__ = ("_counts", "_times")

    def __init__(self) -> None:
        self._counts, self._times = array("I"), array("I")

    def add(self, count: int) -> None:
        if self._counts and self._counts[-1] == count and self._times[-1] < 2**32 - 1:
            self._times[-1] += 1
        else:
            self._counts.append(count)
            self._times.append(1)

    def __iter__(self) -> Iterator[int]:
        for count, times in zip(self._counts, self._times, strict=True):
            for _ in range(times):
                yield count


@dataclass(slots=True, eq=False)
class TwoPasses:
    """Decides what of a log is kept.

    Attributes:
        retains_keyless: messages without a key are kept, all of them; else none is.
        removed: messages that a newer one replaces, that remove a key, or have no key although they
            should: what Pulsar counts as removed.
    """

    retains_keyless: bool = False
    keys: LatestKeys = field(default_factory=LatestKeys)
    removed: int = field(default=0, init=False)
    _number: int = field(default=0, init=False)  # of the next message
    _kept: MessageBits = field(default_factory=MessageBits, init=False)
    _always: MessageBits = field(default_factory=MessageBits, init=False)
    _counts: _Counts = field(default_factory=_Counts, init=False)
    _counted: Iterator[int] = field(default_factory=lambda: iter(()), init=False)  # second pass
    # Numbers of the parts of a chunked message that isn't complete; then by that of its last part.
    _chunks: dict[str, list[int]] = field(default_factory=dict, init=False)
    _whole: dict[int, list[int]] = field(default_factory=dict, init=False)

    def note(self, body: Buffer) -> None:
        """First pass: the next entry."""
        entry, number = OpenedEntry(body), self._number
        if entry.is_opaque:
            self._always.add(number)
            self._number += 1
            self._counts.add(1)
            return
        self._number += len(entry.messages)
        self._counts.add(len(entry.messages))
        if entry.chunk is not None and not self._is_complete(entry.chunk, number):
            return
        for at, message in enumerate(entry.messages, number):
            if message.is_gone:
                continue
            if message.key is not None:
                self.keys.add(message.key, at, removes=message.removes)
                self.removed += message.removes
            elif self.retains_keyless:
                self._always.add(at)
            else:
                self.removed += 1

    def _is_complete(self, chunk: tuple[str, int, int], number: int) -> bool:
        """Whether this part is the last of a message that is there as a whole: it stands for it."""
        uuid, index, count = chunk
        if index == 0:
            self._chunks[uuid] = []
        parts = self._chunks.get(uuid)
        if parts is None or len(parts) != index:
            return False  # its first parts are lost: nobody can join it
        parts.append(number)
        if len(parts) < count:
            return False
        self._whole[number] = self._chunks.pop(uuid)
        return True

    def choose(self) -> None:
        """Between the passes."""
        self._kept = self.keys.finish()
        self.removed += self.keys.replaced
        for last, parts in self._whole.items():
            if last in self._kept or last in self._always:
                for part in parts:
                    self._always.add(part)
        for parts in self._chunks.values():
            for part in parts:  # the end of the message may come behind what is compacted
                self._always.add(part)
        self._kept.add_all(self._always)
        self._always = MessageBits()
        self._whole, self._chunks, self._number = {}, {}, 0
        self._counted = iter(self._counts)

    def take(self, body: Buffer) -> Buffer | None:
        """Second pass: what is kept of the next entry; None: nothing."""
        count, first = next(self._counted), self._number
        self._number += count
        kept = self._kept.count_in(first, count)
        if kept in (0, count):
            return body if kept else None
        return OpenedEntry(body).body_of(lambda index: first + index in self._kept)
