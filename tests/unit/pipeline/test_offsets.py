"""Points of topics as users, checkpoints and clients write them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.pipeline.errors import OptionsError
from magnetar.pipeline.offsets import (
    BEGINNING,
    END,
    Offset,
    compacted_from_json,
    offset_from_json,
    offset_to_json,
    parse_offset,
    stream_offsets_from_json,
    stream_offsets_to_json,
)

_IDS = st.integers(0, 2**63 - 1)
_POINTS = st.builds(Offset, _IDS, _IDS, st.integers(0, 2**31 - 1))


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("12:34", Offset(12, 34)),
        (" 12 : 34 ", Offset(12, 34)),
        ("12:34:5", Offset(12, 34, 5)),
        ("(12,34,-1,-1)", Offset(12, 34)),  # str() of a message id in Python: no batch
        ("(12,34,3,7)", Offset(12, 34, 7)),
        ("12:34:3:7", Offset(12, 34, 7)),
        ("earliest", BEGINNING),
        ("latest", END),
    ],
)
def test_message_ids_as_clients_print_them(text: str, point: Offset) -> None:
    assert parse_offset(text) == point


@pytest.mark.parametrize("text", ["", "12", "a:b", "1:2:3:4:5", "-1:2", f"{2**63}:0", "Earliest!"])
def test_what_is_no_message_id(text: str) -> None:
    with pytest.raises(OptionsError, match="not a message id"):
        parse_offset(text)


@given(_POINTS)
def test_text_and_json_come_back(point: Offset) -> None:
    assert parse_offset(str(point)) == point
    assert offset_from_json(json.loads(json.dumps(offset_to_json(point)))) == point


@pytest.mark.parametrize("value", [[1], [1, 2, 3, 4], ["1", 2], [True, 1], "1:2", None, {}])
def test_what_is_no_point_in_json(value: object) -> None:
    with pytest.raises(OptionsError, match="not a point"):
        offset_from_json(value)


@given(st.dictionaries(st.text(min_size=1), _POINTS))
def test_checkpoints_come_back_and_are_equal_when_their_offsets_are(
    offsets: dict[str, Offset],
) -> None:
    text = json.dumps(stream_offsets_to_json(offsets))
    assert stream_offsets_from_json(json.loads(text)) == offsets
    shuffled = dict(reversed(list(offsets.items())))
    assert json.dumps(stream_offsets_to_json(shuffled)) == text  # Spark compares the text


@given(st.dictionaries(st.text(min_size=1), st.tuples(_POINTS, st.none() | st.integers(0, 9))))
def test_checkpoints_keep_the_compacted_ledgers(
    points: dict[str, tuple[Offset, int | None]],
) -> None:
    offsets = {name: point for name, (point, _) in points.items()}
    compacted = {name: ledger for name, (_, ledger) in points.items() if ledger is not None}
    text = json.dumps(stream_offsets_to_json(offsets, compacted))
    assert stream_offsets_from_json(text) == offsets
    assert compacted_from_json(text) == compacted


def test_a_point_stands_before_its_message() -> None:
    assert Offset(1, 5) < Offset(1, 5, 1) < Offset(1, 5).after_entry < Offset(2, 0)
    assert BEGINNING < Offset(0, 0) < END
