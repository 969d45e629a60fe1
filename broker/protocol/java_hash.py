"""The hash by which Pulsar's clients route keys to partitions unless they are told otherwise."""

from collections.abc import Sequence
from struct import iter_unpack, unpack

_UNITS_AT_ONCE = 256


def java_string_hash(text: str) -> int:
    """Java's ``String.hashCode`` without its sign: 31 * hash + unit over the UTF-16 units."""
    units: Sequence[int]
    if len(text) > _UNITS_AT_ONCE:
        return _long_hash(text.encode("utf-16-be", "surrogatepass"))
    if text.isascii():
        units = text.encode("ascii")
    else:
        data = text.encode("utf-16-be", "surrogatepass")
        units = unpack(f">{len(data) // 2}H", data)
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


def _long_hash(data: bytes) -> int:
    """The same of many blocks at once: 10 ns a character, not a quarter of a microsecond.

    A block's sum is a column of 64 bits of one large number; below 2**32 after each step, so that
    31 times it doesn't reach its neighbour.
    """
    data = bytes(-len(data) % (2 * _UNITS_AT_ONCE)) + data  # zeros in front change nothing
    stride = 2 * _UNITS_AT_ONCE
    blocks = len(data) // stride
    mask = int.from_bytes(b"\xff\xff\xff\xff\0\0\0\0" * blocks, "little")
    sums, columns = 0, bytearray(8 * blocks)
    for at in range(0, stride, 2):
        columns[0::8], columns[1::8] = data[at + 1 :: stride], data[at::stride]
        sums = (31 * sums + int.from_bytes(columns, "little")) & mask
    step, value = pow(31, _UNITS_AT_ONCE, 1 << 32), 0
    for (block,) in iter_unpack("<Q", sums.to_bytes(8 * blocks, "little")):
        value = (value * step + block) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
