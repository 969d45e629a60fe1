"""Points between the messages of a stored topic, and their text and JSON forms. Pure.

A point stands before one message: everything below it is left out, the message itself is not.
Ranges are half open. The ledger ids of a topic only grow, so points compare as tuples. Users write
points as Pulsar prints message ids, or as JSON by topic (``startingOffsets``), in the manner of
Spark's Kafka source.
"""

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from magnetar.pipeline.errors import OptionsError

_TEXT: Final = re.compile(
    r"\(?\s*(\d+)\s*[:,]\s*(\d+)(?:\s*[:,]\s*(-?\d+))?(?:\s*[:,]\s*(-?\d+))?\s*\)?"
)
_MAX: Final = 2**63 - 1


class Offset(NamedTuple):
    """Before the message ``batch_index`` of an entry; 0 is before the whole entry."""

    ledger_id: int
    entry_id: int
    batch_index: int = 0

    def __str__(self) -> str:
        text = f"{self.ledger_id}:{self.entry_id}"
        return f"{text}:{self.batch_index}" if self.batch_index else text

    @property
    def after_entry(self) -> "Offset":
        """Before the next entry of the same ledger, which need not exist."""
        return Offset(self.ledger_id, self.entry_id + 1)


BEGINNING: Final = Offset(-1, 0)
"""Before everything that is, was or will be stored."""
END: Final = Offset(_MAX, 0)
"""After everything that will ever be stored; as an option's value: what is stored by then."""

Offsets: TypeAlias = dict[str, Offset]
"""Point by the full name of a partition (or of a topic without partitions)."""


def parse_offset(text: str) -> Offset:
    """``ledger:entry``, ``ledger:entry:batch``, ``ledger:entry:partition:batch``, or the same with
    commas in brackets, as clients print message ids. ``earliest`` and ``latest`` are points, too.

    Raises:
        OptionsError: none of these.
    """
    if text == "earliest":
        return BEGINNING
    if text == "latest":
        return END
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise OptionsError(f"not a message id (ledger:entry or ledger:entry:batch): {text!r}")
    ledger_id, entry_id, third, fourth = found.groups()
    batch = third if fourth is None else fourth
    point = Offset(int(ledger_id), int(entry_id), max(0, int(batch or 0)))
    if max(point) > _MAX:
        raise OptionsError(f"not a message id, its numbers are too large: {text!r}")
    return point


def offset_to_json(point: Offset) -> list[int]:
    """``[ledger, entry]``, or with the batch index where it isn't 0."""
    return list(point) if point.batch_index else [point.ledger_id, point.entry_id]


def offset_from_json(value: Any) -> Offset:
    """Inverse of `offset_to_json`.

    Raises:
        OptionsError: not two or three integers.
    """
    if (
        isinstance(value, list)
        and len(value) in (2, 3)
        and all(isinstance(x, int) and not isinstance(x, bool) for x in value)
    ):
        return Offset(*value)
    raise OptionsError(f"not a point of a topic: {value!r}")


def stream_offsets_to_json(
    offsets: Mapping[str, Offset], compacted: Mapping[str, int] = MappingProxyType({})
) -> dict[str, list[int]]:
    """A checkpoint's form: partition name -> point.

    Args:
        compacted: by partition the compacted ledger that was read before this point: a fourth
            number.
    """
    return {
        name: [*offsets[name], compacted[name]]
        if name in compacted
        else offset_to_json(offsets[name])
        for name in sorted(offsets)
    }


def stream_offsets_from_json(value: Any) -> Offsets:
    """Inverse of `stream_offsets_to_json`, without compacted ledgers.

    Raises:
        OptionsError: a checkpoint of something else.
    """
    return {name: offset_from_json(point) for name, (point, _) in _split_points(value).items()}


def compacted_from_json(value: Any) -> dict[str, int]:
    """The compacted ledgers of `stream_offsets_to_json`.

    Raises:
        OptionsError: a checkpoint of something else.
    """
    return {name: last for name, (_, last) in _split_points(value).items() if last is not None}


def _split_points(value: Any) -> dict[str, tuple[Any, int | None]]:
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, dict):
        raise OptionsError(f"not offsets of this source: {value!r}")
    return {
        str(name): (point[:3], point[3])
        if isinstance(point, list) and len(point) == 4
        else (point, None)
        for name, point in value.items()
    }
