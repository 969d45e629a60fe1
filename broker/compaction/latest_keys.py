"""Which messages of a log are the newest of their key, in bounded memory.

Messages are numbered in the order in which they are read. Of each key the digest and the number of
its newest message are kept. When there are too many keys for the memory, they go to files, parted
by digest; at the end one part after the other is looked at. What is left is a bit for each message.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import Struct
from tempfile import TemporaryFile
from typing import IO, Final

KEYS_MAX: Final = 500_000
"""In memory, about 100 MB."""
_PARTS: Final = 64
_DIGEST_BYTES: Final = 16  # that two of 10,000,000 keys have the same: 1 in 10**24
_ROW = Struct(">16sQ")
_REMOVES: Final = 1
_FIRST: Final = 2


class MessageBits:
    """A set of message numbers."""

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        self._bits = bytearray()

    def add(self, number: int) -> None:
        at = number >> 3
        if at >= len(self._bits):
            self._bits.extend(bytes(max(at + 1 - len(self._bits), 1024)))
        self._bits[at] |= 1 << (number & 7)

    def add_all(self, other: "MessageBits") -> None:
        both = (int.from_bytes(each._bits, "little") for each in (self, other))
        size = max(len(self._bits), len(other._bits))
        self._bits = bytearray((next(both) | next(both)).to_bytes(size, "little"))

    def __contains__(self, number: int) -> bool:
        at = number >> 3
        return at < len(self._bits) and bool(self._bits[at] >> (number & 7) & 1)

    def count_in(self, first: int, count: int) -> int:
        """How many of ``count`` numbers from ``first`` on are in the set."""
        some = int.from_bytes(self._bits[first >> 3 : (first + count + 7) >> 3], "little")
        return (some >> (first & 7) & (1 << count) - 1).bit_count()


@dataclass(slots=True, eq=False)
class LatestKeys:
    """The newest message of each key, of those added so far.

    Attributes:
        keys_max: so many keys are kept in memory.
        replaced: messages with a value in whose place a newer one with a value came; exact once
            `finish` was called.
    """

    keys_max: int = KEYS_MAX
    replaced: int = field(default=0, init=False)
    # Of a digest: number, whether the first message since the last spill had a value, and whether
    # the newest has none.
    _newest: dict[bytes, int] = field(default_factory=dict, init=False)
    _parts: list[IO[bytes]] = field(default_factory=list, init=False)

    def add(self, key: bytes, number: int, *, removes: bool) -> None:
        """Note a message.

        Args:
            number: above those of all messages before.
            removes: it has no value: its key is removed.
        """
        digest = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        before = self._newest.get(digest)
        if before is None:
            self._newest[digest] = number << 2 | (0 if removes else _FIRST) | removes
            if len(self._newest) > self.keys_max:
                self._spill()
            return
        self.replaced += not (removes or before & _REMOVES)
        self._newest[digest] = number << 2 | before & _FIRST | removes

    def finish(self) -> MessageBits:
        """Return the numbers of the messages that have a value and are the newest of their key."""
        found = MessageBits()
        if not self._parts:
            _mark(found, self._newest.values())
            self._newest = {}
            return found
        self._spill()
        for part in self._parts:
            with part:
                part.seek(0)
                newest: dict[bytes, int] = {}
                for digest, value in _ROW.iter_unpack(part.read()):
                    before = newest.get(digest, _REMOVES)
                    self.replaced += bool(value & _FIRST and not before & _REMOVES)
                    newest[digest] = value
                _mark(found, newest.values())
        self._parts = []
        return found

    def _spill(self) -> None:
        if not self._parts:
            self._parts = [TemporaryFile() for _ in range(_PARTS)]  # noqa: SIM115
        rows: list[list[bytes]] = [[] for _ in range(_PARTS)]
        for digest, value in self._newest.items():
            rows[digest[0] % _PARTS].append(_ROW.pack(digest, value))
        for part, some in zip(self._parts, rows, strict=True):
            part.write(b"".join(some))
        self._newest = {}


def _mark(found: MessageBits, values: Iterable[int]) -> None:
    for value in values:
        if not value & _REMOVES:
            found.add(value >> 2)
