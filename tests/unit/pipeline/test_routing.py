"""Rows go where Pulsar's Java client would send them, and to the same place in every attempt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.protocol.java_hash import java_string_hash
from magnetar.pipeline.entry_plan import HASHES, choose_partition, murmur3_32_hash
from magnetar.pipeline.errors import WriteError

# What java.lang.String.hashCode says, without the sign
JAVA = {
    "": 0,
    "key1": 3288498,
    "hello": 99162322,
    "Aa": 2112,
    "BB": 2112,
    "polygenelubricants": 0,  # -2**31
    "Grüße": 69215351,
    "😀": 1772899,  # two units
}


@pytest.mark.parametrize(("text", "expected"), JAVA.items())
def test_java_string_hash(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


@given(st.text())
def test_java_string_hash_is_the_polynomial_over_utf16_units(text: str) -> None:
    units = text.encode("utf-16-be", "surrogatepass")
    numbers = [int.from_bytes(units[i : i + 2], "big") for i in range(0, len(units), 2)]
    whole = sum(n * 31 ** (len(numbers) - 1 - i) for i, n in enumerate(numbers))
    assert java_string_hash(text) == whole % 2**32 & 0x7FFFFFFF


# Published values of MurmurHash3_x86_32 with seed 0, without the sign; Pulsar's tests have key1
MURMUR = {
    "": 0,
    "key1": 462881061,
    "test": 0xBA6BD213 & 0x7FFFFFFF,
    "Hello, world!": 0xC0363E43 & 0x7FFFFFFF,
    "The quick brown fox jumps over the lazy dog": 0x2E4FF723,
}


@pytest.mark.parametrize(("text", "expected"), MURMUR.items())
def test_murmur3_32_hash(text: str, expected: int) -> None:
    assert murmur3_32_hash(text) == expected


@pytest.mark.parametrize("scheme", HASHES)
def test_a_key_decides_whatever_the_row(scheme: str) -> None:
    hashed = HASHES[scheme]
    chosen = {choose_partition("key1", None, row, 7, hashed) for row in range(50)}
    assert chosen == {hashed("key1") % 7}


def test_the_schemes_differ() -> None:
    keys = [f"key-{number}" for number in range(100)]
    java, murmur = (
        [choose_partition(key, None, 0, 5, HASHES[scheme]) for key in keys]
        for scheme in ("JavaStringHash", "Murmur3_32Hash")
    )
    assert java != murmur
    assert set(java) == set(murmur) == set(range(5))


@pytest.mark.parametrize("key", [None, ""])
def test_rows_without_key_take_turns(key: str | None) -> None:
    chosen = [choose_partition(key, None, row, 3, java_string_hash) for row in range(7)]
    assert chosen == [0, 1, 2, 0, 1, 2, 0]


def test_a_row_may_name_its_partition() -> None:
    assert choose_partition("key1", 2, 0, 3, java_string_hash) == 2
    for wrong in (-1, 3):
        with pytest.raises(WriteError, match=rf"no partition {wrong}, there are 3"):
            choose_partition("key1", wrong, 0, 3, java_string_hash)
