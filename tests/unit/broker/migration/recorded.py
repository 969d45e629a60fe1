"""A cluster of Apache Pulsar 4.2.4 as ``record.py`` recorded it."""

import base64
import json
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Recorded(NamedTuple):
    nodes: dict[str, bytes]
    entries: dict[int, list[bytes]]
    """By ledger."""
    ends: dict[int, tuple[int, int]]
    """Last entry and length in bytes, by ledger."""


@cache
def recorded() -> Recorded:
    found = json.loads(Path(__file__).with_name("pulsar_4_2_4.json").read_bytes())
    return Recorded(
        {path: base64.b64decode(value) for path, value in found["nodes"].items()},
        {int(k): [base64.b64decode(each) for each in v] for k, v in found["entries"].items()},
        {int(k): (last, length) for k, (last, length) in found["ends"].items()},
    )
