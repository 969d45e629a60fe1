"""Values in WebSocket frames: what is understood, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from magnetar.broker.http.websocket.fields import (
    FieldError,
    base64_bytes,
    flag,
    iso_millis,
    text,
    time_ms,
    whole,
)


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (whole, 5, 5),
        (whole, -1, -1),
        (whole, "17", 17),
        (whole, "-17", -17),
        (whole, 1.9, 1),
        (text, "", ""),
        (text, 5, "5"),
        (text, 1.5, "1.5"),
        (text, True, "true"),
        (flag, True, True),
        (flag, "false", False),
        (flag, 0, False),
        (flag, 2, True),
        (time_ms, "1970-01-01T00:00:00Z", 0),
        (time_ms, "1970-01-01T02:00+02:00", 0),
        (time_ms, "2026-01-02T03:04:05.678Z", 1767323045678),
        (time_ms, "2026-01-02T03:04:05.678999999Z", 1767323045679),
    ],
)
def test_understood(read: Callable[[Any, str], Any], value: Any, expected: Any) -> None:
    found = read(value, "field")
    assert (found, type(found)) == (expected, type(expected))


REFUSED: list[tuple[Callable[[Any, str], Any], list[Any]]] = [
    (whole, [None, True, "", "x", "1.5", " 1", [], {}, 2**63, 1e300, float("inf"), float("nan")]),
    (text, [None, [], {}, "\ud800"]),
    (flag, [None, "", "yes", [], 1.0]),
    (time_ms, [None, 0, "", "2026-01-02", "2026-01-02T03:04:05", "2026-01-02T03:04:05+0200"]),
    (time_ms, ["20260102T030405Z", "2026-W01-1T00:00:00Z", "2026-13-02T03:04:05Z"]),
    (time_ms, ["1969-12-31T23:59:59Z", "0001-01-01T00:00:00+10:00"]),
]


@pytest.mark.parametrize(
    ("read", "value"), [(read, value) for read, values in REFUSED for value in values]
)
def test_refused_by_name(read: Callable[[Any, str], Any], value: Any) -> None:
    with pytest.raises(FieldError, match="field"):
        read(value, "field")


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", b""), ("eA==", b"x"), ("eA", b"x"), ("eHg=", b"xx"), ("eHg", b"xx")],
)
def test_base64_may_lack_its_padding(value: str, expected: bytes) -> None:
    assert base64_bytes(value) == expected


@pytest.mark.parametrize("value", ["e", "eA=", "e A==", "-_-_", "*", "\u00e9", "eA\n"])
def test_what_is_not_base64(value: str) -> None:
    with pytest.raises(FieldError, match="base64"):
        base64_bytes(value)


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (1767323045000, "2026-01-02T03:04:05Z"),
        (1767323045600, "2026-01-02T03:04:05.6Z"),
        (1767323040678, "2026-01-02T03:04:00.678Z"),
        (0, "1970-01-01T00:00:00Z"),
        (2**64 - 1, "9999-12-31T23:59:59.999Z"),  # any producer may claim it
    ],
)
def test_times_that_are_shown(time: int, expected: str) -> None:
    assert iso_millis(time) == expected
