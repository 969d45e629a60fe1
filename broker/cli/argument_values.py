"""Texts of the command line into values: sizes, durations, message ids, maps, files. Pure but for
the clock of "so long ago" and the files.
"""

import json
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from datetime import datetime
from typing import Any

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MIB = 1 << 20
_LATEST = 2**63 - 1
_OLD_STRATEGIES = {
    "full": "Full",
    "backward": "Backward",
    "forward": "Forward",
    "none": "AlwaysCompatible",
}


def _with_unit(text: str, units: dict[str, int], what: str) -> int:
    unit = units.get(text[-1:].lower())
    number = text[:-1] if unit else text
    try:
        return int(number) * (unit or 1)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not {what}") from None


def _seconds(text: str) -> int:
    return _with_unit(text, _SECONDS, "a duration (90s, 10m, 3h, 2d, 1w)")


def _bytes(text: str) -> int:
    return _with_unit(text, _SIZES, "a size (4096, 10M, 16G, 3T)")


def _megabytes(text: str) -> int:
    size = _bytes(text)
    return size if size < 0 else size // _MIB


def _minutes(text: str) -> int:
    """A plain number is minutes."""
    return int(text) if text.lstrip("-").isdigit() else _seconds(text) // 60


def _minutes_of_seconds(text: str) -> int:
    seconds = _seconds(text)
    return seconds if seconds < 0 else seconds // 60


def _ago(text: str) -> int:
    """Milliseconds since 1970 of the moment so long ago."""
    return int((time.time() - _seconds(text)) * 1000)


def _message_id(text: str) -> dict[str, int]:
    if text.lower() == "latest":
        ledger = entry = _LATEST
    elif text.lower() == "earliest":
        ledger = entry = -1
    else:
        try:
            ledger, entry = map(int, text.split(":")[:2])
        except ValueError:
            raise ArgumentTypeError(
                f"{text!r} is not a message id (latest, earliest or ledger:entry)"
            ) from None
    return {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _map(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in _list(text):
        key, separator, value = part.partition("=")
        if not separator:
            raise ArgumentTypeError(f"{part!r}: KEY=VALUE is expected")
        pairs[key] = value
    return pairs


def _old_strategy(text: str) -> str:
    name = _OLD_STRATEGIES.get(text.lower())
    if name is None:
        raise ArgumentTypeError(f"{text!r} is not one of Full, Backward, Forward, None")
    return name


def _json_file(name: str) -> Any:
    try:
        with open(name, "rb") as file:
            return json.load(file)
    except OSError as error:
        raise ArgumentTypeError(str(error)) from None
    except ValueError as error:
        raise ArgumentTypeError(f"{name}: not JSON: {error}") from None


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time, or of such a number itself."""
    if text.isdigit():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a time (2026-11-21T15:00:00Z)") from None


KINDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "text": ("TEXT", str),
    "upper": ("NAME", str.upper),
    "old-strategy": ("NAME", _old_strategy),
    "int": ("NUMBER", int),
    "float": ("NUMBER", float),
    "list": ("A,B,...", _list),
    "map": ("KEY=VALUE,...", _map),
    "bytes": ("SIZE", _bytes),
    "megabytes": ("SIZE", _megabytes),
    "seconds": ("DURATION", _seconds),
    "minutes": ("DURATION", _minutes),
    "minutes-of-seconds": ("DURATION", _minutes_of_seconds),
    "millis": ("DURATION", lambda text: _seconds(text) * 1000),
    "ago": ("DURATION", _ago),
    "message-id": ("ID", _message_id),
    "json-file": ("FILE", _json_file),
}
"""Kind of an option -> what help calls its value, what makes it and raises ArgumentTypeError."""
