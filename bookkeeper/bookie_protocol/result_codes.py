"""Result codes of BookKeeper's protocol, versions 2 and 3, and ours."""

from typing import Final, NamedTuple

from magnetar.bookkeeper import codes


class ProtocolCode(NamedTuple):
    """A code's numbers in version 2 and 3."""

    v2: int
    v3: int


EOK: Final = ProtocolCode(0, 0)
ENOLEDGER: Final = ProtocolCode(1, 402)
ENOENTRY: Final = ProtocolCode(2, 403)
EBADREQ: Final = ProtocolCode(100, 404)
EIO: Final = ProtocolCode(101, 501)
EUA: Final = ProtocolCode(102, 502)
EBADVERSION: Final = ProtocolCode(103, 503)
EFENCED: Final = ProtocolCode(104, 504)
EREADONLY: Final = ProtocolCode(105, 505)
ETOOMANYREQUESTS: Final = ProtocolCode(106, 506)
EUNKNOWNLEDGERSTATE: Final = ProtocolCode(107, 507)

_OURS: Final = {
    EOK: codes.OK,
    ENOLEDGER: codes.NO_LEDGER,
    ENOENTRY: codes.NO_ENTRY,
    # A bookie answers it for what it could not do, too: it proves nothing.
    EBADREQ: codes.UNAVAILABLE,
    EIO: codes.IO_ERROR,
    EUA: codes.UNAUTHORIZED,
    EBADVERSION: codes.UNAVAILABLE,
    EFENCED: codes.FENCED,
    EREADONLY: codes.READ_ONLY,
    ETOOMANYREQUESTS: codes.TOO_MANY_REQUESTS,
    EUNKNOWNLEDGERSTATE: codes.UNKNOWN_LEDGER_STATE,
}
_FROM_V2: Final = {code.v2: ours for code, ours in _OURS.items()}
_FROM_V3: Final = {code.v3: ours for code, ours in _OURS.items()}


_TO_WIRE: Final = {
    **{ours: code for code, ours in _OURS.items()},
    codes.BAD_REQUEST: EBADREQ,
    # Another bookie may take it. EUA would end the writer.
    codes.ENTRY_DIFFERS: EIO,
    codes.OTHER_CREATOR: EUA,
    codes.UNAVAILABLE: EIO,
}


def to_v2(code: int) -> int:
    """What a client of version 2 is told instead of our code. Apache's has no case for
    EUNKNOWNLEDGERSTATE: it would drop the connection with all that is under way on it."""
    return EIO.v2 if code == codes.UNKNOWN_LEDGER_STATE else _TO_WIRE.get(code, EIO).v2


def to_v3(code: int) -> int:
    """As ``to_v2``, of version 3, which knows them all."""
    return _TO_WIRE.get(code, EIO).v3


def from_v2(code: int) -> int:
    """Our code; one that a newer bookie sends proves nothing."""
    return _FROM_V2.get(code, codes.UNAVAILABLE)


def from_v3(code: int) -> int:
    """As ``from_v2``."""
    return _FROM_V3.get(code, codes.UNAVAILABLE)
