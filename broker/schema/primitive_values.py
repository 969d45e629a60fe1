"""Values of the primitive schemas: Pulsar's byte layouts, and their texts. Pure.

All numbers are big-endian. Texts of times are ISO 8601; DATE, TIME and TIMESTAMP, which are
milliseconds, are taken as UTC where they name no zone, and may be given as that number.
Source of the layouts: the *Schema classes of org.apache.pulsar.client.impl.schema.
"""

import math
import re
import struct
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from magnetar.broker.schema.value_errors import ValueCodecError

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")
_FRACTION: Final = re.compile(r"(.*:[0-9]{2})[.,]([0-9]{1,9})(.*)", re.DOTALL)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS: Final = 1_000_000_000
_DAY_NANOS: Final = 86_400 * _NANOS


@dataclass(frozen=True, slots=True)
class PackedCodec:
    """A codec made of a layout and two functions."""

    type: str
    layout: struct.Struct
    parse: Callable[[str], tuple[Any, ...]]
    show: Callable[..., Any]

    def encode(self, text: str) -> bytes:
        try:
            return self.layout.pack(*self.parse(text))
        except (ValueError, OverflowError, struct.error) as error:
            raise ValueCodecError(f"{text!r:.60} is no {self.type}: {error}") from error

    def unpack(self, data: bytes) -> tuple[Any, ...]:
        """The numbers of a value. Raises ValueCodecError."""
        if len(data) != self.layout.size:
            raise ValueCodecError(
                f"{len(data)} bytes are no {self.type}, which takes {self.layout.size}"
            )
        return self.layout.unpack(data)

    def decode(self, data: bytes) -> Any:
        numbers = self.unpack(data)
        try:
            return self.show(*numbers)
        except (ValueError, OverflowError) as error:
            raise ValueCodecError(f"these bytes are no {self.type}: {error}") from error


class _Text:
    def encode(self, text: str) -> bytes:
        return text.encode()

    def decode(self, data: bytes) -> Any:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise ValueCodecError(f"these bytes are no STRING: {error}") from error


class _Bytes:
    """Raw bytes: a text goes in as UTF-8, as Pulsar's REST produce does."""

    def encode(self, text: str) -> bytes:
        return text.encode()

    def decode(self, data: bytes) -> Any:
        return b64encode(data).decode()


def _whole(text: str) -> tuple[int]:
    if not _INTEGER.fullmatch(text):
        raise ValueError("not a whole number")
    return (int(text),)


def _real(text: str) -> tuple[float]:
    if "_" in text:  # Python's own notation
        raise ValueError("not a number")
    return (float(text),)


def _shown_real(value: float) -> Any:
    return value if math.isfinite(value) else str(value)


def _truth(text: str) -> tuple[bool]:
    if (lower := text.lower()) not in ("true", "false"):
        raise ValueError("neither true nor false")
    return (lower == "true",)


def _nanos(text: str) -> tuple[str, int]:
    """The text without its fraction of a second, and that fraction."""
    if (match := _FRACTION.fullmatch(text)) is None:
        return text, 0
    return match[1] + match[3], int(match[2].ljust(9, "0"))


def _moment(text: str) -> tuple[int, int]:
    """Seconds since 1970 and nanoseconds; UTC where the text names no zone."""
    whole, nanos = _nanos(text)
    moment = datetime.fromisoformat(whole)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(seconds=1), nanos


def _instant(text: str) -> tuple[int, int]:
    if "T" not in text.upper():
        raise ValueError("not an ISO date and time")
    return _moment(text)


def _millis(text: str) -> tuple[int]:
    if _INTEGER.fullmatch(text):
        return _whole(text)
    seconds, nanos = _moment(text)
    return (seconds * 1000 + nanos // 1_000_000,)


def _time_millis(text: str) -> tuple[int]:
    if _INTEGER.fullmatch(text):
        return _whole(text)
    return (_local_time(text)[0] // 1_000_000,)


def _local_date(text: str) -> tuple[int]:
    return (date.fromisoformat(text).toordinal() - _EPOCH_DAY,)


def _local_time(text: str) -> tuple[int]:
    whole, nanos = _nanos(text)
    moment = time.fromisoformat(whole)
    if moment.tzinfo is not None:
        raise ValueError("a local time has no zone")
    return ((moment.hour * 3600 + moment.minute * 60 + moment.second) * _NANOS + nanos,)


def _local_date_time(text: str) -> tuple[int, int]:
    if "T" not in text.upper():
        raise ValueError("not an ISO date and time")
    return _local_date(text[:10])[0], _local_time(text[11:])[0]


def _shown_instant(seconds: int, nanos: int) -> str:
    if not 0 <= nanos < _NANOS:
        raise ValueError(f"{nanos} nanoseconds")
    moment = _EPOCH + timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0") + _fraction(nanos) + "Z"


def _fraction(nanos: int) -> str:
    return f".{nanos:09}".rstrip("0") if nanos else ""


def _shown_millis(millis: int) -> str:
    return _shown_instant(millis // 1000, millis % 1000 * 1_000_000)


def _shown_date(days: int) -> str:
    return date.fromordinal(_EPOCH_DAY + days).isoformat()


def _shown_time(nanos: int) -> str:
    if not 0 <= nanos < _DAY_NANOS:
        raise ValueError(f"{nanos} nanoseconds of a day")
    seconds, nanos = divmod(nanos, _NANOS)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{_fraction(nanos)}"


def _shown_time_millis(millis: int) -> str:
    # java.sql.Time of a zone east or west of UTC leaves the day
    return _shown_time(millis % 86_400_000 * 1_000_000)


def _shown_date_time(days: int, nanos: int) -> str:
    return f"{_shown_date(days)}T{_shown_time(nanos)}"


PACKED: Final = {
    codec.type: codec
    for codec in (
        PackedCodec("INT8", struct.Struct(">b"), _whole, int),
        PackedCodec("INT16", struct.Struct(">h"), _whole, int),
        PackedCodec("INT32", struct.Struct(">i"), _whole, int),
        PackedCodec("INT64", struct.Struct(">q"), _whole, int),
        PackedCodec("FLOAT", struct.Struct(">f"), _real, _shown_real),
        PackedCodec("DOUBLE", struct.Struct(">d"), _real, _shown_real),
        PackedCodec("BOOLEAN", struct.Struct(">?"), _truth, bool),
        PackedCodec("DATE", struct.Struct(">q"), _millis, _shown_millis),
        PackedCodec("TIME", struct.Struct(">q"), _time_millis, _shown_time_millis),
        PackedCodec("TIMESTAMP", struct.Struct(">q"), _millis, _shown_millis),
        PackedCodec("INSTANT", struct.Struct(">qi"), _instant, _shown_instant),
        PackedCodec("LOCAL_DATE", struct.Struct(">q"), _local_date, _shown_date),
        PackedCodec("LOCAL_TIME", struct.Struct(">q"), _local_time, _shown_time),
        PackedCodec("LOCAL_DATE_TIME", struct.Struct(">qq"), _local_date_time, _shown_date_time),
    )
}
"""The types whose values are numbers of a fixed size."""
_TEXTS: Final[dict[str, _Text | _Bytes]] = {"STRING": _Text(), "BYTES": _Bytes()}


def primitive_codec(type_name: str) -> PackedCodec | _Text | _Bytes | None:
    """The codec of a primitive type, None for the others."""
    return PACKED.get(type_name) or _TEXTS.get(type_name)
