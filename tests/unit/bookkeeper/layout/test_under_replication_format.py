"""Markers, locks and votes of auto-recovery, as BookKeeper's processes wrote them and read ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.layout import JsonLayout, Layout
from magnetar.bookkeeper.layout.under_replication_format import UnderreplicationMarker
from magnetar.metadata.store import Stat, Versioned

TEXT = BookKeeperLayout().under_replication
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
MARKERS = st.builds(
    UnderreplicationMarker,
    ledger_id=st.just(16),
    bookies=st.frozensets(NAMES, max_size=4),
    created_ms=st.integers(0, 2**53),
    version=st.just(3),
    reason=NAMES | st.just("") | st.just('two\nlines # magnetar {"'),
    suspects=st.frozensets(NAMES, max_size=2),
    targets=st.dictionaries(st.tuples(st.integers(0, 2**53), st.integers(0, 9)), NAMES, max_size=2),
)


def node(value: bytes) -> Versioned:
    return Versioned("/ledgers/underreplication/x", value, Stat(3, 7, 8, False, False))


@pytest.mark.parametrize("layout", [JsonLayout(), BookKeeperLayout()])
@given(marker=MARKERS)
def test_there_and_back(layout: Layout, marker: UnderreplicationMarker) -> None:
    form = layout.under_replication
    if marker.bookies or marker.created_ms:
        assert form.decode_marker(16, node(form.encode_marker(marker))) == marker


def test_markers_that_bookkeepers_auditor_wrote() -> None:
    stored = b'replica: "127.0.0.1:33203"\nreplica: "b2"\nctime: 1795549495745\n'
    found = TEXT.decode_marker(16, node(stored))
    assert found == UnderreplicationMarker(
        16, frozenset({"127.0.0.1:33203", "b2"}), 1795549495745, 3
    )
    assert TEXT.encode_marker(found) == stored
    without_time = TEXT.decode_marker(16, node(b'replica: "b2"\n'))  # before BookKeeper 4.14
    assert (without_time.bookies, without_time.created_ms) == (frozenset({"b2"}), 7)


def test_what_only_we_have_is_a_comment() -> None:
    marker = UnderreplicationMarker(16, frozenset({"b1"}), 5, 3, "no target", frozenset({"b1"}))
    *_, comment = TEXT.encode_marker(marker).splitlines()
    assert comment.startswith(b"# magnetar {")
    assert b"no target" in comment


def test_other_nodes() -> None:
    assert TEXT.layout_value == b'type: "BASIC"\nversion: 1\n'
    assert TEXT.encode_auditor("127.0.0.1:33209") == b'bookieId: "127.0.0.1:33209"\n'
    assert TEXT.decode_auditor(b'bookieId: "127.0.0.1:33209"\n') == "127.0.0.1:33209"
    assert TEXT.decode_auditor(b"\xff{") == "\ufffd{"
    assert TEXT.encode_lock("1/2") == b'bookieId: "1/2"\n'
    assert TEXT.encode_delay(0.5) == b"1"  # BookKeeper reads whole seconds
    assert TEXT.encode_check_time(300) == b"\x08\xac\x02"
    assert TEXT.decode_check_time(b"\x08\xac\x02") == 300
    with pytest.raises(ValueError, match="parsing"):
        TEXT.decode_check_time(b"123")


@pytest.mark.parametrize("value", [b"{}", b"replica: 5", b"\xff", b"# magnetar {}\n", b"later: 1"])
def test_what_is_no_marker(value: bytes) -> None:
    with pytest.raises(LedgerMetadataError, match="/ledgers/underreplication/x"):
        TEXT.decode_marker(16, node(value))
