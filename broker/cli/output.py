"""The command line prints values: one line an element of lists, JSON for objects."""

import json
import sys
from collections.abc import Mapping
from typing import Any

_BYTES_A_LINE = 16


def print_value(value: Any, *, as_json: bool) -> None:
    """``as_json``: always JSON; else lists of plain values are one line each."""
    if as_json:
        print(json.dumps(value, indent=2, ensure_ascii=False))
    elif isinstance(value, str):
        print(value)
    elif isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        for item in value:
            print(item)
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
        print(f"{name}: {json.dumps(value) if isinstance(value, dict) else value}")
    print(f"Payload: {len(payload)} bytes")
    for offset in range(0, len(payload), _BYTES_A_LINE):
        part = payload[offset : offset + _BYTES_A_LINE]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        print(f"{offset:08x}  {part.hex(' '):<{_BYTES_A_LINE * 3}} {shown}")
    sys.stdout.flush()
