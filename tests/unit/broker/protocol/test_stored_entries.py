"""Topic entries as they lie in ledgers."""

import pytest

from magnetar.broker.protocol import entry_header as eh
from magnetar.broker.protocol.framing import encode_body, parse_entry_body
from magnetar.broker.protocol.pulsar_api_pb2 import BrokerEntryMetadata, MessageMetadata
from magnetar.broker.protocol.stored_entries import (
    PULSAR_ENTRIES,
    PulsarEntries,
    decode_broker_metadata,
    encode_broker_metadata,
    leading_counts,
)

METADATA = MessageMetadata(
    producer_name="p", sequence_id=7, publish_time=1_700_000_000_123, num_messages_in_batch=3
)
BODY = encode_body(METADATA, b"x" * 30)
HEAD = eh.make_header(METADATA, 30)
M0 = bytes.fromhex("0e018a64c9ed000000110a06766563746f721000189cf3e596a2346d30")
"""Written by Apache Pulsar 4.2.4, as are the next two."""
BATCH = bytes.fromhex(
    "0e015b3b8bdc000000180a07626174636865731000188cf6e596a23432026b30580a0000000812026b301802400062"
    "300000000812026b311802400162310000000812026b321802400262320000000812026b3318024003623300000008"
    "12026b341802400462340000000812026b351802400562350000000812026b361802400662360000000812026b3718"
    "02400762370000000812026b381802400862380000000812026b39180240096239"
)
BROKER_METADATA = BrokerEntryMetadata(broker_timestamp=1_700_000_005_000, index=9)


@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_a_head_is_made_again_from_what_the_client_sent(
    kind: "type[bytes] | type[memoryview]",
) -> None:
    assert PULSAR_ENTRIES.prefixes([HEAD]) == [b""]
    heads, bodies = PULSAR_ENTRIES.split([kind(BODY)])
    assert (heads, list(map(bytes, bodies))) == ([HEAD], [BODY])


def test_what_pulsar_wrote_is_what_we_store() -> None:
    heads, bodies = PULSAR_ENTRIES.split([M0, BATCH])
    single, batch = map(eh.parse_header, heads)
    assert (single.message_count, batch.message_count) == (1, 10)
    assert single.flags == 0
    assert batch.flags == eh.FLAG_BATCH | eh.FLAG_KEY
    assert single.publish_time_ms == 1_795_881_007_516
    assert PULSAR_ENTRIES.prefixes(heads) == [b"", b""]
    assert bodies == [M0, BATCH]
    metadata, payload = parse_entry_body(M0)
    assert encode_body(metadata, bytes(payload)) == M0


def test_entries_of_earlier_releases_bring_their_heads() -> None:
    old = eh.make_header(METADATA, 6)  # says one message: so it is this one that is used
    assert PULSAR_ENTRIES.split([old + BODY]) == ([old], [BODY])


def test_a_body_without_a_checksum() -> None:
    assert PULSAR_ENTRIES.split([BODY[6:]]) == ([HEAD], [BODY[6:]])


def test_broker_entry_metadata_are_behind_the_head() -> None:
    """And their time is the entry's, as in Pulsar."""
    stored = encode_broker_metadata(BROKER_METADATA)
    assert stored == b"\x0e\x02\0\0\0\x09" + BROKER_METADATA.SerializeToString()
    (head,), bodies = PULSAR_ENTRIES.split([stored + BODY])
    assert bodies == [BODY]
    assert eh.parse_header(head).publish_time_ms == 1_700_000_005_000
    assert eh.parse_header(head).message_count == 3
    assert decode_broker_metadata(head) == BROKER_METADATA
    assert decode_broker_metadata(HEAD) is None
    assert PULSAR_ENTRIES.prefixes([head, HEAD]) == [stored, b""]
    rows = eh.scan_headers([head, HEAD])
    assert rows is not None
    assert [row[1] for row in rows] == [3, 3]


def test_a_delivery_time_moves_with_a_clock_that_is_ahead_alone() -> None:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=7, publish_time=1_000, deliver_at_time=5_000
    )
    stored = encode_broker_metadata(BrokerEntryMetadata(broker_timestamp=1_400))
    entry = stored + encode_body(metadata, b"")
    for form, deliver_at_ms in ((PULSAR_ENTRIES, 5_000), (PulsarEntries(True), 5_400)):
        head = eh.parse_header(form.split([entry])[0][0])
        assert (head.publish_time_ms, head.deliver_at_ms) == (1_400, deliver_at_ms)


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"short",
        b"\xff" * 40,
        BODY[:20],
        b"\x0e\x02\0\0\xff\xff" + BODY,
        BODY[:10] + b"\xff" * 40,
    ],
)
def test_what_is_not_pulsars_is_one_message(entry: bytes) -> None:
    """Of several entries only one is lost to its consumer."""
    heads, bodies = PULSAR_ENTRIES.split([BODY, entry, BODY])
    assert bodies == [BODY, entry, BODY]
    assert [eh.parse_header(head).message_count for head in heads] == [3, 1, 3]


def test_counts_of_first_bytes() -> None:
    whole = len(BODY) - 30
    size = len(BODY)
    stored = encode_broker_metadata(BROKER_METADATA)
    assert leading_counts([BODY[:whole], BODY, HEAD + BODY[:1]], [size, size, size + 32]) == [3] * 3
    assert leading_counts([stored + BODY[:whole]], [len(stored) + size]) == [3]
    assert leading_counts([BODY[:whole], BODY[: whole - 1], BODY], [size] * 3) == [3]
