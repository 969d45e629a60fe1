"""Result codes of a bookie's answer, as they travel between bookie and client.

Three kinds matter to the client's protocol logic: positive answers (``OK``), explicit negatives
(``NO_LEDGER``, ``NO_ENTRY``, ``OTHER_CREATOR``: the bookie remembers everything it ever
acknowledged and does not have it), and answers that prove nothing (everything else). Only explicit
negatives may count towards "the ledger ends here" in a recovery. The numbers are part of the wire
format: never renumber them.
"""

from typing import Final

OK: Final = 0
NO_LEDGER: Final = 1  # explicit negative: this bookie never held an entry of the ledger
NO_ENTRY: Final = 2  # explicit negative: the ledger is known, the entry is not
FENCED: Final = 3  # another client recovers the ledger; only recovery adds are accepted
UNAUTHORIZED: Final = 4  # the ledger exists with another master key
READ_ONLY: Final = 5  # the bookie accepts no writes for now (disk space)
IO_ERROR: Final = 6  # a disk failed or stored bytes are corrupt; proves nothing about the entry
UNKNOWN_LEDGER_STATE: Final = 7  # limbo: the bookie may have lost data of this ledger
TOO_MANY_REQUESTS: Final = 8  # back-pressure: nothing was accepted, try again later
BAD_REQUEST: Final = 9  # malformed: ids, sizes or lengths don't fit
UNAVAILABLE: Final = 10  # the bookie is starting, closing or unreachable
# Two ledgers share the id. Explicit negative: it holds the other one, and nothing of this one.
OTHER_CREATOR: Final = 11
ENTRY_DIFFERS: Final = 12  # an entry of this id is stored with another payload or length, and stays

CODE_NAMES: Final = (
    "OK",
    "NO_LEDGER",
    "NO_ENTRY",
    "FENCED",
    "UNAUTHORIZED",
    "READ_ONLY",
    "IO_ERROR",
    "UNKNOWN_LEDGER_STATE",
    "TOO_MANY_REQUESTS",
    "BAD_REQUEST",
    "UNAVAILABLE",
    "OTHER_CREATOR",
    "ENTRY_DIFFERS",
)


def code_name(code: int) -> str:
    """Name of a result code for messages; ``CODE(<n>)`` for numbers a newer bookie may send."""
    return CODE_NAMES[code] if 0 <= code < len(CODE_NAMES) else f"CODE({code})"


def is_explicit_negative(code: int) -> bool:
    """True if the answer proves that the bookie does not have what was asked for."""
    return code in (NO_LEDGER, NO_ENTRY, OTHER_CREATOR)
