"""JSON forms of what the load balancer stores: Pulsar's documents, field by field.

| document | path | writer |
|---|---|---|
| LocalBrokerData | ``/loadbalance/brokers/<broker>`` | that broker |
| BundleData | ``/loadbalance/bundle-data/<tenant>/<ns>/<range>`` | the leader |
| TimeAverageBrokerData | ``/loadbalance/broker-time-average/<broker>`` | the leader |
| ResourceQuota | ``/loadbalance/resource-quota/...`` | an operator |

Decoders take what any version of Pulsar writes: unknown fields are ignored, missing ones have
their defaults. A value of another type raises InvalidDocumentError.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, cast

import orjson

from magnetar.loadbalance.errors import InvalidDocumentError
from magnetar.loadbalance.model import (
    LONG_SAMPLES,
    SHORT_SAMPLES,
    BrokerLoad,
    BundleData,
    BundleQuota,
    BundleStats,
    ResourceUsage,
    TimeAverage,
)

Document = dict[str, Any]
_T = TypeVar("_T")

#: Field of a document -> attribute, for numbers.
_STATS: Final = {
    "msgRateIn": "msg_rate_in",
    "msgThroughputIn": "msg_throughput_in",
    "msgRateOut": "msg_rate_out",
    "msgThroughputOut": "msg_throughput_out",
    "consumerCount": "consumers",
    "producerCount": "producers",
    "topics": "topics",
    "cacheSize": "cache_bytes",
}
_INTEGERS: Final = frozenset({"consumers", "producers", "topics", "cache_bytes"})
_AVERAGES: Final = {
    "msgThroughputIn": "msg_throughput_in",
    "msgThroughputOut": "msg_throughput_out",
    "msgRateIn": "msg_rate_in",
    "msgRateOut": "msg_rate_out",
}
_URLS: Final = {
    "webServiceUrl": "web_service_url",
    "webServiceUrlTls": "web_service_url_tls",
    "pulsarServiceUrl": "pulsar_service_url",
    "pulsarServiceUrlTls": "pulsar_service_url_tls",
}
_RESOURCES: Final = {
    "cpu": "cpu",
    "memory": "memory",
    "directMemory": "direct_memory",
    "bandwidthIn": "bandwidth_in",
    "bandwidthOut": "bandwidth_out",
}
_QUOTA: Final = {
    "msgRateIn": "msg_rate_in",
    "msgRateOut": "msg_rate_out",
    "bandwidthIn": "bandwidth_in",
    "bandwidthOut": "bandwidth_out",
    "memory": "memory",
}


def parse(path: str, value: bytes) -> Document:
    """The JSON object that a node holds.

    Raises:
        InvalidDocumentError: it holds none.
    """
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidDocumentError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidDocumentError(f"{path} is not a JSON object")
    return document


# --- load reports


def bundle_stats_document(stats: BundleStats) -> Document:
    return {name: getattr(stats, attribute) for name, attribute in _STATS.items()}


def bundle_stats_of(document: Mapping[str, Any]) -> BundleStats:
    """Raises InvalidDocumentError."""
    stats = BundleStats()
    for name, attribute in _STATS.items():
        number = _number(document, name)
        setattr(stats, attribute, int(number) if attribute in _INTEGERS else number)
    return stats


def broker_load_document(load: BrokerLoad, weights_usage: float) -> Document:
    """LocalBrokerData.

    Args:
        weights_usage: the value of ``BrokerLoad.usage``, for operators that read the node.
    """
    document: Document = {
        "brokerId": load.broker_id,
        **{name: url for name, field in _URLS.items() if (url := getattr(load, field))},
        "persistentTopicsEnabled": load.persistent_topics_enabled,
        "nonPersistentTopicsEnabled": load.non_persistent_topics_enabled,
        **{name: _usage_document(getattr(load, field)) for name, field in _RESOURCES.items()},
        **{name: getattr(load, field) for name, field in _AVERAGES.items()},
        "lastUpdate": load.last_update_ms,
        "lastStats": {name: bundle_stats_document(each) for name, each in load.stats.items()},
        "numTopics": load.topics,
        "numBundles": len(load.bundles),
        "numConsumers": load.consumers,
        "numProducers": load.producers,
        "bundles": list(load.bundles),
        "lastBundleGains": list(load.gains),
        "lastBundleLosses": list(load.losses),
        "brokerVersionString": load.version,
        "protocols": dict(load.protocols),
        "advertisedListeners": dict(load.advertised_listeners),
        "startTimestamp": load.start_timestamp_ms,
        "maxResourceUsage": weights_usage,
        "loadReportType": "LocalBrokerData",
    }
    if load.draining:
        document["draining"] = True
    if load.incarnation:
        document["incarnation"] = load.incarnation
    if load.properties:
        document["properties"] = dict(load.properties)
    return document


def broker_load_of(broker_id: str, document: Mapping[str, Any]) -> BrokerLoad:
    """A load report, as Pulsar or we have written it.

    Args:
        broker_id: name of the node; older versions don't repeat it inside.
    Raises:
        InvalidDocumentError: a field of another type, or a number that isn't finite.
    """
    load = BrokerLoad(broker_id)
    for name, attribute in _URLS.items():
        setattr(load, attribute, _text(document, name))
    for name, attribute in _RESOURCES.items():
        usage = _mapping(document, name)
        setattr(load, attribute, ResourceUsage(_number(usage, "usage"), _number(usage, "limit")))
    for name, attribute in _AVERAGES.items():
        setattr(load, attribute, _number(document, name))
    load.persistent_topics_enabled = _flag(document, "persistentTopicsEnabled", True)
    load.non_persistent_topics_enabled = _flag(document, "nonPersistentTopicsEnabled", True)
    load.last_update_ms = int(_number(document, "lastUpdate"))
    load.stats = {
        name: bundle_stats_of(_mapping(document["lastStats"], name))
        for name in _mapping(document, "lastStats")
    }
    load.topics = int(_number(document, "numTopics"))
    load.consumers = int(_number(document, "numConsumers"))
    load.producers = int(_number(document, "numProducers"))
    load.bundles = _texts(document, "bundles")
    load.gains = _texts(document, "lastBundleGains")
    load.losses = _texts(document, "lastBundleLosses")
    load.version = _text(document, "brokerVersionString")
    load.start_timestamp_ms = int(_number(document, "startTimestamp"))
    load.incarnation = int(_number(document, "incarnation"))
    load.draining = _flag(document, "draining", False)
    load.protocols = _mapping(document, "protocols")
    load.advertised_listeners = _mapping(document, "advertisedListeners")
    load.properties = _mapping(document, "properties")
    return load


def _usage_document(usage: ResourceUsage) -> Document:
    return {"usage": usage.usage, "limit": usage.limit}


# --- averages


def bundle_load_document(load: BundleData) -> Document:
    """BundleData."""
    return {
        "shortTermData": _average_document(load.short),
        "longTermData": _average_document(load.long),
        "topics": load.topics,
    }


def bundle_load_of(document: Mapping[str, Any]) -> BundleData:
    """Raises InvalidDocumentError."""
    return BundleData(
        _average_of(_mapping(document, "shortTermData"), SHORT_SAMPLES),
        _average_of(_mapping(document, "longTermData"), LONG_SAMPLES),
        int(_number(document, "topics")),
    )


def broker_average_document(loads: Iterable[BundleData]) -> Document:
    """TimeAverageBrokerData: sums over the bundles of a broker."""
    document: Document = {
        f"{term}Term{name[0].upper()}{name[1:]}": 0.0
        for term in ("short", "long")
        for name in _AVERAGES
    }
    for load in loads:
        for term, average in (("short", load.short), ("long", load.long)):
            for name, attribute in _AVERAGES.items():
                document[f"{term}Term{name[0].upper()}{name[1:]}"] += getattr(average, attribute)
    return document


def _average_document(average: TimeAverage) -> Document:
    return {
        "maxSamples": average.samples_max,
        "numSamples": average.samples,
        **{name: getattr(average, attribute) for name, attribute in _AVERAGES.items()},
    }


def _average_of(document: Mapping[str, Any], samples_max: int) -> TimeAverage:
    average = TimeAverage(samples_max)
    # A document of another window: its mean is good, its weight is ours.
    average.samples = max(0, min(int(_number(document, "numSamples")), samples_max))
    if average.samples:
        for name, attribute in _AVERAGES.items():
            setattr(average, attribute, _number(document, name))
    return average


# --- quotas


def quota_of(document: Mapping[str, Any]) -> BundleQuota:
    """Raises InvalidDocumentError."""
    metrics = {attribute: _number(document, name) for name, attribute in _QUOTA.items()}
    return BundleQuota(**metrics, dynamic=_flag(document, "dynamic", True))


# --- fields


def _field(document: Mapping[str, Any], name: str, check: Callable[[Any], bool], default: _T) -> _T:
    value = document.get(name)
    if value is None:
        return default
    if not check(value):
        raise InvalidDocumentError(f"{name}: {value!r:.80}")
    return cast("_T", value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(document: Mapping[str, Any], name: str) -> float:
    return _field(document, name, _is_number, 0.0)


def _flag(document: Mapping[str, Any], name: str, default: bool) -> bool:
    return _field(document, name, lambda value: isinstance(value, bool), default)


def _text(document: Mapping[str, Any], name: str) -> str:
    return _field(document, name, lambda value: isinstance(value, str), "")


def _texts(document: Mapping[str, Any], name: str) -> list[str]:
    return _field(
        document,
        name,
        lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
        [],
    )


def _mapping(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    return _field(document, name, lambda value: isinstance(value, dict), {})
