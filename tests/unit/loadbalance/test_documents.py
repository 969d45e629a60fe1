"""Pulsar's documents: read, written, and what is refused."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.loadbalance import documents
from magnetar.loadbalance.errors import InvalidDocumentError
from magnetar.loadbalance.model import (
    BrokerLoad,
    BundleData,
    BundleQuota,
    BundleStats,
    ResourceUsage,
    TimeAverage,
)

BUNDLE = "public/default/0x00000000_0x08000000"

# The fields as a broker of Pulsar 4 writes them; numbers are ours.
REPORT: dict[str, Any] = {
    "brokerId": "b1:8080",
    "webServiceUrl": "http://b1:8080",
    "pulsarServiceUrl": "pulsar://b1:6650",
    "persistentTopicsEnabled": True,
    "nonPersistentTopicsEnabled": False,
    "cpu": {"usage": 12.5, "limit": 400.0},
    "memory": {"usage": 100.0, "limit": 1024.0},
    "directMemory": {"usage": 64.0, "limit": 2048.0},
    "bandwidthIn": {"usage": 1.0, "limit": 1000.0},
    "bandwidthOut": {"usage": 2.0, "limit": 1000.0},
    "msgThroughputIn": 1000.0,
    "msgThroughputOut": 2000.0,
    "msgRateIn": 10.0,
    "msgRateOut": 20.0,
    "lastUpdate": 1700000000123,
    "lastStats": {
        BUNDLE: {
            "msgRateIn": 10.0,
            "msgThroughputIn": 1000.0,
            "msgRateOut": 20.0,
            "msgThroughputOut": 2000.0,
            "consumerCount": 3,
            "producerCount": 2,
            "topics": 5,
            "cacheSize": 77,
        }
    },
    "numTopics": 5,
    "numBundles": 1,
    "numConsumers": 3,
    "numProducers": 2,
    "bundles": [BUNDLE],
    "lastBundleGains": [BUNDLE],
    "lastBundleLosses": [],
    "brokerVersionString": "4.0.1",
    "protocols": {},
    "advertisedListeners": {"internal": {"brokerServiceUrl": "pulsar://b1:6650"}},
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
    "startTimestamp": 1690000000000,
    "maxResourceUsage": 0.09,
    "loadReportType": "LocalBrokerData",
    "bundleStats": {},
}


def test_a_report_of_pulsar_is_read() -> None:
    load = documents.broker_load_of("b1:8080", REPORT)
    assert load.cpu == ResourceUsage(12.5, 400.0)
    assert load.stats == {BUNDLE: BundleStats(10.0, 20.0, 1000.0, 2000.0, 3, 2, 5, 77)}
    assert (load.rate, load.throughput) == (30.0, 3000.0)
    assert (load.bundles, load.gains, load.losses) == ([BUNDLE], [BUNDLE], [])
    assert (load.version, load.start_timestamp_ms) == ("4.0.1", 1690000000000)
    assert not load.non_persistent_topics_enabled
    assert not load.draining
    assert load.properties == {}


def test_what_is_written_is_what_was_read() -> None:
    load = documents.broker_load_of("b1:8080", REPORT)
    written = orjson.loads(orjson.dumps(documents.broker_load_document(load, 0.09)))
    unused = {"loadManagerClassName", "bundleStats"}
    assert written == {key: each for key, each in REPORT.items() if key not in unused}
    load.draining, load.incarnation, load.properties = True, 7, {"a": "b"}
    again = documents.broker_load_of("b1:8080", documents.broker_load_document(load, 0.0))
    assert again == load


def test_an_old_or_empty_report_has_defaults() -> None:
    assert documents.broker_load_of("b", {}) == BrokerLoad("b", bundles=[], gains=[], losses=[])
    assert documents.broker_load_of("b", {"lastStats": None, "cpu": None}).stats == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu": 3},
        {"cpu": {"usage": "many"}},
        {"msgRateIn": True},
        {"bundles": "all"},
        {"bundles": [1]},
        {"lastStats": {BUNDLE: 7}},
        {"lastStats": {BUNDLE: {"topics": []}}},
        {"webServiceUrl": 8080},
        {"persistentTopicsEnabled": "yes"},
        {"properties": ["a"]},
        {"msgThroughputIn": float("inf")},
    ],
)
def test_a_report_of_wrong_types_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidDocumentError):
        documents.broker_load_of("b", {**REPORT, **wrong})


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"7", b"\xff"])
def test_what_is_no_json_object_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidDocumentError, match="/loadbalance/brokers/b"):
        documents.parse("/loadbalance/brokers/b", value)


def test_averages_are_pulsars_bundle_data() -> None:
    load = BundleData(TimeAverage(10, 10, 1.0, 2.0, 3.0, 4.0), TimeAverage(1000, 40, 5, 6, 7, 8), 9)
    document = documents.bundle_load_document(load)
    assert document == {
        "shortTermData": {
            "maxSamples": 10,
            "numSamples": 10,
            "msgThroughputIn": 3.0,
            "msgThroughputOut": 4.0,
            "msgRateIn": 1.0,
            "msgRateOut": 2.0,
        },
        "longTermData": {
            "maxSamples": 1000,
            "numSamples": 40,
            "msgThroughputIn": 7,
            "msgThroughputOut": 8,
            "msgRateIn": 5,
            "msgRateOut": 6,
        },
        "topics": 9,
    }
    assert documents.bundle_load_of(document) == load


def test_samples_of_another_window_are_cut_to_ours() -> None:
    document = {"shortTermData": {"maxSamples": 99, "numSamples": 99, "msgRateIn": 5.0}}
    load = documents.bundle_load_of(document)
    assert load.short == TimeAverage(10, 10, 5.0, 0.0, 0.0, 0.0)
    assert load.long == TimeAverage(1000)  # never sampled: the defaults


def test_a_brokers_averages_are_sums_over_its_bundles() -> None:
    one = BundleData(TimeAverage(10, 1, 1, 2, 3, 4), TimeAverage(1000, 1, 5, 6, 7, 8))
    assert documents.broker_average_document([one, one, BundleData()]) == {
        "shortTermMsgThroughputIn": 50_006.0,
        "shortTermMsgThroughputOut": 50_008.0,
        "shortTermMsgRateIn": 52.0,
        "shortTermMsgRateOut": 54.0,
        "longTermMsgThroughputIn": 50_014.0,
        "longTermMsgThroughputOut": 50_016.0,
        "longTermMsgRateIn": 60.0,
        "longTermMsgRateOut": 62.0,
    }


def test_quotas() -> None:
    quota = BundleQuota(1.0, 2.0, 3.0, 4.0, 5.0, dynamic=False)
    document = {
        "msgRateIn": 1.0,
        "msgRateOut": 2.0,
        "bandwidthIn": 3.0,
        "bandwidthOut": 4.0,
        "memory": 5.0,
        "dynamic": False,
    }
    assert documents.quota_of(document) == quota
    with pytest.raises(InvalidDocumentError):
        documents.quota_of({"msgRateIn": "40"})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(REPORT)), json_values))
def test_any_json_is_a_report_or_refused(document: dict[str, Any]) -> None:
    for read in (documents.bundle_load_of, documents.quota_of, documents.bundle_stats_of):
        try:
            read(document)
        except InvalidDocumentError:
            continue
    try:
        load = documents.broker_load_of("b", document)
    except InvalidDocumentError:
        return
    assert documents.broker_load_of("b", documents.broker_load_document(load, 0.0)) == load
