"""`send_scan.scan_sends` where it is compiled; None elsewhere (docs/decisions/0090)."""

from collections.abc import Callable
from typing import TypeAlias

Scan: TypeAlias = Callable[
    [memoryview, int, int, int, int],
    "tuple[int, int, list[bytes], list[bytes], list[int], list[int], int, int] | None",
]

scan_sends: Scan | None
try:
    from magnetar.broker.protocol.send_scan import scan_sends
except ImportError:  # there was no compiler
    scan_sends = None
