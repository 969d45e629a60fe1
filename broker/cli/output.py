"""The command line prints values: one line an element of lists; objects as JSON or as tables."""

import json
import os
import shutil
import sys
from collections.abc import Mapping
from typing import IO, Any

_BYTES_A_LINE = 16


def colours_on(stream: IO[str]) -> bool:
    """Whether text there may have colours: https://no-color.org, and ``--no-color`` sets that."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def readable(text: str, stream: IO[str]) -> str:
    """A text of others: on a terminal as `printable`, elsewhere as it is."""
    if not stream.isatty():
        return text
    from magnetar.broker.cli.tables import printable

    return printable(text)


def print_value(value: Any, *, as_json: bool) -> None:
    """Objects are tables on a terminal and JSON elsewhere, lists of plain values a line each.

    Args:
        as_json: always JSON.
    """
    if as_json:
        print(json.dumps(value, indent=2, ensure_ascii=False))
    elif isinstance(value, str):
        print(readable(value, sys.stdout))
    elif isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        for item in value:
            print(readable(str(item), sys.stdout))
    elif isinstance(value, dict | list) and value and sys.stdout.isatty():
        from magnetar.broker.cli.tables import render

        width = shutil.get_terminal_size().columns
        for line in render(value, width, colours=colours_on(sys.stdout)):
            print(line)
    else:
        print(json.dumps(value, indent=2, ensure_ascii=False))


def print_message(
    message_id: str,
    payload: bytes,
    facts: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """One stored message: its id, what is known of it, its bytes."""
    if as_json:
        text: dict[str, Any]
        try:
            text = {"payload": payload.decode()}
        except UnicodeDecodeError:
            text = {"payloadHex": payload.hex()}
        print(json.dumps({"messageId": message_id, **facts, **text}, ensure_ascii=False))
        return
    print(f"Message ID: {message_id}")
    for name, value in facts.items():
        shown = json.dumps(value) if isinstance(value, dict) else str(value)
        print(f"{name}: {readable(shown, sys.stdout)}")
    print(f"Payload: {len(payload)} bytes")
    for offset in range(0, len(payload), _BYTES_A_LINE):
        part = payload[offset : offset + _BYTES_A_LINE]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        print(f"{offset:08x}  {part.hex(' '):<{_BYTES_A_LINE * 3}} {shown}")
    sys.stdout.flush()
