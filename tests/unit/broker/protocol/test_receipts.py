"""Compiled code writes the receipts that protobuf writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import FrameReader
from magnetar.broker.protocol.plain_sends import encode_receipts, receipts_by_protobuf

ids = st.integers(0, 2**64 - 1) | st.sampled_from([0, 127, 128, 2**14 - 1, 2**14, 2**63, 2**64 - 1])


@given(ids, ids, st.integers(0, 2**40), st.integers(0, 1), st.lists(st.tuples(ids, ids)))
def test_compiled_code_and_protobuf_write_the_same(
    producer_id: int, ledger_id: int, entry_id: int, step: int, numbers: list[tuple[int, int]]
) -> None:
    sequence_ids, highest_ids = [x for x, _ in numbers], [y for _, y in numbers]
    for start in {0, len(numbers) // 3}:
        asked = producer_id, ledger_id, entry_id, step, sequence_ids, highest_ids, start
        wanted = receipts_by_protobuf(*asked, len(numbers))
        assert encode_receipts(*asked, len(numbers)) == wanted


def test_each_receipt_names_its_message() -> None:
    data = encode_receipts(5, 2**64 - 1, 2**64 - 1, 0, [7, 2**64 - 1], [0, 2**64 - 1], 0, 2)
    found = [(command.send_receipt, command.type) for command, _ in FrameReader().feed(data)]
    assert [kind for _, kind in found] == [pb.BaseCommand.SEND_RECEIPT] * 2
    assert [each.producer_id for each, _ in found] == [5, 5]
    assert [each.sequence_id for each, _ in found] == [7, 2**64 - 1]
    assert [each.highest_sequence_id for each, _ in found] == [0, 2**64 - 1]
    assert {(x.message_id.ledgerId, x.message_id.entryId) for x, _ in found} == {(2**64 - 1,) * 2}


@pytest.mark.skipif(encode_receipts is receipts_by_protobuf, reason="no compiler")
@pytest.mark.parametrize(("start", "end"), [(-1, 1), (2, 1), (0, 3)])
def test_bounds_are_those_of_the_lists(start: int, end: int) -> None:
    with pytest.raises(IndexError):
        encode_receipts(1, 2, 3, 1, [1, 2], [1, 2], start, end)
