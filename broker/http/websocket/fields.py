"""Values of the fields in WebSocket frames, as forgiving as Pulsar's reader of JSON is. Pure.

Clients have come to rely on it: numbers as texts, numbers and booleans where a text belongs.
"""

import binascii
import math
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import orjson

_WHOLE_MAX: Final = 2**62
_LAST_MS: Final = 253_402_300_799_999  # of the year 9999
_DIGITS: Final = re.compile(r"-?[0-9]{1,19}")
# java.time's ISO_OFFSET_DATE_TIME; datetime.fromisoformat alone takes weeks and much else.
_DATE_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:\d\d)", re.ASCII
)


class FieldError(ValueError):
    """A field has not the form that it should have."""


def whole(value: Any, field: str) -> int:
    """A number, perhaps as text; a fraction is cut off.

    Raises:
        FieldError: none, or far out of range.
    """
    as_text = isinstance(value, str) and _DIGITS.fullmatch(value) is not None
    if as_text or (isinstance(value, float) and math.isfinite(value)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _WHOLE_MAX:
        raise FieldError(f"{field} must be a number, not {value!r:.50}")
    return value


def text(value: Any, field: str) -> str:
    """A text; a number or a boolean as JSON writes it.

    Raises:
        FieldError: something else, or half of a character.
    """
    if isinstance(value, bool | int | float):
        return orjson.dumps(value).decode()
    if not isinstance(value, str):
        raise FieldError(f"{field} must be a text, not {value!r:.50}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FieldError(f"{field} holds a lone surrogate") from error
    return value


def flag(value: Any, field: str) -> bool:
    """Raises FieldError."""
    match value:
        case bool() | int():
            return bool(value)
        case "true" | "false":
            return bool(value == "true")
    raise FieldError(f"{field} must be true or false, not {value!r:.50}")


def time_ms(value: Any, field: str) -> int:
    """Milliseconds since 1970 of a date and time with its offset, as ISO 8601 writes it.

    Raises:
        FieldError: something else, or before 1970.
    """
    if not isinstance(value, str) or not _DATE_TIME.fullmatch(value):
        raise FieldError(f"Invalid {field}: {value!r:.50} is no date and time with an offset")
    try:
        found = round(datetime.fromisoformat(value).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise FieldError(f"Invalid {field}: {error}") from error
    if found < 0:
        raise FieldError(f"Invalid {field}: before 1970")
    return found


@lru_cache(1024)  # many messages are of one millisecond
def iso_millis(time_ms: int) -> str:
    """As Pulsar's clients write it: UTC is Z, and a fraction has the digits that it needs.

    Clients may send any number as a time: years beyond 9999 are shown as the end of that one.
    """
    seconds, millis = divmod(min(time_ms, _LAST_MS), 1000)
    shown = datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")
    return f"{shown}.{millis:03}".rstrip("0") + "Z" if millis else f"{shown}Z"


def base64_bytes(value: str) -> bytes:
    """Base64, also without the padding at its end.

    Raises:
        FieldError: it is none.
    """
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError as error:  # binascii.Error, and characters beyond ASCII
        if not value.isascii() or "=" in value or len(value) % 4 < 2:
            raise FieldError(f"Invalid base64: {error}") from error
    try:
        return binascii.a2b_base64(value + "=" * (-len(value) % 4), strict_mode=True)
    except binascii.Error as error:
        raise FieldError(f"Invalid base64: {error}") from error
