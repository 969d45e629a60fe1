"""The metrics page has the names that the list of Pulsar's series says it has."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.raw_client import RawClient
from tests.standalone_process import StandaloneProcess

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_metrics.py"
NAMESPACE = "public/default"
TOPIC = f"persistent://{NAMESPACE}/named"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_metrics", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a broker whose every kind of series has something to show."""
    settings = ("exposeConsumerLevelMetricsInPrometheus", "exposeProducerLevelMetricsInPrometheus")
    options = [word for each in settings for word in ("--set", f"{each}=true")]
    with StandaloneProcess(tmp_path_factory.mktemp("names") / "data", *options) as process:
        admin = f"{process.admin_url}/admin/v2"
        httpx.put(f"{admin}/persistent/{NAMESPACE}/named", timeout=30).raise_for_status()
        schema = {"type": "STRING", "schema": "", "properties": {}}
        httpx.post(
            f"{admin}/schemas/{NAMESPACE}/named/schema", json=schema, timeout=30
        ).raise_for_status()
        with RawClient(process.service_url) as client:
            client.subscribe(TOPIC, "s")
            client.subscribe(f"non-persistent://{NAMESPACE}/volatile", "s", consumer_id=2)
            client.create_producer(TOPIC)
            client.send_bytes(client.send_frame(0, b"x"))
            client.expect(pb.BaseCommand.SEND_RECEIPT)
            yield httpx.get(f"{process.admin_url}/metrics", timeout=30).text


def test_the_page_and_the_list_agree(page: str) -> None:
    assert load_script().differences(page) == []


def test_every_listed_name_says_what_about_it() -> None:
    sections = load_script().read_list()
    assert len(sections) > 400
    assert {section.partition(":")[0].partition(",")[0] for section in sections.values()} == {
        "ours",
        "absent",
    }


def test_the_script_sees_what_differs() -> None:
    script = load_script()
    page = (
        'pulsar_rate_in{cluster="c",topic="a \\" b"} 1\nnew_one 2\npulsar_replication_backlog 3\n'
    )
    lines = script.differences(page)
    assert "new_one: not in the list" in lines
    assert any(line.startswith("pulsar_replication_backlog: on the page") for line in lines)
    assert "pulsar_rate_out: listed as ours, but not on the page" in lines
    other = 'pulsar_rate_in{cluster="c"} 1\n'
    assert len(script.label_differences(other, page)) == 1
    assert script.label_differences(page, page) == []


def value(page: str, name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        # The parser adds what BookKeeper leaves out of its counters' names.
        if sample.name in (name, f"{name}_total") and labels.items() <= sample.labels.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def test_the_bookie_shows_its_work(page: str) -> None:
    assert value(page, "bookie_SERVER_STATUS") == 1
    entries = value(page, "bookie_journal_JOURNAL_ADD_ENTRY_count")
    assert entries >= 1
    assert value(page, "bookkeeper_server_ADD_ENTRY_count", success="true") == entries
    assert value(page, "bookkeeper_server_ADD_ENTRY_count", success="false") == 0
    assert value(page, "bookie_write_cache_count") == entries
    assert value(page, "bookie_WRITE_BYTES") > 0
    assert value(page, "bookie_journal_JOURNAL_SYNC_count") >= 1
    assert value(page, "bookie_journal_JOURNAL_SYNC", quantile="0.99") > 0
    assert value(page, "bookie_journal_JOURNAL_QUEUE_SIZE") == 0
    assert 0 < value(page, "bookie_ledger_dir_usage") < 100


def test_the_ledgers_show_theirs(page: str) -> None:
    labels = {"namespace": f"{NAMESPACE}/persistent"}
    assert value(page, "pulsar_ml_AddEntrySucceed", **labels) == 1
    assert value(page, "pulsar_ml_AddEntryErrors", **labels) == 0
    assert value(page, "pulsar_ml_EntrySizeBuckets", quantile="0.0_128.0", **labels) == 1
    for name in ("AddEntryLatency", "LedgerAddEntryLatency", "LedgerSwitchLatency"):
        buckets = [
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name.startswith(f"pulsar_ml_{name}Buckets")
        ]
        assert (len(buckets), sum(buckets)) == (10, 1), name
    topic = {"topic": TOPIC}
    assert value(page, "pulsar_storage_ledger_write_latency_count", **topic) == 1
    whole = value(page, "pulsar_storage_write_latency_sum", **topic)
    assert 0 < value(page, "pulsar_storage_ledger_write_latency_sum", **topic) <= whole
    assert value(page, "pulsar_ml_cache_inserted_entries_total") >= 1


def test_schemas_and_throttling(page: str) -> None:
    namespace = {"namespace": NAMESPACE}
    assert value(page, "pulsar_schema_put_ops_latency_count", **namespace) == 1
    assert value(page, "pulsar_schema_put_ops_latency_sum", **namespace) > 0
    assert value(page, "pulsar_schema_put_ops_failed_total", **namespace) == 0
    assert value(page, "pulsar_schema_compatible_total", **namespace) == 1
    assert value(page, "pulsar_broker_throttled_connections") == 0
    assert value(page, "pulsar_publish_rate_limit_times", topic=TOPIC) == 0
