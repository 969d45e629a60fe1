"""What the metadata store knows about one ledger, and the only ways in which it may change.

A ledger is OPEN while its writer appends, IN_RECOVERY once another client has begun to close it,
and CLOSED for ever after that. Its entries are cut into segments; each names the ensemble that
holds the entries from its key up to the next key. Every change below is a pure function from one
version to the next and is written by compare-and-set (``client/ledger_store.py``). A change that
answers None has nothing to do; one that raises must not be tried again.

Bytes: docs/formats/ledger-metadata.md. Rules: docs/spec/storage.md, "Ledger states".
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from hmac import compare_digest
from typing import Any, Final

import orjson

from magnetar.bookkeeper.errors import (
    LedgerClosedError,
    LedgerFencedError,
    LedgerMetadataError,
    OtherCreatorError,
)

FORMAT_VERSION: Final = 1
MASTER_KEY_BYTES: Final = 20
DIGEST_CRC32C: Final = "CRC32C"  # the only digest this version writes and reads


class LedgerState(Enum):
    """Where a ledger is in its life; the values are part of the stored form."""

    OPEN = "OPEN"
    IN_RECOVERY = "IN_RECOVERY"
    CLOSED = "CLOSED"


def same_master_key(known: bytes, given: bytes) -> bool:
    """Whether both are of one password.

    There are two keys of no password, ``LedgerMetadata.master_key``: a ledger gets the other one
    when its metadata are converted.
    """
    if compare_digest(known, given):
        return True
    none = (bytes(MASTER_KEY_BYTES), _key_of(b""))
    return known in none and given in none


def _key_of(password: bytes) -> bytes:
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


@dataclass(frozen=True, slots=True)
class EnsembleSegment:
    """Entries from ``first_entry`` up to the next segment's, and the bookies that hold them."""

    first_entry: int
    bookies: tuple[str, ...]  # E distinct ids; the place in the tuple is the slot


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """One version of a ledger's metadata.

    Attributes:
        segments: never empty; first key 0, keys strictly increasing.
        last_entry, length: -1 and 0 until CLOSED; length counts payload bytes.
        created_ms: wall clock of the creator, -1 when unknown.
        creator_token: random number that tells the creator's own earlier attempt from another's.
        stored: of BookKeeper's form the bytes that it was read from, which may hold more.
    """

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    segments: tuple[EnsembleSegment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: int = -1
    length: int = 0
    password: bytes = field(default=b"", repr=False)
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)
    created_ms: int = -1
    creator_token: int = 0
    digest_type: str = DIGEST_CRC32C
    stored: bytes = field(default=b"", repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise LedgerMetadataError(
                f"ledger {self.ledger_id}: quorums {self.ensemble_size}/{self.write_quorum}/"
                f"{self.ack_quorum} are not E >= Qw >= Qa >= 1"
            )
        previous = -1
        for segment in self.segments:
            if segment.first_entry <= previous:
                raise LedgerMetadataError(f"ledger {self.ledger_id}: segment keys don't increase")
            if not len(set(segment.bookies)) == len(segment.bookies) == self.ensemble_size:
                raise LedgerMetadataError(
                    f"ledger {self.ledger_id}: not {self.ensemble_size} distinct bookies: {segment}"
                )
            previous = segment.first_entry
        if not self.segments or self.segments[0].first_entry != 0:
            raise LedgerMetadataError(f"ledger {self.ledger_id}: no segment for entry 0")

    @property
    def master_key(self) -> bytes:
        """The 20 bytes that a bookie compares on adds and fencing reads.

        All zero for no password, unless the ledger is stored as BookKeeper's clients do it.
        """
        if not self.password and not self.stored:
            return bytes(MASTER_KEY_BYTES)
        return _key_of(self.password)

    @property
    def last_segment(self) -> EnsembleSegment:
        return self.segments[-1]

    @property
    def is_striped(self) -> bool:
        return self.ensemble_size != self.write_quorum

    def require_creator(self, creator: int) -> None:
        """Raises: OtherCreatorError: the id is another ledger's now than ``creator`` made."""
        if creator != self.creator_token:
            raise OtherCreatorError(
                f"ledger {self.ledger_id}: the metadata store names another ledger with this id "
                "now; was it restored?"
            )

    def segment_of(self, entry_id: int) -> EnsembleSegment:
        """The segment that holds ``entry_id``."""
        for segment in reversed(self.segments):
            if segment.first_entry <= entry_id:
                return segment
        raise ValueError(f"negative entry id {entry_id}")

    def segment_end(self, entry_id: int) -> int | None:
        """First entry of the segment after that of ``entry_id``; None: it is the last one."""
        for segment in self.segments:
            if segment.first_entry > entry_id:
                return segment.first_entry
        return None


# Transitions


def begin_recovery(metadata: LedgerMetadata) -> LedgerMetadata | None:
    """OPEN -> IN_RECOVERY; None otherwise (no second bump, or two recoverers duel for ever)."""
    if metadata.state is not LedgerState.OPEN:
        return None
    return replace(metadata, state=LedgerState.IN_RECOVERY)


def change_ensemble(
    metadata: LedgerMetadata, first_entry: int, replacements: Mapping[int, tuple[str, str]]
) -> LedgerMetadata | None:
    """OPEN -> OPEN, by the writer: entries from ``first_entry`` on go to other bookies.

    Args:
        first_entry: last confirmed + 1 of the writer, frozen while the change runs.
        replacements: slot -> (failed bookie, new bookie); those whose failed bookie isn't at its
            slot any more are dropped.

    Returns:
        None when every failure is cured already.

    Raises:
        LedgerFencedError: IN_RECOVERY. LedgerClosedError: CLOSED.
    """
    require_open(metadata)
    last = metadata.last_segment
    bookies = list(last.bookies)
    for slot, (failed, newcomer) in replacements.items():
        if bookies[slot] == failed:
            bookies[slot] = newcomer
    if tuple(bookies) == last.bookies:
        return None
    return replace(
        metadata,
        segments=with_segment(metadata.segments, EnsembleSegment(first_entry, tuple(bookies))),
    )


def close_by_writer(
    metadata: LedgerMetadata, last_entry: int, length: int
) -> LedgerMetadata | None:
    """OPEN -> CLOSED at the writer's last confirmed entry; None when it is closed just there.

    Raises:
        LedgerFencedError: another client recovers the ledger, or has closed it elsewhere.
    """
    if metadata.state is LedgerState.CLOSED:
        if (metadata.last_entry, metadata.length) == (last_entry, length):
            return None
        raise LedgerFencedError(
            f"ledger {metadata.ledger_id} was closed at entry {metadata.last_entry} by another "
            f"client, this writer stands at {last_entry}"
        )
    if metadata.state is LedgerState.IN_RECOVERY:
        raise LedgerFencedError(f"ledger {metadata.ledger_id} is being recovered")
    return replace(metadata, state=LedgerState.CLOSED, last_entry=last_entry, length=length)


def close_by_recovery(
    metadata: LedgerMetadata, last_entry: int, length: int, segments: Sequence[EnsembleSegment]
) -> LedgerMetadata | None:
    """IN_RECOVERY -> CLOSED, with the segments the recovery kept to itself; None when CLOSED.

    The caller has checked that the last segment is the one its reads went by.

    Raises:
        LedgerMetadataError: still OPEN, or a segment before the last published one.
    """
    if metadata.state is LedgerState.CLOSED:
        return None
    if metadata.state is LedgerState.OPEN:
        raise LedgerMetadataError(f"ledger {metadata.ledger_id} is open: nobody recovers it")
    merged = metadata.segments
    for segment in segments:
        merged = with_segment(merged, segment)
    if merged[-1].first_entry > last_entry + 1:
        raise LedgerMetadataError(
            f"ledger {metadata.ledger_id}: end {last_entry} before segment {merged[-1]}"
        )
    return replace(
        metadata,
        state=LedgerState.CLOSED,
        last_entry=last_entry,
        length=length,
        segments=merged,
    )


def replace_members(
    metadata: LedgerMetadata, first_entry: int, replacements: Mapping[int, tuple[str, str]]
) -> LedgerMetadata | None:
    """Repair: swap bookies of one closed segment; keys, order of slots and the end stay.

    A segment is closed when the ledger is, or when another segment follows it.

    Returns:
        None when no named bookie is at its slot any more.

    Raises:
        LedgerMetadataError: no such segment, or it still grows.
    """
    segments = list(metadata.segments)
    place = next((i for i, s in enumerate(segments) if s.first_entry == first_entry), None)
    if place is None:
        raise LedgerMetadataError(f"ledger {metadata.ledger_id}: no segment at {first_entry}")
    if metadata.state is not LedgerState.CLOSED and place == len(segments) - 1:
        raise LedgerMetadataError(f"ledger {metadata.ledger_id}: segment {first_entry} is open")
    bookies = list(segments[place].bookies)
    for slot, (old, new) in replacements.items():
        if bookies[slot] == old:
            bookies[slot] = new
    if tuple(bookies) == segments[place].bookies:
        return None
    segments[place] = EnsembleSegment(first_entry, tuple(bookies))
    return replace(metadata, segments=tuple(segments))


def require_open(metadata: LedgerMetadata) -> None:
    """Raises what a writer must hear that meets a ledger which is no longer OPEN."""
    if metadata.state is LedgerState.CLOSED:
        raise LedgerClosedError(f"ledger {metadata.ledger_id} is closed")
    if metadata.state is LedgerState.IN_RECOVERY:
        raise LedgerFencedError(f"ledger {metadata.ledger_id} is being recovered")


def with_segment(
    segments: tuple[EnsembleSegment, ...], segment: EnsembleSegment
) -> tuple[EnsembleSegment, ...]:
    """``segments`` with a new last one; one with the same key is replaced: it confirmed nothing.

    Raises:
        LedgerMetadataError: the key lies before the last one.
    """
    last_key = segments[-1].first_entry
    if segment.first_entry < last_key:
        raise LedgerMetadataError(f"segment key {segment.first_entry} before {last_key}")
    kept = segments[:-1] if segment.first_entry == last_key else segments
    return (*kept, segment)


# Stored form


def encode(metadata: LedgerMetadata) -> bytes:
    """The stored bytes: one JSON object with ``format`` first."""
    document: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "ledgerId": metadata.ledger_id,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorum": metadata.write_quorum,
        "ackQuorum": metadata.ack_quorum,
        "state": metadata.state.value,
        "lastEntryId": metadata.last_entry,
        "length": metadata.length,
        "digestType": metadata.digest_type,
        "password": _to_text(metadata.password),
        "ensembles": [[s.first_entry, list(s.bookies)] for s in metadata.segments],
        "customMetadata": {k: _to_text(v) for k, v in metadata.custom_metadata.items()},
        "createdMs": metadata.created_ms,
        "creatorToken": metadata.creator_token,
    }
    return orjson.dumps(document)


def decode(value: bytes) -> LedgerMetadata:
    """The metadata in ``value``.

    Raises:
        LedgerMetadataError: not ours, a newer format, or a state or digest we don't know.
    """
    try:
        document = orjson.loads(value)
        if document["format"] != FORMAT_VERSION:
            raise LedgerMetadataError(f"ledger metadata format {document['format']!r} is unknown")
        if document["digestType"] != DIGEST_CRC32C:
            raise LedgerMetadataError(f"digest type {document['digestType']!r} is unknown")
        return LedgerMetadata(
            ledger_id=int(document["ledgerId"]),
            ensemble_size=int(document["ensembleSize"]),
            write_quorum=int(document["writeQuorum"]),
            ack_quorum=int(document["ackQuorum"]),
            segments=tuple(EnsembleSegment(int(k), tuple(b)) for k, b in document["ensembles"]),
            state=LedgerState(document["state"]),
            last_entry=int(document["lastEntryId"]),
            length=int(document["length"]),
            password=_to_bytes(document["password"]),
            custom_metadata={k: _to_bytes(v) for k, v in document["customMetadata"].items()},
            created_ms=int(document["createdMs"]),
            creator_token=int(document["creatorToken"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise LedgerMetadataError(f"unreadable ledger metadata: {error!r}") from error


def _to_text(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _to_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
