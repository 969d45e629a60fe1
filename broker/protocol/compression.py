"""Payloads compressed and decompressed in Pulsar's framing of each codec, within a limit."""

import zlib
from collections.abc import Mapping

import cramjam

from magnetar.broker.protocol import pulsar_api_pb2 as pb

COMPRESSIONS: Mapping[str, pb.CompressionType.ValueType] = {
    "NONE": pb.NONE,
    "LZ4": pb.LZ4,
    "ZLIB": pb.ZLIB,
    "ZSTD": pb.ZSTD,
    "SNAPPY": pb.SNAPPY,
}


class CompressionError(ValueError):
    """Unknown or lying compression, broken data, or more bytes than are accepted."""


def decompress(
    kind: pb.CompressionType.ValueType,
    payload: bytes | bytearray | memoryview,
    size: int,
    bytes_max: int,
) -> bytes:
    """The payload as its producer had it before compression.

    Args:
        kind: not NONE.
        size: what the producer says the result has: ``uncompressed_size`` of the metadata.
        bytes_max: largest result that is accepted.
    Raises:
        CompressionError: see the class.
    """
    if size > bytes_max:
        raise CompressionError(f"{size} bytes uncompressed, limit {bytes_max}")
    try:
        data, written = _inflate(kind, bytes(payload), size)
    except (zlib.error, cramjam.DecompressionError) as error:
        raise CompressionError(f"payload can't be decompressed: {error}") from error
    if written != size:
        raise CompressionError(f"payload isn't the announced {size} bytes")
    return data


def _inflate(kind: pb.CompressionType.ValueType, data: bytes, size: int) -> tuple[bytes, int]:
    if kind == pb.ZLIB:
        inflated = zlib.decompressobj().decompress(data, size + 1)
        return inflated, len(inflated)
    # Into a buffer of the announced size: a lying sender can't make us allocate more.
    out = bytearray(size)
    if kind == pb.LZ4:
        written = cramjam.lz4.decompress_block_into(data, out)
    elif kind == pb.ZSTD:
        written = cramjam.zstd.decompress_into(data, out)
    elif kind == pb.SNAPPY:
        written = cramjam.snappy.decompress_raw_into(data, out)
    else:
        raise CompressionError(f"unknown compression {kind}")
    return bytes(out), written


def compress(kind: pb.CompressionType.ValueType, data: bytes) -> bytes:
    """``data`` in Pulsar's framing of ``kind``: raw LZ4, raw Snappy, zlib or zstd streams."""
    if kind == pb.LZ4:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    if kind == pb.ZLIB:
        return zlib.compress(data)
    if kind == pb.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    if kind == pb.SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    return data
