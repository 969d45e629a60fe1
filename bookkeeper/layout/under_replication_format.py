"""Values below ``/ledgers/underreplication``: ours (JSON), and Apache BookKeeper's.

BookKeeper's are protobuf's text form. Its parser takes no field that it doesn't know, so what only
we have is a comment: it is lost when BookKeeper's auditor writes the marker again, and is a hint.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import orjson
from google.protobuf import text_format
from google.protobuf.message import DecodeError

from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.proto.data_formats_pb2 import (
    AuditorVoteFormat,
    CheckTimeFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
)
from magnetar.metadata.store import Versioned

FORMAT_VERSION: Final = 1
_COMMENT: Final = b"# magnetar "


@dataclass(frozen=True, slots=True)
class UnderreplicationMarker:
    """A ledger that may miss replicas.

    Attributes:
        bookies: which of its bookies were found missing, or missing entries; a hint.
        suspects: those of ``bookies`` that are there, but whose copies were found bad or absent in
            the middle: the worker reads all that they should hold before it believes them.
        created_ms: when the ledger was first marked.
        version: of the node; every mark and every note makes a new one.
        reason: why it still waits, for operators; "" until a worker had to give up.
        targets: (first entry of a segment, slot) -> bookie that has some of the copies already.
    """

    ledger_id: int
    bookies: frozenset[str]
    created_ms: int
    version: int
    reason: str = ""
    suspects: frozenset[str] = frozenset()
    targets: Mapping[tuple[int, int], str] = field(default_factory=dict)


class UnderReplicationFormat(ABC):
    """Paths are the same in both.

    Attributes:
        layout_value: of the node that says how the others are; "": there is none.
        elects_by_votes: the auditor's seat is a node with votes below it, not one ephemeral node.
    """

    layout_value: ClassVar[bytes] = b""
    elects_by_votes: ClassVar[bool] = False

    def decode_marker(self, ledger_id: int, found: Versioned) -> UnderreplicationMarker:
        """Raises: LedgerMetadataError: it can't be read."""
        if not found.value:  # an operator's, made by hand: look at the ledger
            return UnderreplicationMarker(
                ledger_id, frozenset(), found.stat.created_ms, found.stat.version
            )
        try:
            return self._decode_marker(ledger_id, found)
        except (ValueError, KeyError, TypeError, text_format.ParseError) as error:
            raise LedgerMetadataError(f"{found.path}: unreadable marker: {error!r}") from error

    @abstractmethod
    def _decode_marker(self, ledger_id: int, found: Versioned) -> UnderreplicationMarker: ...

    @abstractmethod
    def encode_marker(self, marker: UnderreplicationMarker) -> bytes:
        """The inverse; the version isn't part of it."""

    @abstractmethod
    def encode_lock(self, holder: str) -> bytes:
        """``holder``: names the attempt."""

    @abstractmethod
    def encode_auditor(self, name: str) -> bytes: ...

    @abstractmethod
    def decode_auditor(self, value: bytes) -> str:
        """The name; what can't be read stands for itself."""

    @abstractmethod
    def encode_delay(self, seconds: float) -> bytes:
        """Of ``lostBookieRecoveryDelay``; it is read as decimal text."""

    @abstractmethod
    def encode_check_time(self, ms: int) -> bytes: ...

    @abstractmethod
    def decode_check_time(self, value: bytes) -> int:
        """Raises: ValueError: it is no time."""


class JsonUnderReplication(UnderReplicationFormat):
    """Our own (docs/formats/auto-recovery.md)."""

    def encode_marker(self, marker: UnderreplicationMarker) -> bytes:
        document: dict[str, Any] = {
            "format": FORMAT_VERSION,
            "bookies": sorted(marker.bookies),
            "suspects": sorted(marker.suspects),
            "createdMs": marker.created_ms,
            "reason": marker.reason,
            "targets": _targets(marker),
        }
        return orjson.dumps(document)

    def _decode_marker(self, ledger_id: int, found: Versioned) -> UnderreplicationMarker:
        document = orjson.loads(found.value)
        if document["format"] != FORMAT_VERSION:
            raise LedgerMetadataError(f"{found.path}: format {document['format']!r} is unknown")
        return UnderreplicationMarker(
            ledger_id,
            frozenset(map(str, document["bookies"])),
            int(document["createdMs"]),
            found.stat.version,
            **_ours(document),
        )

    def encode_lock(self, holder: str) -> bytes:
        return holder.encode()

    def encode_auditor(self, name: str) -> bytes:
        return name.encode()

    def decode_auditor(self, value: bytes) -> str:
        return value.decode(errors="replace")

    def encode_delay(self, seconds: float) -> bytes:
        return f"{seconds:g}".encode()

    def encode_check_time(self, ms: int) -> bytes:
        return b"%d" % ms

    def decode_check_time(self, value: bytes) -> int:
        return int(value)


class TextUnderReplication(UnderReplicationFormat):
    """BookKeeper's (docs/formats/bookkeeper-zookeeper.md)."""

    layout_value = b'type: "BASIC"\nversion: 1\n'
    elects_by_votes = True

    def encode_marker(self, marker: UnderreplicationMarker) -> bytes:
        message = UnderreplicatedLedgerFormat(
            replica=sorted(marker.bookies), ctime=marker.created_ms
        )
        text = text_format.MessageToString(message).encode()
        if not (marker.reason or marker.suspects or marker.targets):
            return text
        ours = {
            "suspects": sorted(marker.suspects),
            "reason": marker.reason,
            "targets": _targets(marker),
        }
        return b"".join((text, _COMMENT, orjson.dumps(ours), b"\n"))

    def _decode_marker(self, ledger_id: int, found: Versioned) -> UnderreplicationMarker:
        message = text_format.Parse(found.value.decode(), UnderreplicatedLedgerFormat())
        comments = [line for line in found.value.splitlines() if line.startswith(_COMMENT)]
        ours = _ours(orjson.loads(comments[-1].removeprefix(_COMMENT))) if comments else {}
        return UnderreplicationMarker(
            ledger_id,
            frozenset(message.replica),
            message.ctime if message.HasField("ctime") else found.stat.created_ms,
            found.stat.version,
            **ours,
        )

    def encode_lock(self, holder: str) -> bytes:
        return text_format.MessageToString(LockDataFormat(bookieId=holder)).encode()

    def encode_auditor(self, name: str) -> bytes:
        return text_format.MessageToString(AuditorVoteFormat(bookieId=name)).encode()

    def decode_auditor(self, value: bytes) -> str:
        try:
            return text_format.Parse(value.decode(), AuditorVoteFormat()).bookieId
        except (ValueError, text_format.ParseError):
            return value.decode(errors="replace")

    def encode_delay(self, seconds: float) -> bytes:
        return b"%d" % math.ceil(seconds)  # BookKeeper reads an integer

    def encode_check_time(self, ms: int) -> bytes:
        return CheckTimeFormat(ctime=ms).SerializeToString()

    def decode_check_time(self, value: bytes) -> int:
        try:
            return CheckTimeFormat.FromString(value).ctime
        except DecodeError as error:
            raise ValueError(str(error)) from error


def _targets(marker: UnderreplicationMarker) -> list[list[int | str]]:
    return [[*place, target] for place, target in sorted(marker.targets.items())]


def _ours(document: dict[str, Any]) -> dict[str, Any]:
    return {
        "reason": str(document["reason"]),
        "suspects": frozenset(map(str, document["suspects"])),
        "targets": {(int(first), int(slot)): str(b) for first, slot, b in document["targets"]},
    }
