"""Compaction of a log, read twice: the first pass finds the newest message of each key, the second
one takes the entries that hold one.

Both passes must be given the same entries in the same order.
"""

from dataclasses import dataclass, field

from magnetar.broker.compaction.keyed_messages import OpenedEntry
from magnetar.broker.compaction.latest_keys import LatestKeys, MessageBits
from magnetar.managed_ledger.entry_batch import Buffer


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
    # Numbers of the parts of a chunked message that isn't complete; then by that of its last part.
    _chunks: dict[str, list[int]] = field(default_factory=dict, init=False)
    _whole: dict[int, list[int]] = field(default_factory=dict, init=False)

    def note(self, body: Buffer) -> None:
        """First pass: the next entry."""
        entry, number = OpenedEntry(body), self._number
        if entry.is_opaque:
            self._always.add(number)
            self._number += 1
            return
        self._number += len(entry.messages)
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
        self._whole, self._chunks, self._number = {}, {}, 0

    def take(self, body: Buffer) -> Buffer | None:
        """Second pass: what is kept of the next entry; None: nothing."""
        entry, first = OpenedEntry(body), self._number
        if entry.is_opaque:
            self._number += 1
            return body
        count = len(entry.messages)
        self._number += count
        kept = [self._keeps(number) for number in range(first, first + count)]
        if not any(kept):
            return None
        if all(kept):
            return body
        changed = entry.body_of(kept.__getitem__)
        return body if changed is None else changed

    def _keeps(self, number: int) -> bool:
        return number in self._kept or number in self._always
