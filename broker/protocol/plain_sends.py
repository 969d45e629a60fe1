"""`send_scan` where it is compiled; None elsewhere (docs/decisions/0090, 0093)."""

from collections.abc import Callable
from typing import TypeAlias

Run: TypeAlias = (
    "tuple[int, int, list[bytes], list[bytes], list[int], list[int], int, int,"
    " dict[int, tuple[int, int]] | None]"
)
"""See ``send_scan.pyx``."""
AckRun: TypeAlias = "tuple[int, int, int, int, list[int], list[tuple[tuple[int, int], int, int]]]"
EntriesAcked: TypeAlias = "tuple[int, int | None, list[tuple[int, int]]]"
Keyed: TypeAlias = tuple[bytes | None, bool, bool]
"""Of a message in a batch: key, whether it has no value, whether it is compacted out."""
Scan: TypeAlias = Callable[[memoryview, int, int, int, int], "Run | None"]

scan_sends: Scan | None
scan_acks: Callable[[memoryview, int, int, int], "AckRun | None"] | None
scan_ack: Callable[[memoryview, int, int, int], "EntriesAcked | None"] | None
scan_transaction: Callable[[bytes | memoryview], "tuple[int, int, int, int] | None"] | None
scan_keys: Callable[[bytes | memoryview, int], list[Keyed] | None] | None
try:
    from magnetar.broker.protocol.send_scan import (
        scan_ack,
        scan_acks,
        scan_keys,
        scan_sends,
        scan_transaction,
    )
except ImportError:  # there was no compiler
    scan_ack = scan_acks = scan_keys = scan_sends = scan_transaction = None
