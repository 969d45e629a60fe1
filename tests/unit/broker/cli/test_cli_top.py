"""``magnetar top``: figures of a cluster that answers from a table, as text and on the screen."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from rich.cells import cell_len

from magnetar.broker.cli.main import build_parser, main
from magnetar.broker.cli.top import top_command
from magnetar.broker.cli.top.figures import VIEWS, Figures, explain, read_figures
from magnetar.broker.cli.top.filter_text import Filter, FilterTextError, parse_filter_text
from magnetar.broker.cli.top.lines import (
    NAME_MIN,
    counts_text,
    fitted,
    head_lines,
    list_lines,
)
from magnetar.broker.cli.top.texts import bars_text, cut, trend_text
from magnetar.broker.cli.top.top_command import _read_all, top_target
from magnetar.broker.console.admin_api import AdminApi, AdminError, Query
from magnetar.broker.console.source import Source

NOW_MS = 1_800_000_000_000
ORDERS = "persistent://retail/orders/payments"


def subscription(name: str, backlog: int, **others: Any) -> dict[str, Any]:
    row = {"topic": ORDERS, "subscription": name, "msgBacklog": backlog, "msgRateOut": 0.0}
    figures = {"msgBacklogTrend": 0.0, "earliestMsgPublishTimeInBacklog": None}
    return {**row, **figures, "consumerCount": 2, "unackedMessages": 9, **others}


BILLING = subscription(
    "billing",
    1_284_310,
    msgBacklogTrend=122.4,
    earliestMsgPublishTimeInBacklog=NOW_MS - 11_520_000,
    history={"msgBacklog": [10, 20, 30]},
)
STOCK = subscription("stock\x1b[2J", 600, msgBacklogTrend=-10.0, msgRateOut=20.0)
SUBSCRIPTIONS = "subscriptions-index?sort=msgBacklog&order=desc&limit=100&points=8&partial=True"
CLUSTER: dict[str, Any] = {
    "namespaces-index?partial=True": {
        "asOf": NOW_MS,
        "topicsRead": 5,
        "topicsLoaded": 5,
        "namespaces": {
            "retail/orders": {
                "topicCount": 5,
                "loadedTopicCount": 5,
                "msgRateIn": 48_210.0,
                "msgThroughputIn": 61.4e6,
                "msgBacklog": 1_284_910,
                "msgBacklogTrend": 112.4,
                "earliestMsgPublishTimeInBacklogs": NOW_MS - 11_520_000,
            },
            "a/b": {
                "topicCount": 2,
                "loadedTopicCount": 0,
                "msgRateIn": None,
                "storageSize": 1.84e12,
                "msgBacklog": None,
            },
        },
    },
    "history": {
        "since": NOW_MS - 20_000,
        "times": [NOW_MS - 20_000, NOW_MS - 10_000],
        "series": {"msgRateIn": [1, 2], "msgRateOut": [0, 0], "msgBacklog": [9, 7]},
        "brokers": {
            "b1:8080": {"since": NOW_MS - 20_000, "msgRateIn": 7.0, "publishLatencyP99Ms": 4.1},
        },
        "silentBrokers": {"b2:8080": "no answer"},
    },
    "clusters": ["global", "prod-eu-1"],
    "brokers/prod-eu-1": ["b1:8080", "b2:8080"],
    "doctor": {
        "findings": [
            {"severity": "critical", "sentence": "bookie k5 is full"},
            {"severity": "note", "sentence": "a token ends next month"},
        ],
    },
    "bookies/state": {
        "bookies": [
            {
                "bookieId": "k1:3181",
                "state": "writable",
                "freeBytes": 25,
                "totalBytes": 100,
                "addLatencyMs": {"p50": 1.0, "p99": 4.1},
            },
            {"bookieId": "k5:3181", "state": "readOnly", "error": "no answer"},
        ]
    },
    SUBSCRIPTIONS: {
        "total": 31_077,
        "matching": 31_077,
        "subscriptions": [BILLING, STOCK],
    },
    "subscriptions-index?q=bill&sort=msgBacklogTrend&order=desc&limit=100&points=8&partial=True": {
        "total": 31_077,
        "matching": 1,
        "subscriptions": [BILLING],
    },
    "broker-stats/connections?limit=100": {
        "connections": [{"address": "10.0.3.9:1", "since": NOW_MS, "role": None}],
        "count": 1,
    },
    "persistent/retail/orders/payments/explain": {
        "billing": {"message": "Nobody is there.", "next": "Somebody must come."},
        "stock\x1b[2J": {"message": "All is well.", "next": "Nothing."},
    },
}


class Cluster(AdminApi):
    """Answers as an `AdminApi`; what it doesn't have is refused. ``fails``: nobody answers."""

    def __init__(self, known: dict[str, Any] = CLUSTER) -> None:
        self.known = known
        self.fails = False
        self.asked: list[str] = []

    async def call(
        self, method: str, path: str, query: Query | None = None, body: Any = None
    ) -> Any:
        target = path.removeprefix("/admin/v2/") + (f"?{urlencode(query)}" if query else "")
        self.asked.append(target)
        if self.fails:
            raise AdminError(503, "http://b1 has not answered")
        if target not in self.known:
            raise AdminError(403, target)
        return json.loads(json.dumps(self.known[target]))


def source(known: dict[str, Any] = CLUSTER) -> Source:
    return Source(Cluster(known))


async def figures_of(
    view: int, sort: str = "", text: str = "", of: Source | None = None
) -> Figures:
    return await read_figures(of or source(), VIEWS[view], sort, text)


async def test_the_head_says_what_happens() -> None:
    figures = await figures_of(0, "msgBacklog")
    assert head_lines(figures, NOW_MS, 80) == [
        "prod-eu-1   2 brokers (1 silent)  1/2 bookies",
        "in       48,210/s  61.4 MB/s ▁█        backlog   1.28 M  +6.74 k/min  p99 4.1 ms",
        "out           0/s      0 B/s ▁▁        oldest    3 h 12 min  stored 1.84 TB",
        "◆ bookie k5 is full",
        "  without the figures of 2 topics not loaded",
    ]
    assert "+6.74 k/min █▁        p99" in head_lines(figures, NOW_MS, 120)[1]
    told = figures.as_json(VIEWS[0])
    assert (told["publishLatencyP99Ms"], told["msgBacklogTrend"]) == (4.1, 112.4)
    assert told["history"]["series"]["msgBacklog"] == [9, 7]
    assert told["topicsNotLoaded"] == 2
    assert counts_text(figures) == "2 of 31,077"
    assert figures.as_json(VIEWS[0])["subscriptions"] == [BILLING, STOCK]


async def test_a_list_is_as_wide_as_the_terminal() -> None:
    figures = await figures_of(0, "msgBacklog")
    wide = list_lines(VIEWS[0], figures, NOW_MS, 120)
    assert wide[0].split() == [
        *("SUBSCRIPTION", "TOPIC", "BACKLOG", "OLDEST", "TREND", "OUT/s", "CONS", "UNACK"),
        *("CAUGHT", "UP"),
    ]
    assert "▁▅█ +7.34 k/min" in wide[1]
    titles, billing, stock = list_lines(VIEWS[0], figures, NOW_MS, 80)
    assert titles.split()[2:] == ["BACKLOG", "OLDEST", "CONS", "CAUGHT", "UP"]
    assert billing.startswith("◆  billing ")
    assert billing.endswith("1,284,310  3 h 12 min     2      never")
    assert stock.endswith("600           –     2      1 min")


async def test_once_waits_until_all_topics_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a broker that has very many; the page, and what is wrong, are asked for once."""
    monkeypatch.setattr(top_command, "_AGAIN_S", 0.0)
    sums, page = "namespaces-index?partial=True", SUBSCRIPTIONS
    part = {"complete": False, "topicsRead": 2_000, "topicsLoaded": 31_077}
    cluster = Cluster({**CLUSTER, sums: {"namespaces": {}, **part}})
    of_now = await read_figures(Source(cluster), VIEWS[0], "msgBacklog", "")
    assert counts_text(of_now).endswith("31,077, 2,000 of 31,077 topics read")

    class Reading(Cluster):
        async def call(self, method: str, path: str, *given: Any) -> Any:
            answer = await super().call(method, path, *given)
            of_before = self.asked.count(self.asked[-1]) <= 2
            return answer | part if of_before and self.asked[-1] == sums else answer

    reading = Reading()
    figures = await _read_all(Source(reading), VIEWS[0], "")
    assert figures.is_complete
    assert figures.sums.backlog == 1_284_910
    asked = [reading.asked.count(each) for each in (sums, page, "doctor")]
    assert asked == [4, 1, 1]


async def test_names_of_others_keep_the_list_in_its_columns() -> None:
    names = ("两个" * 60, "two\nlines\x1b[2J", "x" * 200, "a")
    figures = await figures_of(0, "msgBacklog")
    rows = tuple(BILLING | {"subscription": each} for each in names)
    _, *lines = list_lines(VIEWS[0], replace(figures, rows=rows), NOW_MS, 80, cuts=True)
    assert {cell_len(line) for line in lines} == {cell_len(lines[0])}
    assert cell_len(lines[0]) <= 80
    assert [line.startswith("◆  ") for line in lines] == [True] * 4
    whole = list_lines(VIEWS[0], replace(figures, rows=rows), NOW_MS, 80)
    assert names[0] in whole[1]
    assert whole[2].startswith(r"◆  two\nlines\u001b[2J ")


async def test_filter_and_order_are_the_servers() -> None:
    figures = await figures_of(0, "msgBacklogTrend", "bill")
    assert [row["subscription"] for row in figures.rows] == ["billing"]
    assert counts_text(figures) == "1 of 1, 31,077 in all"


@pytest.mark.parametrize(
    ("view", "text", "rows"),
    [(2, "", ["b1:8080", "b2:8080"]), (3, "K5", ["k5:3181"]), (4, "", ["10.0.3.9:1"])],
)
async def test_other_lists(view: int, text: str, rows: list[str]) -> None:
    figures = await figures_of(view, text=text)
    assert [line.split()[0] for line in list_lines(VIEWS[view], figures, NOW_MS, 80)[1:]] == rows


async def test_each_broker_has_its_figures() -> None:
    figures = await figures_of(2)
    assert figures.rows == (
        {
            "broker": "b1:8080",
            "since": NOW_MS - 20_000,
            "msgRateIn": 7.0,
            "publishLatencyP99Ms": 4.1,
            "error": None,
        },
        {"broker": "b2:8080", "error": "no answer"},
    )
    _, first, second = list_lines(VIEWS[2], figures, NOW_MS, 120)
    assert first.split()[-7:] == ["–", "–", "–", "4.1", "ms", "20", "s"]
    assert second.endswith("no answer")


def test_it_loads_nothing_of_the_server() -> None:
    """Pages' templates and the HTTP framework took most of a second of each start."""
    code = (
        "import sys, magnetar.broker.cli.top.top_command\n"
        "print({'jinja2', 'fastapi', 'starlette', 'google', 'avro'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_of_apache_pulsar_it_loads_no_client_of_bookies_and_no_policies() -> None:
    """They took half of each start, for pages that only the console has."""
    code = (
        "import sys, magnetar.broker.cli.top.top_command, magnetar.broker.console.pulsar_source\n"
        "heavy = ('google.protobuf', 'magnetar.bookkeeper.client', 'magnetar.broker.config')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_what_the_caller_may_not_see_is_left_out() -> None:
    few = source({name: each for name, each in CLUSTER.items() if "index" in name})
    figures = await figures_of(0, "msgBacklog", of=few)
    assert head_lines(figures, NOW_MS, 80)[0] == "cluster   0 brokers"
    assert len(figures.rows) == 2
    with pytest.raises(AdminError):
        await figures_of(4, of=few)


def test_a_long_name_gives_way_to_figures() -> None:
    columns = VIEWS[0].columns[:4]  # mark, subscription, topic, backlog
    assert fitted([1, 9, 30, 9], columns, 60) == [1, 9, 30, 9]
    assert fitted([1, 20, 60, 9], columns, 50) == [1, 20, 20, 9]
    assert fitted([1, 20, 60, 9], columns, 5) == [1, NAME_MIN, NAME_MIN, 9]
    assert [cut("orders", width) for width in (6, 5, 4)] == ["orders", "or…rs", "or…s"]
    assert [cut("一二三四", width) for width in (8, 7, 5)] == ["一二三四", "一…四", "一…四"]


@pytest.mark.parametrize(
    ("text", "view", "found"),
    [
        ("", "topics", Filter()),
        ("eu orders", "topics", Filter("eu orders")),
        ("eu backlog>0", "subscriptions", Filter("eu", "backlog")),
        ("Consumers=0", "topics", Filter("", "unconsumed")),
        ("quota>80%", "topics", Filter("", "nearQuota")),
    ],
)
def test_a_filter_has_names_and_a_condition(text: str, view: str, found: Filter) -> None:
    assert parse_filter_text(text, view) == found


@pytest.mark.parametrize(
    ("text", "view", "told"),
    [
        ("backlog>7", "topics", "one of backlog>0"),
        ("backlog>0 rate>0", "topics", "one of backlog>0"),
        ("backlog>0", "bookies", "names only"),
    ],
)
def test_an_unknown_condition_is_said(text: str, view: str, told: str) -> None:
    with pytest.raises(FilterTextError, match=told):
        parse_filter_text(text, view)


def test_texts() -> None:
    assert [trend_text(each) for each in (None, 3.0, -2.5)] == ["–", "+180/min", "-150/min"]
    assert trend_text(0.01) == "steady"
    assert [bars_text(each) for each in ((), (5, 5), (0, 1))] == ["", "▁▁", "▁█"]


@pytest.mark.parametrize(
    ("words", "admin_url"),
    [
        ("--url pulsar://far:6650,farther:6650", "http://far:8080"),
        ("--url pulsar+ssl://[::1]:6651", "https://[::1]:8443"),
        ("--url http://far:8081", "http://far:8081"),
        ("--url pulsar://far:6650 --admin-url http://near:1", "http://near:1"),
    ],
)
def test_which_admin_api_is_asked(words: str, admin_url: str) -> None:
    before = build_parser().parse_args([*words.split(), "top"])
    behind = build_parser().parse_args(["top", *words.split()])
    assert [top_target(each).admin_url for each in (before, behind)] == [admin_url] * 2


def test_what_is_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--url", "far"]) == 1
    assert "far is no URL of a cluster" in capsys.readouterr().err


def test_without_a_terminal_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top"]) == 1
    assert "--once" in capsys.readouterr().err


async def test_the_screen() -> None:
    if "CI" not in os.environ:
        pytest.importorskip("textual")
    from textual.widgets import DataTable, Input, Static

    from magnetar.broker.cli.top.dialogs import TextScreen
    from magnetar.broker.cli.top.screen import TopApp

    cluster = Cluster()
    app = TopApp(Source(cluster), 3600.0)
    async with app.run_test(size=(80, 24)) as pilot:

        async def settled(*keys: str) -> None:
            await pilot.press(*keys)
            await app.workers.wait_for_complete()
            await pilot.pause()

        def text(name: str) -> str:
            return str(app.query_one(name, Static).render())

        table = app.query_one(DataTable)
        await settled()
        assert "◆ bookie k5 is full" in text("#head")
        assert "[1 subscriptions]" in text("#bar")
        assert [str(cell) for cell in table.get_row_at(1)][:2] == ["", "stock\\u001b[2J"]
        assert len(table.columns) == 7

        await settled("enter")
        assert isinstance(app.screen, TextScreen)
        assert "Nobody is there." in str(app.screen.query_one("#text", Static).render())
        await settled("escape")

        await settled("s", "slash", *"bill", "enter")
        assert app.query_one(Input).display is False
        assert "by msgBacklogTrend   filter: bill   1 of 1" in text("#bar")
        assert table.row_count == 1

        cluster.fails = True
        await settled("s")
        assert "◆ http://b1 has not answered" in text("#bar")
        assert table.row_count == 1  # what was seen stays
        cluster.fails = False

        await settled("4", "space")
        assert "[4 bookies]" in text("#bar")
        assert "paused" in text("#bar")
        rounds = cluster.asked.count("namespaces-index?partial=True")
        app._tick()
        await settled("space")
        assert cluster.asked.count("namespaces-index?partial=True") == rounds
        app._tick()
        app._tick()  # the one before still waits for its answer
        await settled()
        assert cluster.asked.count("namespaces-index?partial=True") == rounds + 1


async def test_why_of_one_subscription_and_of_all() -> None:
    assert await explain(source(), BILLING) == "billing: Nobody is there.\nSomebody must come."
    assert (await explain(source(), {"topic": ORDERS})).count("\n\n") == 1
