"""Stored entries to Arrow record batches: the fast path of readers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import pyarrow as pa

from pipeline.chunks import Chunk, Missing
from pipeline.points import BEGINNING, END, Point

__all__ = ["BATCH_BYTES", "BATCH_ROWS", "MESSAGE_BYTES_MAX", "DecodeFigures", "EntryDecoder"]

BATCH_ROWS = 16_384
BATCH_BYTES = 8 << 20
MESSAGE_BYTES_MAX = 256 << 20

Encrypted = Literal["fail", "skip", "raw"]


class DecodeFigures(NamedTuple):
    """What a decoder has seen so far."""

    entries: int
    rows: int
    encrypted_skipped: int
    """Entries left out by ``encrypted="skip"``."""
    incomplete_chunked: int
    """Chunked messages left out: their beginning is not stored any more, or never was."""


class EntryDecoder:
    """Turns the entries of one partition, given in order, into record batches.

    Usage::

        decoder = EntryDecoder(columns, topic, partition, start=start, end=end)
        for run in runs:  # several ledgers may follow each other
            decoder.add(run.ledger_id, run.first, run.heads, run.bodies)
            while (batch := decoder.take()) is not None or decoder.missing is not None:
                if batch is not None:
                    yield batch
                else:
                    decoder.resolve(look_back(decoder.missing))
        if (batch := decoder.finish()) is not None:
            yield batch

    Entries are opened by ``take``, as many as a batch needs: what was added and not opened yet is
    held as it was read.
    """

    def __init__(
        self,
        columns: Sequence[str],
        topic: str,
        partition: int,
        *,
        start: Point = BEGINNING,
        end: Point = END,
        publish_time_ms: tuple[int | None, int | None] = (None, None),
        encrypted: Encrypted = "fail",
        batch_rows: int = BATCH_ROWS,
        batch_bytes: int = BATCH_BYTES,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        """
        Args:
            columns: as `columns.check_schema` gives them: the columns of all batches, in order.
            topic: full name without ``-partition-N``.
            partition: -1: the topic isn't partitioned.
            start, end: messages from ``start`` on and before ``end``; entries outside may be given,
                too. A message outside of a batch has index 0 here.
            publish_time_ms: first and last publish time that is wanted, both included; None: any.
            encrypted: what to do with messages that are encrypted: "fail" raises, "skip" leaves
                them out, "raw" shows an entry's payload as it is, as one row with batchIndex -1.
            batch_rows, batch_bytes: a record batch is given out once it has so many rows, or bytes
                of values, keys and properties.
            message_bytes_max: largest entry after decompression, and largest chunked message.
        """
        raise AssertionError

    def add(
        self,
        ledger_id: int,
        first_entry_id: int,
        heads: Sequence[bytes],
        bodies: Sequence[bytes | memoryview],
    ) -> None:
        """Consecutive entries of one ledger, after all that were added before.

        Args:
            heads: the first 32 bytes of each entry.
            bodies: the rest of each.
        """
        raise AssertionError

    def take(self) -> pa.RecordBatch | None:
        """The next full batch; None: more entries are needed, or `missing` is to be resolved.

        Raises:
            UndecodableError: an entry is broken, or encrypted (``encrypted="fail"``), or belongs to
                a transaction; the text names topic, ledger and entry.
        """
        raise AssertionError

    @property
    def missing(self) -> Missing | None:
        """Set: the decoder waits for `resolve` before it opens anything else."""
        raise AssertionError

    def resolve(self, chunks: list[Chunk] | None) -> None:
        """What `ChunkLookback.chunks` gave for `missing`; None: that message gives no row."""
        raise AssertionError

    def finish(self) -> pa.RecordBatch | None:
        """The rows that are left; None: there are none.

        REQUIRES: ``take`` returned None and nothing is `missing`. Chunked messages whose last chunk
        wasn't added give no row: they belong to the range that has it.
        """
        raise AssertionError

    @property
    def figures(self) -> DecodeFigures:
        """Counts so far."""
        raise AssertionError
