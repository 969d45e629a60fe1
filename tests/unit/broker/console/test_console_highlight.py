"""What a search found is marked in texts of pages, and nothing else becomes markup."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.console.highlight import (
    field_pieces,
    json_span,
    pieces_of,
    value_pieces,
)
from magnetar.broker.http.messaging.message_filter import parse_filter

PAYMENT = '{"id": "declined", "status" : "declined", "card": {"n": [1, 2290]}, "ok":true}'


def marked(text: str, matches: str) -> list[str]:
    pieces = value_pieces(text, parse_filter(matches))
    assert "".join(piece for piece, _ in pieces) == text
    return [piece for piece, is_found in pieces if is_found]


@pytest.mark.parametrize(
    ("matches", "found"),
    [
        ('value.status = "declined"', ["declined"]),
        ("value.status ~ decl and value.card.n.1 > 5", ["declined", "2290"]),
        ("value.ok = true", ["true"]),
        ("value.card != 5 and value.missing !~ x", []),
        ("key = declined and size > 1", []),
        ("value ~ decl", ["decl", "decl"]),
        ("value ~ 'x*'", []),
        ("value ~ d", ["d"] * 6),
        ("value ~ 'card.*ok' and value.card.n.0 = 1", ['card": {"n": [1, 2290]}, "ok']),
    ],
)
def test_only_what_a_comparison_found_is_marked(matches: str, found: list[str]) -> None:
    assert marked(PAYMENT, matches) == found


@pytest.mark.parametrize(
    "text", ["", "{", '{"status"', '{"status":', "[1", "no JSON", "[" * 99_999]
)
def test_what_is_cut_or_no_json_has_no_members(text: str) -> None:
    assert marked(text, "value.status = x and value.1 = x") == []


def test_a_member_that_is_cut_is_marked_up_to_there() -> None:
    assert marked('{"status": "decl', "value.status = declined") == ["decl"]


def test_columns_and_keys_are_marked_by_their_own_comparisons() -> None:
    matches = parse_filter('key ~ "c-" and value.status = "<b>" and value.total > 5')
    assert field_pieces("c-1", ("key",), matches) == [("c-", True), ("1", False)]
    assert field_pieces("<b>", ("value", "status"), matches) == [("<b>", True)]
    assert field_pieces("6", ("value", "other"), matches) == [("6", False)]


def test_of_alternatives_those_are_marked_that_hold() -> None:
    matches = parse_filter('key = c-1 or value.status = declined or value ~ "2290"')
    assert field_pieces("c-1", ("key",), matches) == [("c-1", True)]
    assert field_pieces("c-2", ("key",), matches) == [("c-2", False)]
    assert field_pieces("paid", ("value", "status"), matches) == [("paid", False)]
    assert marked(PAYMENT, "value.status = paid or value ~ 2290") == ["2290"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(_JSON, st.sampled_from([None, 2]), st.integers(0, 400))
def test_each_member_is_found_where_it_stands(value: Any, indent: int | None, cut: int) -> None:
    text = json.dumps(value, indent=indent)
    for path, leaf in _members(value, ()):
        span = json_span(text, path)
        assert span is not None
        found = text[slice(*span)]
        assert (f'"{found}"' if isinstance(leaf, str) else found) == json.dumps(leaf)
        part = json_span(text[:cut], path)
        assert part is None or part[0] == part[1] or (span[0] == part[0] and part[1] <= cut)


def _members(value: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    """Those that are no objects and lists."""
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [each for name, inner in items for each in _members(inner, (*path, str(name)))]
    return [(path, value)]


@given(st.text(max_size=20), st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25))))
def test_pieces_are_the_text(text: str, spans: list[tuple[int, int]]) -> None:
    spans = [(start, min(end, len(text))) for start, end in spans]
    pieces = pieces_of(text, spans)
    assert "".join(piece for piece, _ in pieces) == text
    flags = [is_found for piece, is_found in pieces for _ in piece]
    assert flags == [any(start <= at < end for start, end in spans) for at in range(len(text))]
    assert all(piece for piece, _ in pieces)
