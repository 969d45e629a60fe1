"""What a cluster of Apache Pulsar 4.2.4 has stored is read, and what we write back is the same."""

import pytest
from pyroaring import BitMap

from magnetar.broker.migration import pulsar_metadata_pb2 as pb
from magnetar.broker.migration.errors import PulsarFormatError
from magnetar.broker.migration.pulsar_forms import (
    cursor_node,
    image_of_entry,
    image_of_node,
    log_node,
    mask_of,
    pack,
    parse,
    properties_of,
    set_position,
    unpack,
    words_of,
)
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.metadata.store import VALUE_BYTES_MAX
from tests.unit.broker.migration.recorded import recorded

LOGS = "/managed-ledgers/acme/orders/persistent"
WEIRD = "we+ird%252F%2Bt%C3%B8pic"


def entry_counts(log: str) -> dict[int, int]:
    node = log_node(recorded().nodes[f"{LOGS}/{log}"], log)
    return {x.ledgerId: recorded().ends[x.ledgerId][0] + 1 for x in node.ledgers}


def image(log: str, cursor: str) -> CursorImage:
    """Of the node, or of the last entry of the cursor ledger that it names."""
    path = f"{LOGS}/{log}/{cursor}"
    node = cursor_node(recorded().nodes[path], path)
    if node.cursorsLedgerId < 0:
        return image_of_node(node, entry_counts(log))
    entry = parse(pb.CursorEntry, recorded().entries[node.cursorsLedgerId][-1], path)
    return image_of_entry(entry, entry_counts(log))


def test_the_newest_ledger_is_listed_without_its_end() -> None:
    node = log_node(recorded().nodes[f"{LOGS}/holes"], "holes")
    assert [(x.ledgerId, x.entries, x.size) for x in node.ledgers] == [(6, 100, 4690), (50, 0, 0)]
    assert node.ledgers[0].timestamp > 0
    assert node.ledgers[1].timestamp == 0


def test_properties_and_the_end_of_a_sealed_topic() -> None:
    node = log_node(recorded().nodes[f"{LOGS}/props"], "props")
    assert properties_of(node.properties) == {"color": "red", "n": "1"}
    sealed = log_node(recorded().nodes[f"{LOGS}/sealed"], "sealed")
    assert (sealed.terminatedPosition.ledgerId, sealed.terminatedPosition.entryId) == (39, 6)


def test_names_are_encoded_as_ours() -> None:
    assert f"{LOGS}/{WEIRD}/sub+with%2Fslash+%C3%A9" in recorded().nodes


@pytest.mark.parametrize(
    ("log", "codec"), [("killed", b"\x08\x01"), ("__change_events", b"\x08\x01")]
)
def test_a_compressed_node_is_read(log: str, codec: bytes) -> None:
    value = recorded().nodes[f"{LOGS}/{log}"]
    assert value[:2] == b"Gx"
    assert value[6:8] == codec  # LZ4
    assert log_node(value, log).ledgers


def test_a_cursors_node_of_zstd_names_its_ledger() -> None:
    value = recorded().nodes[f"{LOGS}/killed/holes"]
    assert value[6:8] == b"\x08\x03"
    assert cursor_node(value, "").cursorsLedgerId == 58


def test_holes_of_a_node_begin_after_their_lower_end() -> None:
    # Of 100 messages those from 12 on that 3 divides are not acknowledged.
    found = image("holes", "holes")
    assert found.mark_delete == (6, 11)
    assert found.acked == {6: BitMap(n for n in range(12, 100) if n % 3)}
    assert found.batch_sets == {}


def test_bits_of_a_batch_are_those_that_are_not_acknowledged() -> None:
    found = image("batches", "holes")
    assert found.mark_delete == (11, 0)
    assert set(found.batch_sets[11]) == set(range(1, 10))
    for entry, mask in found.batch_sets[11].items():
        left = [n for n in range(10) if mask >> n & 1]
        assert left == [n for n in range(10) if (10 * entry + n) % 3 == 0 and 10 * entry + n > 9]


def test_words_of_a_cursor_ledger() -> None:
    # Of 90 messages those are left whose number less one is divided by 4. The broker was killed.
    found = image("killed", "holes")
    assert found.mark_delete == (51, 0)
    assert found.acked == {51: BitMap(n for n in range(2, 90) if n % 4 != 1)}
    assert image("killed", "cut").mark_delete == (51, 44)


def test_ranges_over_the_end_of_a_ledger() -> None:
    node = pb.ManagedCursorNode(cursorsLedgerId=-1, markDeleteLedgerId=1, markDeleteEntryId=0)
    node.individualDeletedMessages.add(
        lower=pb.NestedPosition(ledgerId=1, entryId=7),
        upper=pb.NestedPosition(ledgerId=5, entryId=2),
    )
    found = image_of_node(node, {1: 10, 3: 2, 5: 100})
    assert found.acked == {1: BitMap([8, 9]), 3: BitMap([0, 1]), 5: BitMap([0, 1, 2])}


def test_words_are_those_of_java() -> None:
    assert mask_of([0x36D, 0]) == 0x36D
    assert words_of(0x36D) == [0x36D]
    assert mask_of([-1, 1]) == (1 << 65) - 1
    assert words_of((1 << 65) - 1) == [-1, 1]
    assert words_of(0) == []


def test_a_position_that_is_written_back_is_the_one_that_was_read() -> None:
    for path, value in recorded().nodes.items():
        if not path.startswith(LOGS) or path.count("/") != LOGS.count("/") + 2:
            continue
        node = cursor_node(value, path)
        if node.cursorsLedgerId >= 0:
            continue
        before = image_of_node(node, {})
        copy = pb.ManagedCursorNode.FromString(unpack(value, path))
        set_position(copy, before)
        assert copy == node, path


def test_unknown_fields_stay() -> None:
    value = recorded().nodes[f"{LOGS}/holes/holes"] + b"\x92\x3f\x03new"
    node = cursor_node(value, "")
    set_position(node, CursorImage((6, 99)))
    assert b"\x92\x3f\x03new" in node.SerializeToString()


def test_a_list_too_long_for_a_node_is_compressed() -> None:
    node = pb.ManagedLedgerNode()
    for n in range(60_000):
        node.ledgers.add(ledgerId=n, entries=50_000, size=51_200_000, timestamp=1_700_000_000_000)
    assert node.ByteSize() > VALUE_BYTES_MAX
    value = pack(node)
    assert len(value) < VALUE_BYTES_MAX
    assert log_node(value, "") == node


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"\x0a\x05\x08\x01", "not a ManagedLedgerNode"),
        (b"Gx\x00\x00\x00\x04\x08\x01\x10\x06\x60\x0a\x04", "can't be decompressed|announced"),
        (b"\x0a\x02\x08\x07\x0a\x02\x08\x03", r"don't ascend: \[7, 3\]"),
    ],
)
def test_what_is_not_a_list_is_refused_by_name(value: bytes, why: str) -> None:
    with pytest.raises(PulsarFormatError, match=f"/managed-ledgers/x: .*{why}"):
        log_node(value, "/managed-ledgers/x")
