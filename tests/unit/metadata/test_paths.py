"""Paths and the encoding of names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.metadata.paths import check_path, decode_name, encode_name, join, name_of, parent_of


def test_parts_of_a_path() -> None:
    assert (parent_of("/a"), name_of("/a"), join("/", "a")) == ("/", "a", "/a")
    assert (parent_of("/a/b"), name_of("/a/b"), join("/a", "b")) == ("/a", "b", "/a/b")


@pytest.mark.parametrize(
    ("name", "encoded"),  # java.net.URLEncoder.encode(name, "UTF-8"), the dots excepted
    [
        ("my-topic_1.x*", "my-topic_1.x*"),
        ("a/b c+~%", "a%2Fb+c%2B%7E%25"),
        ("é", "%C3%A9"),
        ("(!)'", "%28%21%29%27"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("...", "..."),
    ],
)
def test_names_are_encoded_as_pulsar_does(name: str, encoded: str) -> None:
    assert encode_name(name) == encoded


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_name_survives_encoding_and_makes_a_path(name: str) -> None:
    encoded = encode_name(name)
    check_path(f"/{encoded}")
    assert decode_name(encoded) == name
