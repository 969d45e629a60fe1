import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.protocol.topic_name import InvalidTopicNameError, TopicName


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("t", "persistent://public/default/t"),
        ("a/b/t", "persistent://a/b/t"),
        ("non-persistent://a/b/t", "non-persistent://a/b/t"),
        ("persistent://a-=:.1/b/ü %2F", "persistent://a-=:.1/b/ü %2F"),
    ],
)
def test_canonical_form(text: str, full: str) -> None:
    assert str(TopicName.parse(text)) == full


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "a/b", "a/b/c/d", "http://a/b/c", "persistent://a/b", "persistent://a/b/"),
        *("persistent:///b/c", "persistent://a//c", "persistent://a/b/c/d", "topic://a/b/c"),
        *("persistent://a b/c/d", "persistent://a/ü/d"),
    ],
)
def test_invalid(text: str) -> None:
    with pytest.raises(InvalidTopicNameError):
        TopicName.parse(text)


@pytest.mark.parametrize(
    ("local", "index"),
    [
        ("t-partition-0", 0),
        ("t-partition-12", 12),
        ("t-partition-01", -1),
        ("t-partition--1", -1),
        ("t-partition-+1", -1),
        ("t-partition-x", -1),
        ("t-partition-", -1),
        ("t-partition-2147483647", 2**31 - 1),
        ("t-partition-2147483648", -1),
        (f"t-partition-{'9' * 5000}", -1),
        ("t-partition-²", -1),
        ("a-partition-1-partition-2", 2),
        ("t", -1),
    ],
)
def test_partition_index(local: str, index: int) -> None:
    name = TopicName.parse(local)
    assert name.partition_index == index
    if index >= 0:
        assert name.base.partition(index) == name


def test_base_of_a_plain_topic_is_itself() -> None:
    name = TopicName.parse("t")
    assert name.base is name


@given(st.text(min_size=1).filter(lambda text: "/" not in text and text.strip() != ""))
def test_managed_ledger_name_is_reversible_and_has_four_parts(local: str) -> None:
    name = TopicName.parse(f"persistent://a/b/{local}")
    assert name.ml_name.count("/") == 3
    assert TopicName.from_ml_name(name.ml_name) == name


@pytest.mark.parametrize(
    ("text", "system"),
    [
        ("persistent://a/b/__change_events", True),
        ("persistent://a/b/__change_events-partition-0", True),
        ("persistent://pulsar/system/transaction_coordinator_assign", True),
        ("persistent://a/b/t-sub__transaction_pending_ack", True),
        ("persistent://a/b/__mine", False),
    ],
)
def test_system_topics(text: str, system: bool) -> None:
    assert TopicName.parse(text).is_system is system
