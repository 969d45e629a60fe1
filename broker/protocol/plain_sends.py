"""`send_scan` where it is compiled; elsewhere None, or the same in Python.

Decisions 0090, 0093 and 0116.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, TypeAlias

from magnetar.broker.protocol import pulsar_api_pb2 as pb

_SIZES: Final = Struct(">II").pack  # of a frame and of its command

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

encode_receipts: Callable[[int, int, int, int, list[int], list[int], int, int], bytes]
scan_sends: Scan | None
scan_acks: Callable[[memoryview, int, int, int], "AckRun | None"] | None
scan_ack: Callable[[memoryview, int, int, int], "EntriesAcked | None"] | None
scan_transaction: Callable[[bytes | memoryview], "tuple[int, int, int, int] | None"] | None
scan_keys: Callable[[bytes | memoryview, int], list[Keyed] | None] | None


def receipts_by_protobuf(
    producer_id: int,
    ledger_id: int,
    entry_id: int,
    step: int,
    sequence_ids: list[int],
    highest_ids: list[int],
    start: int,
    end: int,
) -> bytes:
    """See ``send_scan.pyx``; it takes ten times as long."""
    command = pb.BaseCommand(type=pb.BaseCommand.SEND_RECEIPT)
    receipt, parts = command.send_receipt, list[bytes]()
    receipt.producer_id, receipt.message_id.ledgerId = producer_id, ledger_id
    for index in range(start, end):
        receipt.sequence_id = sequence_ids[index]
        receipt.highest_sequence_id = highest_ids[index]
        receipt.message_id.entryId = entry_id
        entry_id += step
        data = command.SerializeToString()
        parts += (_SIZES(len(data) + 4, len(data)), data)
    return b"".join(parts)


try:
    from magnetar.broker.protocol.send_scan import (
        encode_receipts,
        scan_ack,
        scan_acks,
        scan_keys,
        scan_sends,
        scan_transaction,
    )
except ImportError:  # there was no compiler
    encode_receipts = receipts_by_protobuf
    scan_ack = scan_acks = scan_keys = scan_sends = scan_transaction = None
