"""The metrics page of a working broker: valid text, true figures, a dashboard that finds them."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.metrics_page import DASHBOARDS, Samples, check_dashboard, samples_of
from tests.standalone_process import StandaloneProcess
from tests.waiting import wait_until


def value(samples: Samples, name: str, **labels: str) -> float:
    """The one series with these labels, whatever others it has."""
    matching = [
        found
        for (each, pairs), found in samples.items()
        if each == name and labels.items() <= pairs
    ]
    assert len(matching) == 1, (name, labels, matching)
    return matching[0]


def names_of(samples: Samples) -> set[str]:
    return {name for name, _ in samples}


def produce(url: str, topic: str, sizes: list[int]) -> None:
    body = {"messages": [{"payload": "x" * size} for size in sizes]}
    answer = httpx.post(f"{url}/topics/persistent/{topic}", json=body, timeout=30)
    assert [each["errorCode"] for each in answer.json()["messagePublishResults"]] == [0] * len(
        sizes
    )


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = ("--set", "transactionCoordinatorEnabled=true")
    with StandaloneProcess(tmp_path_factory.mktemp("metrics") / "data", *options) as process:
        base = f"{process.admin_url}/admin/v2/persistent/public/default"
        subscriptions = ("orders/subscription/billing", "orders/subscription/audit")
        for path in ("orders", *subscriptions, "o%22dd%5C", "idle"):
            httpx.put(f"{base}/{path}", timeout=30).raise_for_status()
        produce(process.admin_url, "public/default/orders", [10] * 5 + [3000])
        yield process.admin_url


def test_a_topic_shows_what_happened(url: str) -> None:
    samples = samples_of(url)
    topic = {"topic": "persistent://public/default/orders", "namespace": "public/default"}
    assert value(samples, "pulsar_msg_backlog", **topic) == 12, "of two subscriptions"
    assert value(samples, "pulsar_subscription_back_log", **topic, subscription="billing") == 6
    assert value(samples, "pulsar_storage_size", **topic) > 3000
    assert value(samples, "pulsar_topics_count", namespace="public/default") == 3
    assert value(samples, "pulsar_entry_size_count", **topic) == 6
    assert value(samples, "pulsar_entry_size_le_128", **topic) == 5
    assert value(samples, "pulsar_entry_size_le_4_kb", **topic) == 1
    assert value(samples, "pulsar_storage_write_latency_count", **topic) == 6
    latencies = [
        found
        for (name, pairs), found in samples.items()
        if name.startswith("pulsar_storage_write_latency_") and topic.items() <= pairs
        if not name.endswith(("_count", "_sum"))
    ]
    assert (len(latencies), sum(latencies)) == (10, 6)


def test_names_are_escaped(url: str) -> None:
    assert value(samples_of(url), "pulsar_rate_in", topic='persistent://public/default/o"dd\\') == 0


def test_a_topic_without_messages_costs_no_buckets(url: str) -> None:
    samples = samples_of(url)
    idle = ("topic", "persistent://public/default/idle")
    names = {name for name, pairs in samples if idle in pairs}
    assert "pulsar_msg_backlog" in names
    assert not [name for name in names if "txn" in name]
    assert not [name for name in names if "latency" in name or "entry_size" in name]


def test_the_broker_sums_up(url: str) -> None:
    samples = samples_of(url)
    assert value(samples, "pulsar_broker_topics_count") == 3
    assert value(samples, "pulsar_broker_msg_backlog") == 12
    evictions = "pulsar_broker_storage_backlog_quota_exceeded_evictions_total"
    assert value(samples, evictions, quota_type="size") == 0
    assert value(samples, evictions, quota_type="time") == 0
    assert value(samples, "pulsar_broker_publish_latency_count") == 6
    assert value(samples, "pulsar_topic_load_times_count") == 3
    assert 0 < value(samples, "pulsar_broker_publish_latency", quantile="0.5") < 60_000
    assert value(samples, "pulsar_version_info") == 1
    assert value(samples, "pulsar_ml_count") == 3
    assert value(samples, "pulsar_active_connections", metric="broker_connection") == 0
    ledgers = value(
        samples, "pulsar_ml_NumberOfMessagesInBacklog", namespace="public/default/persistent"
    )
    assert ledgers == 12
    assert value(samples, "process_resident_memory_bytes") > 10_000_000
    assert 0 < value(samples, "process_start_time_seconds") < time.time()


def test_the_web_server_counts_its_answers(url: str) -> None:
    before = samples_of(url)
    assert httpx.get(f"{url}/admin/v2/tenants/none", timeout=30).status_code == 404
    after = samples_of(url)
    grown = {
        code: value(after, "jetty_responses_total", code=code)
        - value(before, "jetty_responses_total", code=code)
        for code in ("2xx", "4xx", "5xx")
    }
    assert grown == {"2xx": 1, "4xx": 1, "5xx": 0}
    assert value(after, "jetty_requests_active") == 1, "the page's own request"


def test_namespace_level_replaces_topic_level(tmp_path: Path) -> None:
    options = ("--set", "exposeTopicLevelMetricsInPrometheus=false")
    with StandaloneProcess(tmp_path / "data", *options) as process:
        idle = samples_of(process.admin_url)
        assert value(idle, "pulsar_topics_count") == 0
        produce(process.admin_url, "public/default/a", [10])
        produce(process.admin_url, "public/default/b", [10])
        samples = samples_of(process.admin_url)
    assert not [pairs for _, pairs in samples if "topic" in dict(pairs)]
    namespace = {"namespace": "public/default"}
    assert value(samples, "pulsar_topics_count", **namespace) == 2
    assert value(samples, "pulsar_entry_size_count", **namespace) == 2
    backlog = value(samples, "pulsar_msg_backlog", **namespace, remote_cluster="local")
    assert backlog == 0


def test_the_dashboard_asks_for_what_there_is(url: str) -> None:
    (path,) = (each for each in DASHBOARDS if each.stem == "magnetar")
    # Coordinators of transactions are opened soon after the start.
    is_there = "pulsar_txn_active_count{"
    wait_until(lambda: is_there in httpx.get(f"{url}/metrics", timeout=30).text, "coordinators")
    check_dashboard(path, samples_of(url))


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_do_not_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + column, place["y"] + line)
            for column in range(place["w"])
            for line in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(column for column, _ in cells) < 24
        taken |= cells
