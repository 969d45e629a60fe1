"""Keys and values of the index; docs/formats/index.md draws them.

Every value ends with a CRC32C over its key and itself, because the store below has no checksums.
"""

import sys
from array import array
from dataclasses import dataclass
from struct import Struct
from typing import Final

from crc32c import crc32c

from magnetar.bookkeeper.bookie.storage.location_runs import LocationRun
from magnetar.bookkeeper.errors import CorruptFileError

VERSION: Final = 1
FORMAT_KEY: Final = b"m:format"
MARK_KEY: Final = b"m:mark"
NEXT_LOG_KEY: Final = b"m:next-log"
LIMBO_KEY: Final = b"m:limbo"
LOST_KEY: Final = b"m:lost"  # ids below may have had a fence here that is forgotten
SCRUB_KEY: Final = b"m:scrub"
METADATA_KEY: Final = b"m:metadata"  # what the journal's newest METADATA_MARK record says

LIMBO_ENTERING: Final = 1  # data is lost, and not every ledger it may concern is marked yet
LIMBO_CHECKING: Final = 2  # all of them are; the data-integrity check clears them one by one

_ID: Final = Struct(">Q")
_RUN_KEY: Final = Struct(">cQQ")
_RUN_VALUE: Final = Struct(">QQ")  # log id, offset; then the sizes, u32 each
_LOG_RUN_KEY: Final = Struct(">cQQQ")
_LOG_VALUE: Final = Struct(">QQ")  # end of the log, live bytes in it
_LEDGER_VALUE: Final = Struct(">Bqq")  # flags, explicit lac, last entry; then the master key
_CREATOR_VALUE: Final = Struct(">QB")  # creator, disputed
_MARK_VALUE: Final = Struct(">QQ")
_SCRUB_VALUE: Final = Struct(">QQ")  # log to go on with, when the pass began in seconds
_LIMBO_VALUE: Final = Struct(">Bq")  # phase, highest ledger id that may be concerned
_FENCED: Final = 1
_LIMBO: Final = 2
_UNSURE: Final = 4
_LAC_DIGEST: Final = 8
_CRC_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """What the index knows about a ledger; ``last_entry`` -1: it holds none.

    ``lac_digest``: see ``LedgerDescriptor``.
    """

    master_key: bytes
    fenced: bool
    limbo: bool
    explicit_lac: int
    last_entry: int
    fence_unknown: bool = False
    lac_digest: bytes | None = None


def seal(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Key and value with the CRC, ready to be put."""
    return key, value + crc32c(value, crc32c(key)).to_bytes(_CRC_BYTES, "big")


def unseal(key: bytes, value: bytes) -> bytes:
    """The value without its CRC.

    Raises:
        CorruptFileError: they don't fit; the "offset" is 0 because a B-tree has no useful one.
    """
    body = value[:-_CRC_BYTES]
    if len(value) < _CRC_BYTES or value[-_CRC_BYTES:] != crc32c(body, crc32c(key)).to_bytes(
        _CRC_BYTES, "big"
    ):
        raise CorruptFileError("index", 0, f"value of key {key.hex()} does not fit its CRC")
    return body


def run_key(ledger_id: int, first: int) -> bytes:
    return _RUN_KEY.pack(b"r", ledger_id, first)


def encode_run(ledger_id: int, run: LocationRun) -> tuple[bytes, bytes]:
    sizes = array("I", run.sizes)
    if sys.byteorder == "little":
        sizes.byteswap()
    value = _RUN_VALUE.pack(run.log_id, run.offset) + sizes.tobytes()
    return seal(run_key(ledger_id, run.first), value)


def decode_run(key: bytes, value: bytes) -> tuple[int, LocationRun]:
    """Ledger id and run.

    Raises:
        CorruptFileError: the value does not fit its CRC.
    """
    _, ledger_id, first = _RUN_KEY.unpack(key)
    value = unseal(key, value)
    log_id, offset = _RUN_VALUE.unpack_from(value)
    sizes = array("I")
    sizes.frombytes(value[_RUN_VALUE.size :])
    if sys.byteorder == "little":
        sizes.byteswap()
    return ledger_id, LocationRun(first, log_id, offset, sizes)


def first_of_run_key(key: bytes) -> int:
    first: int = _RUN_KEY.unpack(key)[2]
    return first


def ledger_runs(ledger_id: int) -> tuple[bytes, bytes]:
    """Key range of all runs of a ledger (ids are below 2**63, so the end never overflows)."""
    return _RUN_KEY.pack(b"r", ledger_id, 0), _RUN_KEY.pack(b"r", ledger_id + 1, 0)


def encode_log_run(log_id: int, ledger_id: int, first: int) -> tuple[bytes, bytes]:
    """Reverse entry: the log holds this run."""
    return seal(_LOG_RUN_KEY.pack(b"x", log_id, ledger_id, first), b"")


def decode_log_run(key: bytes) -> tuple[int, int, int]:
    """Log id, ledger id, first entry."""
    _, log_id, ledger_id, first = _LOG_RUN_KEY.unpack(key)
    return log_id, ledger_id, first


def log_runs(log_id: int) -> tuple[bytes, bytes]:
    return _LOG_RUN_KEY.pack(b"x", log_id, 0, 0), _LOG_RUN_KEY.pack(b"x", log_id + 1, 0, 0)


def log_key(log_id: int) -> bytes:
    return b"g" + _ID.pack(log_id)


def encode_log(log_id: int, end: int, live: int) -> tuple[bytes, bytes]:
    return seal(log_key(log_id), _LOG_VALUE.pack(end, live))


def decode_log(key: bytes, value: bytes) -> tuple[int, int, int]:
    """Log id, end, live bytes."""
    end, live = _LOG_VALUE.unpack(unseal(key, value))
    return _ID.unpack_from(key, 1)[0], end, live


LOGS: Final = (b"g", b"h")


def ledger_key(ledger_id: int) -> bytes:
    return b"l" + _ID.pack(ledger_id)


def id_of_key(key: bytes) -> int:
    """Of a ledger's or a log's record."""
    number: int = _ID.unpack_from(key, 1)[0]
    return number


def encode_ledger(ledger_id: int, record: LedgerRecord) -> tuple[bytes, bytes]:
    flags = _FENCED * record.fenced | _LIMBO * record.limbo | _UNSURE * record.fence_unknown
    digest = b""
    if record.lac_digest is not None:
        flags |= _LAC_DIGEST
        digest = bytes([len(record.lac_digest)]) + record.lac_digest
    value = _LEDGER_VALUE.pack(flags, record.explicit_lac, record.last_entry)
    return seal(ledger_key(ledger_id), b"".join((value, digest, record.master_key)))


def decode_ledger(key: bytes, value: bytes) -> tuple[int, LedgerRecord]:
    value = unseal(key, value)
    flags, explicit_lac, last_entry = _LEDGER_VALUE.unpack_from(value)
    at, digest = _LEDGER_VALUE.size, None
    if flags & _LAC_DIGEST:
        begin, at = at + 1, at + 1 + value[at]
        digest = value[begin:at]
    record = LedgerRecord(
        value[at:],
        bool(flags & _FENCED),
        bool(flags & _LIMBO),
        explicit_lac,
        last_entry,
        bool(flags & _UNSURE),
        digest,
    )
    return _ID.unpack_from(key, 1)[0], record


LEDGERS: Final = (b"l", b"m")


def creator_key(ledger_id: int) -> bytes:
    return b"c" + _ID.pack(ledger_id)


def encode_creator(ledger_id: int, creator: int, *, disputed: bool) -> tuple[bytes, bytes]:
    """Beside the ledger's record, where programs from before it don't look."""
    return seal(creator_key(ledger_id), _CREATOR_VALUE.pack(creator, disputed))


def decode_creator(key: bytes, value: bytes) -> tuple[int, int, bool]:
    """Ledger id, creator, whether another one asked for the id."""
    creator, disputed = _CREATOR_VALUE.unpack(unseal(key, value))
    return id_of_key(key), creator, bool(disputed)


CREATORS: Final = (b"c", b"d")


def deleted_key(ledger_id: int) -> bytes:
    return b"d" + _ID.pack(ledger_id)


def encode_deleted(ledger_id: int, deleted_at_s: int) -> tuple[bytes, bytes]:
    return seal(deleted_key(ledger_id), _ID.pack(deleted_at_s))


def decode_deleted(key: bytes, value: bytes) -> tuple[int, int]:
    return _ID.unpack_from(key, 1)[0], _ID.unpack(unseal(key, value))[0]


DELETED: Final = (b"d", b"e")


def mark_key(journal: int) -> bytes:
    """Key of a journal's mark; ``MARK_KEY`` is that of the first."""
    return MARK_KEY if journal == 0 else b"%s-%d" % (MARK_KEY, journal)


def encode_mark(mark: tuple[int, int], journal: int = 0) -> tuple[bytes, bytes]:
    return seal(mark_key(journal), _MARK_VALUE.pack(*mark))


def decode_mark(value: bytes, journal: int = 0) -> tuple[int, int]:
    segment_id, offset = _MARK_VALUE.unpack(unseal(mark_key(journal), value))
    return segment_id, offset


def encode_limbo(phase: int, last_ledger: int) -> tuple[bytes, bytes]:
    return seal(LIMBO_KEY, _LIMBO_VALUE.pack(phase, last_ledger))


def decode_limbo(value: bytes) -> tuple[int, int]:
    phase, last_ledger = _LIMBO_VALUE.unpack(unseal(LIMBO_KEY, value))
    return phase, last_ledger


def encode_scrub(next_log: int, began_s: int) -> tuple[bytes, bytes]:
    """``next_log`` 0: the pass that began at ``began_s`` is over."""
    return seal(SCRUB_KEY, _SCRUB_VALUE.pack(next_log, began_s))


def decode_scrub(value: bytes) -> tuple[int, int]:
    next_log, began_s = _SCRUB_VALUE.unpack(unseal(SCRUB_KEY, value))
    return next_log, began_s


def encode_number(key: bytes, number: int) -> tuple[bytes, bytes]:
    return seal(key, _ID.pack(number))


def decode_number(key: bytes, value: bytes) -> int:
    number: int = _ID.unpack(unseal(key, value))[0]
    return number
