"""Options of the source: what they mean, and that mistakes are told by name."""

import re

import pytest

from magnetar.metadata.sasl.digest_md5 import SaslCredentials
from magnetar.pipeline.admin import parse_access
from magnetar.pipeline.errors import OptionsError
from magnetar.pipeline.offsets import BEGINNING, END, Offset
from magnetar.pipeline.options import (
    Bound,
    TopicChoice,
    TriggerLimits,
    choose_topics,
    parse_read_options,
    parse_trigger_limits,
)

_T = "persistent://public/default/t"


def test_what_is_not_said() -> None:
    batch = parse_read_options({"subscribe": "t"}, streaming=False)
    assert (batch.starting, batch.ending) == (Bound(BEGINNING), Bound(END))
    assert batch.fail_on_data_loss
    assert parse_read_options({"subscribe": "t"}, streaming=True).starting == Bound(END)
    assert parse_trigger_limits({}) == TriggerLimits()


def test_names_of_options_are_case_insensitive() -> None:
    options = {"SUBSCRIBE": "t", "minpartitions": "7", "FailOnDataLoss": "FALSE"}
    found = parse_read_options(options, streaming=False)
    assert (found.partitions_min, found.fail_on_data_loss) == (7, False)


def test_a_login_at_bookies_is_shown_nowhere() -> None:
    options = {"adminUrl": "http://h:1", "bookieUsername": "me", "BOOKIEPASSWORD": "s3cret"}
    found = parse_access(options)
    assert found.bookie_credentials == SaslCredentials("me", "s3cret")
    assert "s3cret" not in repr(found)
    for half in ("bookieUsername", "bookiePassword"):
        with pytest.raises(OptionsError, match="go together"):
            parse_access({"adminUrl": "http://h:1", half: "x"})


def test_the_password_of_ledgers_is_shown_nowhere() -> None:
    found = parse_access({"adminUrl": "http://h:1", "managedLedgerPassword": "s3cret"})
    assert found.ledger_password == "s3cret"
    assert "s3cret" not in repr(found)


def test_which_topics() -> None:
    def topics(**options: str) -> TopicChoice:
        return parse_read_options(options, streaming=False).topics

    assert topics(subscribe="a, t/n/b,a").names == (
        "persistent://public/default/a",
        "persistent://t/n/b",
    )
    assert topics(assign='{"t": [2, 0, 2]}').assigned == {_T: (0, 2)}


@pytest.mark.parametrize(
    ("pattern", "given", "namespaces"),
    [
        ("persistent://acme/sales/o.*", "", ["acme/sales"]),
        ("acme/sales/o.*", "", ["acme/sales"]),
        (".*o", "", ["public/default"]),
        (".*o", "acme/x", ["acme/x"]),
        (".*o", " acme/x, acme/y,", ["acme/x", "acme/y"]),
        ("acme/sales/a|persistent://acme/buying/b|acme/sales/c", "", ["acme/sales", "acme/buying"]),
        ("acme/sales/(a|b/c)|.*d", "acme/x", ["acme/sales", "acme/x"]),
        (r"acme/sales/[|/(]\||acme/x/a", "", ["acme/sales", "acme/x"]),
        ("(acme/sales|acme/x)/.*", "acme/sales,acme/x", ["acme/sales", "acme/x"]),
    ],
)
def test_where_a_pattern_is_tried(pattern: str, given: str, namespaces: list[str]) -> None:
    options = {"subscribePattern": pattern, **({"namespace": given} if given else {})}
    assert parse_read_options(options, streaming=False).topics == TopicChoice(
        pattern=pattern, namespaces=tuple(namespaces)
    )


def test_a_pattern_matches_the_whole_name_with_or_without_its_domain() -> None:
    names = ["persistent://a/b/one", "persistent://a/b/two", "persistent://a/b/one-more"]
    assert choose_topics("a/b/one", names) == names[:1]
    assert choose_topics("persistent://a/b/one.*", names) == [names[0], names[2]]
    assert choose_topics("one", names) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "exactly one of subscribe, subscribePattern, assign"),
        ({"subscribe": "a", "assign": "{}"}, "subscribe and assign"),
        ({"subscribe": "a/b"}, "option subscribe"),
        ({"subscribe": "non-persistent://a/b/c"}, "only persistent topics are stored"),
        ({"subscribePattern": "a/b/("}, "option subscribePattern"),
        ({"subscribePattern": "a/b/c|(a/d|a/e)/c"}, "'(a/d|a/e)/c' doesn't begin with a name"),
        ({"subscribePattern": "a/.*/c"}, "the option namespace says where"),
        ({"assign": "[]"}, "a JSON object by topic"),
        ({"assign": '{"t": [-1]}'}, "a list of partitions"),
        ({"subscribe": "t", "startingOffsets": "soon"}, "option startingOffsets: not a message id"),
        ({"subscribe": "t", "startingOffsets": "{"}, "option startingOffsets: not JSON"),
        ({"subscribe": "t", "startingOffsets": '{"t": {"x": "1:2"}}'}, "no partition 'x'"),
        ({"subscribe": "t", "endingTimestamp": "-3"}, "option endingTimestamp: milliseconds"),
        ({"subscribe": "t", "startingOffsetsByTimestamp": '{"t": true}'}, "milliseconds"),
        ({"subscribe": "t", "minPartitions": "0"}, "option minPartitions: a whole number above 0"),
        ({"subscribe": "t", "failOnDataLoss": "maybe"}, "option failOnDataLoss: true or false"),
        ({"subscribe": "t", "encrypted": "guess"}, "option encrypted: fail, skip or raw"),
        ({"subscribe": "t", "maxClockSkew": "5 days"}, "option maxClockSkew"),
        ({"subscribe": "t", "cursor": "c"}, "option cursor: only streams"),
    ],
)
def test_mistakes_are_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(OptionsError, match=re.escape(told)):
        parse_read_options(options, streaming=False)


def test_mistakes_in_streams_are_told() -> None:
    with pytest.raises(OptionsError, match="a stream has no end"):
        parse_read_options({"subscribe": "t", "endingOffsets": "1:2"}, streaming=True)
    with pytest.raises(OptionsError, match="minOffsetsPerTrigger is above"):
        parse_trigger_limits({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"})
    with pytest.raises(OptionsError, match="option maxTriggerDelay"):
        parse_trigger_limits({"maxTriggerDelay": "soon"})


def test_bounds_by_topic_and_by_partition() -> None:
    text = '{"t": {"0": "5:1", "1": "earliest", "2": -1}, "u": [7, 8, 9]}'
    bound = parse_read_options(
        {"subscribe": "t,u", "startingOffsets": text}, streaming=False
    ).starting
    assert bound.of(f"{_T}-partition-0") == Offset(5, 1)
    assert bound.of(f"{_T}-partition-1") == BEGINNING
    assert bound.of(f"{_T}-partition-2") == END
    assert bound.of("persistent://public/default/u") == Offset(7, 8, 9)
    assert bound.of("persistent://public/default/u-partition-4") == Offset(7, 8, 9)
    with pytest.raises(OptionsError, match="t-partition-3: the offsets given by topic"):
        bound.of(f"{_T}-partition-3")


def test_times_go_before_offsets() -> None:
    options = {
        "subscribe": "t",
        "startingOffsets": "5:1",
        "startingOffsetsByTimestamp": '{"t": {"0": 1700000000000}}',
    }
    bound = parse_read_options(options, streaming=False).starting
    assert bound.of(f"{_T}-partition-0") == 1_700_000_000_000
    options["startingTimestamp"] = "5"
    assert parse_read_options(options, streaming=False).starting.of("anything") == 5


def test_limits() -> None:
    options = {
        "maxOffsetsPerTrigger": "10",
        "maxBytesPerTrigger": "20",
        "minOffsetsPerTrigger": "5",
        "maxTriggerDelay": "30s",
    }
    assert parse_trigger_limits(options) == TriggerLimits(10, 20, 5, 30_000)
