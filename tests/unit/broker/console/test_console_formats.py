"""What pages show: numbers, sizes, spans, foreign text, charts, rows."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.console import formats
from magnetar.broker.console.charts import chart
from magnetar.broker.console.finding_view import finding_rows
from magnetar.broker.console.formats import ceiling, late, number, short, size, span, visible
from magnetar.broker.console.index_view import behind_rows, caught_up, topic_rows, trend
from magnetar.broker.console.kept_order import KeptOrder
from magnetar.broker.console.source import IndexPage
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.topic_view import (
    ROWS_MAX,
    ClientQuery,
    stored_topics,
    topic_figures,
)
from magnetar.broker.dispatch.worst_reason import worst_of_subscriptions
from magnetar.metadata.loop_turns import run_at_once

TEMPLATES = Path(formats.__file__).parent / "templates"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0, "0"), (0.04, "0"), (0.25, "0.2"), (12.34, "12.3"), (100.4, "100")],
)
def test_number(value: float | None, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(999, "999"), (1000, "1.00 k"), (48210, "48.2 k"), (4_180_000, "4.18 M"), (1.84e12, "1.84 T")],
)
def test_short(value: float, shown: str) -> None:
    assert short(value) == shown


def test_an_old_message_has_a_colour() -> None:
    now_ms = time.time() * 1000
    ages_s = (0, 590, 610, 3590, 3610)
    assert [late(now_ms - age_s * 1000) for age_s in ages_s] == ["", "", " wa", " wa", " ba"]
    assert late(None) == ""
    rows = [{"topic": "persistent://a/b/t", "msgBacklogTrend": each} for each in (None, 0, 9, -9)]
    shrinking = [each.is_shrinking for each in topic_rows(IndexPage(rows, 4, 4))]
    assert shrinking == [False, False, False, True]


def test_size() -> None:
    assert [size(x) for x in (None, -1, 0, 999, 15_200)] == ["–", "–", "0 B", "999 B", "15.2 kB"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "–"), (-1, "–"), (0.34, "0.3 s"), (54, "54 s"), (60, "1 min"), (83, "1 min 23 s")],
)
def test_span(seconds: float | None, shown: str) -> None:
    assert span(seconds) == shown


@given(st.floats(0, 1e9))
def test_a_span_has_at_most_two_units(seconds: float) -> None:
    assert re.fullmatch(r"[\d.]+ (s|min|h|d)( \d+ (s|min|h))?", span(seconds))


def test_foreign_text_that_has_no_look_is_shown_as_its_code() -> None:
    assert visible("a\u202eb\x00\u200bc") == "a⟨U+202E⟩b⟨U+0000⟩⟨U+200B⟩c"
    assert visible("Größe, 日本 🙂") == "Größe, 日本 🙂"


@given(st.lists(st.floats(0, 1e12), min_size=1))
def test_the_end_of_an_axis(values: list[float]) -> None:
    top = ceiling(values)
    assert top >= max(values)
    assert top <= max(1.0, 2.5 * max(values))
    assert float(f"{top / 2:.1f}") == top / 2


def test_a_chart_needs_two_points() -> None:
    assert chart("In", [1.0], [("In", [5.0])]) is None
    for length_ms, labels, has_seconds in ((1_000.0, 3, True), (300_000.0, 5, False)):
        short = chart("In", [0.0, length_ms], [("In", [0.0, 100.0])])
        assert short is not None
        assert (len(short.times_ms), short.has_seconds) == (labels, has_seconds)
    found = chart("In", [0.0, 1000.0], [("In", [0.0, 100.0])])
    assert found is not None
    assert (found.top, found.lines[0].path) == (100.0, "M0.0 100.0L100.0 0.0")


def test_trend_and_time_to_catch_up() -> None:
    assert (trend(None), trend(0.01), trend(2.0), trend(-2.0)) == (
        *("–", "steady", "+120 /min", "−120 /min"),
    )
    assert caught_up(0, -1.0, 0) == caught_up(None, 1.0, None) == "–"
    assert caught_up(100, 1.0, 3.0) == "never"
    assert caught_up(1200, -10.0, None) == "2 min"
    assert caught_up(10**9, -0.1, 1e6) == "never"
    assert caught_up(100, 1.0, 20.0) == "now"


@pytest.mark.parametrize(
    ("figures", "mark"),
    [
        *(((0, 0.0, 0.0, 2), "o"), ((9, 0.0, 0.0, 0), "n"), ((9, 5.0, 0.0, 2), "w")),
        *(((9, 0.0, 0.0, 2), "w"), ((900, 5.0, 20.0, 2), "w"), ((90, 5.0, 20.0, 2), "o")),
        *(((900, -5.0, 20.0, 2), "o"), ((None, None, None, None), "o")),
    ],
)
def test_a_subscription_that_keeps_up_has_no_warning(figures: Any, mark: str) -> None:
    names = ("msgBacklog", "msgBacklogTrend", "msgRateOut", "consumerCount")
    row = {
        "topic": "persistent://a/b/c",
        "subscription": "s",
        **dict(zip(names, figures, strict=True)),
    }
    (found,) = behind_rows(IndexPage([row], 1, 1), {})
    assert found.kind == mark


@pytest.mark.parametrize(
    ("check", "subject", "href", "link"),
    [
        ("backlog-quota", "persistent://a/b/c?", "topic/persistent/a/b/c%3F", "a/b/c?"),
        (
            "subscription-stuck",
            "persistent://a/b/c, subscription x/y",
            "topic/persistent/a/b/c/subscriptions?open=x%2Fy",
            "x/y",
        ),
        ("bundle-hot", "a/b/0x00000000_0xffffffff", "ns/a/b", "a/b/0x00000000_0xffffffff"),
        ("broker-overloaded", "b1:8080", "brokers/b1%3A8080", "b1:8080"),
        ("disk-full", "b5", "bookies", "b5"),
        ("settings-differ", "maxTenants", "", ""),
    ],
)
def test_a_finding_leads_to_what_it_is_about(
    check: str, subject: str, href: str, link: str
) -> None:
    found = {"check": check, "severity": "critical", "subject": subject, "sinceMs": 7}
    (row,) = finding_rows([{**found, "sentence": f"{subject}: it is so", "command": "c"}])
    assert (row.kind, row.href, row.link, row.since_ms) == ("e", href, link, 7)
    assert row.text.endswith(": it is so" if href else f"{subject}: it is so")
    (other,) = finding_rows([{**found, "sentence": "3 more like these", "command": ""}])
    assert (other.href, other.text) == ("", "3 more like these")


def test_names_of_topics() -> None:
    path = TopicPath.parse("persistent://a/b/c/d e")
    assert (path.tenant, path.namespace, path.local) == ("a", "b", "c/d e")
    assert path.rest == "persistent/a/b/c%2Fd%20e"
    assert str(path.partition(3)) == "persistent://a/b/c/d e-partition-3"


def test_a_subscription_that_stands_still_is_opened_and_first_comes_the_largest_backlog() -> None:
    stats = {
        "subscriptions": {
            "small": {"msgBacklog": 1, "consumers": []},
            "large": {"msgBacklog": 9, "consumers": [{"consumerName": "c"}]},
            "done": {"msgBacklog": 0},
        }
    }
    explained = {
        "small": {"reason": "noConsumer", "message": "m", "next": "n"},
        "large": {"reason": "noPermits", "message": "m", "next": "n"},
        "done": {"reason": "noConsumer", "message": "m", "next": "n"},
    }
    rows = run_at_once(topic_figures(stats, explained, ClientQuery())).subscriptions
    assert [(row.name, row.kind, row.is_open) for row in rows] == [
        ("large", "e", True),
        ("small", "w", False),
        ("done", "n", False),
    ]
    opened = run_at_once(topic_figures(stats, explained, ClientQuery("small")))
    assert [row.is_open for row in opened.subscriptions] == [False, True, False]


@pytest.mark.parametrize(("kind", "first"), [("Failover", ["z"]), ("Exclusive", [])])
def test_the_active_consumer_comes_first(kind: str, first: list[str]) -> None:
    consumers = [{"consumerName": name} for name in "abz"]
    subscription = {"type": kind, "activeConsumerName": "z", "consumers": consumers}
    stats = {"subscriptions": {"s": subscription}}
    figures = run_at_once(topic_figures(stats, {}, ClientQuery("s")))
    rows = figures.subscriptions[0].consumers.rows
    assert [each.name for each in rows if each.is_active] == first
    assert [each.name for each in rows] == (["z", "a", "b"] if first else ["a", "b", "z"])


def test_of_many_clients_a_part_is_shown() -> None:
    def consumer(number: int) -> dict[str, object]:
        blocked = {"blockedConsumerOnUnackedMsgs": number == 1100}
        return {"consumerName": f"c-{number:04}", "address": f"10.0.0.{number}", **blocked}

    consumers = [consumer(number) for number in range(1200, 0, -1)]
    producers = [{"producerName": f"p-{number:04}"} for number in range(ROWS_MAX)]
    subscriptions = {"s": {"consumers": consumers}, "other": {"consumers": consumers[:3]}}
    stats = {"subscriptions": subscriptions, "publishers": producers}

    def shown(query: ClientQuery) -> tuple[list[str], int, int]:
        figures = run_at_once(topic_figures(stats, {}, query))
        assert figures.consumers == 1203
        other, found = (each.consumers for each in figures.subscriptions)
        assert (len(other.rows), other.total) == (0, 3)
        return [each.name for each in found.rows], found.matching, found.next

    names, matching, following = shown(ClientQuery("s"))
    assert (len(names), matching, following) == (ROWS_MAX, 1200, ROWS_MAX)
    # The one that is blocked first, then by name.
    assert names[:3] == ["c-1100", "c-0001", "c-0002"]
    names, _, following = shown(ClientQuery("s", first=11 * ROWS_MAX))
    assert (names[0], names[-1], following) == ("c-1101", "c-1200", 0)
    assert shown(ClientQuery("s", "C-001")) == ([f"c-{n:04}" for n in range(10, 20)], 10, 0)
    assert shown(ClientQuery("s", "10.0.0.77"))[0] == [
        "c-0077",
        *(f"c-{n:04}" for n in range(770, 780)),
    ]
    found = run_at_once(topic_figures(stats, {}, ClientQuery())).producers
    assert (len(found.rows), found.next) == (ROWS_MAX, 0)


def test_of_many_subscriptions_few_open_by_themselves() -> None:
    names = [f"s-{number:04}" for number in range(ROWS_MAX + 2)]
    stats = {"subscriptions": {name: {"msgBacklog": 5} for name in names}}
    explained = {key: {"reason": "noPermits", "message": "m", "next": "n"} for key in names}
    figures = run_at_once(topic_figures(stats, explained, ClientQuery()))
    assert [each.name for each in figures.subscriptions] == names[:ROWS_MAX]
    assert [each.name for each in figures.subscriptions if each.is_open] == names[:10]
    assert figures.subscription_count == ROWS_MAX + 2
    figures = run_at_once(topic_figures(stats, explained, ClientQuery(names[-1])))
    assert [each.name for each in figures.subscriptions if each.is_open] == names[-1:]


def test_rows_of_a_topic_stay_where_they_were() -> None:
    stats = {"subscriptions": {name: {"msgBacklog": number} for number, name in enumerate("abc")}}
    figures = run_at_once(topic_figures(stats, {}, ClientQuery()))
    assert ([each.name for each in figures.subscriptions], figures.is_sorted) == (
        ["c", "b", "a"],
        True,
    )
    kept = KeptOrder.parse(figures.order)
    stats["subscriptions"] = {"a": {"msgBacklog": 9}, "c": {"msgBacklog": 1}}
    stats["subscriptions"]["new"] = {"msgBacklog": 20}
    figures = run_at_once(topic_figures(stats, {}, ClientQuery(shown=kept)))
    assert [(each.name, each.backlog) for each in figures.subscriptions] == [("c", 1), ("a", 9)]
    assert (figures.behind, figures.is_sorted) == (("new", 20), False)
    assert kept is not None
    assert figures.order == kept.text


def test_of_partitions_the_one_that_is_worst_off_is_told() -> None:
    def explained(reason: str) -> dict[str, str]:
        return {"reason": reason, "message": reason, "next": ""}

    found = run_at_once(
        worst_of_subscriptions(
            {
                "persistent://a/b/t-partition-0": {
                    "s": explained("caughtUp"),
                    "q": explained("pending"),
                },
                "persistent://a/b/t-partition-1": {"s": explained("noPermits")},
                "persistent://a/b/t-partition-2": {"s": explained("noConsumer")},
            }
        )
    )
    assert {name: each["message"] for name, each in found.items()} == {
        "s": "Partition 1: noPermits",
        "q": "Partition 0: pending",
    }


def test_which_subscription_holds_which_ledger() -> None:
    internal = {
        "ledgers": [
            {"ledgerId": 1, "entries": 4},
            {"ledgerId": 2, "entries": 5, "size": 7, "offloaded": True},
            {"ledgerId": 3, "entries": 0, "size": 0},
        ],
        "currentLedgerEntries": 2,
        "currentLedgerSize": 9,
        "cursors": {
            "new": {"markDeletePosition": "-1:-1"},
            "slow": {"markDeletePosition": "1:3"},
            "fast": {"markDeletePosition": "3:0"},
            "done": {"markDeletePosition": "3:1"},
        },
    }
    (found,) = run_at_once(stored_topics("t", 0, internal, {})).rows
    assert [list(each.held_by) for each in found.ledgers] == [
        *(["new"], ["new", "slow"], ["new", "slow", "fast"])
    ]
    assert [(each.entries, each.size) for each in found.ledgers] == [(4, 0), (5, 7), (2, 9)]
    assert {(each.from_ms, each.until_ms) for each in found.ledgers} == {(None, None)}


def test_from_when_until_when_ledgers_were_written() -> None:
    ledgers = [{"ledgerId": number, "entries": 1} for number in (3, 5, 8)]
    closed = [
        {"ledgerId": 3, "entries": 1, "timestamp": 1_000},
        {"ledgerId": 5, "entries": 1, "timestamp": 2_000},
    ]
    of_pulsar, ours = {"ledgerId": 8, "timestamp": 2_010}, {"ledgerId": 8}
    for opened in (of_pulsar, ours):
        info = {"ledgers": [*closed, opened]}
        for internal, infos in (
            ({"ledgers": ledgers, "lastLedgerCreatedTimestamp": "1970-01-01T00:00:00Z"}, info),
            ({"partitions": {"t": {"ledgers": ledgers}}}, {"partitions": {"t": info}}),
        ):
            (found,) = run_at_once(stored_topics("t", 0, internal, infos)).rows
            assert [(each.from_ms, each.until_ms) for each in found.ledgers] == [
                *((None, 1_000), (1_000, 2_000), (2_000, None)),
            ]
    internal = {"ledgers": ledgers[2:], "lastLedgerCreatedTimestamp": "1970-01-01T00:00:02.5Z"}
    (found,) = run_at_once(stored_topics("t", 0, internal, {"ledgers": [of_pulsar]})).rows
    assert [(each.from_ms, each.until_ms) for each in found.ledgers] == [(2_500, None)]


@pytest.mark.parametrize(
    ("backlog", "waiting", "stored", "unread"),
    [(0, 0, 9, 0.0), (3, 30, 120, 25.0), (3, 90, 60, 100.0), (3, -1, 60, None), (3, 5, 0, None)],
)
def test_where_a_subscription_stands_on_the_log(
    backlog: int, waiting: int, stored: int, unread: float | None
) -> None:
    subscription = {"msgBacklog": backlog, "backlogSize": waiting}
    stats = {"subscriptions": {"s": subscription}, "storageSize": stored}
    figures = run_at_once(topic_figures(stats, {}, ClientQuery()))
    assert figures.subscriptions[0].unread == unread


def test_no_template_switches_escaping_off() -> None:
    """Names and payloads are foreign text. ``markup`` is for the icons, which are ours."""
    for file in TEMPLATES.glob("*.html"):
        text = file.read_text()
        assert "safe" not in re.findall(r"\|\s*(\w+)", text), file
        assert "autoescape" not in text, file
        assert "style=" not in text, f"{file}: the content security policy forbids it"
        assert "on" not in re.findall(r"\s(on)\w+=", text), file
        if file.name != "icons.html":
            assert "markup" not in text, file
