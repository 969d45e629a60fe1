"""Where the load of a cluster is: hot bundles, by brokers' statistics; hot keys, by reading.

Bundles are what load balancing moves and splits; keys decide what partitions and the consumers of a
Key_Shared subscription get, which no balancing can change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from magnetar.pipeline.admin import Admin, ClusterAccess
from magnetar.pipeline.errors import OptionsError, PipelineError
from magnetar.pipeline.jobs.job_cancellation import apart, cancelled_on_error, spark_errors
from magnetar.pipeline.jobs.progress import Progress
from magnetar.pipeline.jobs.skew import SLOTS, SkewStats, gini, range_loads, skew_stats, slot_of
from magnetar.pipeline.jobs.tables import ReportTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BUNDLE_COLUMNS: Final = {
    "bundle": "string",
    "broker": "string",
    "topics": "int64",
    "producers": "int64",
    "consumers": "int64",
    "rate": "float64",
    "throughput": "float64",
    "messages": "int64",
    "storage": "int64",
    "backlog": "int64",
    "hottestTopic": "string",
    "hottestShare": "float64",
}
"""``rate`` and ``throughput``: messages and bytes a second, in and out, over the last minute;
``messages``: published since the topics were loaded; ``storage`` in bytes, ``backlog`` in messages
of all subscriptions; ``hottestShare``: of the bundle's load, which its hottest topic has: near 1, a
split doesn't help."""
BROKER_COLUMNS: Final = {
    "broker": "string",
    "cpu": "float64",
    "memory": "float64",
    "bundles": "int64",
    "topics": "int64",
    "rate": "float64",
    "throughput": "float64",
}
"""``cpu``: percent of what it may use; ``memory``: MiB."""
_CHOICES: Final = ("subscribe", "subscribepattern", "assign")
_KEY_SCHEMA: Final = "key binary, value binary, partition int, orderingKey binary, ledgerId bigint"
KEY_COLUMNS: Final = {
    "key": "string",
    "messages": "int64",
    "bytes": "int64",
    "share": "float64",
    "slot": "int64",
}
"""``share``: of all messages with a key; ``slot``: of Key_Shared."""


@dataclass(frozen=True, slots=True)
class BundleLoad:
    """
    Attributes:
        failures: broker -> why it is missing.
    """

    bundles: ReportTable
    brokers: ReportTable
    failures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeyLoad:
    """The load by key of a range of messages.

    Attributes:
        keys: the heaviest ones.
        keyless: messages without a key: they are spread evenly.
        distinct: how many keys there are.
        gini: of messages by key, see `skew.gini`.
        partitions: messages by partition; -1: of the topic without partitions.
        ranges: messages by equal range of the slots of Key_Shared.
        consumers: what that many consumers with an equal range each would get.
    """

    topic: str
    keys: ReportTable
    messages: int
    keyless: int
    distinct: int
    gini: float
    top_share: float
    partitions: Mapping[int, int]
    ranges: Sequence[int]
    consumers: SkewStats

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        spread = skew_stats([self.partitions[number] for number in sorted(self.partitions)])
        return {
            "topic": self.topic,
            "messages": self.messages,
            "keyless": self.keyless,
            "keys": self.distinct,
            "gini": round(self.gini, 4),
            "topShare": round(self.top_share, 4),
            "partitions": {str(number): self.partitions[number] for number in self.partitions},
            "partitionsMaxToMean": round(spread.max_to_mean, 3),
            "ranges": list(self.ranges),
            "consumers": self.consumers.count,
            "consumersMaxToMean": round(self.consumers.max_to_mean, 3),
            "top": [dict(row) for row in self.keys.rows],
        }


# ---- bundles


def bundle_load(cluster: ClusterAccess) -> BundleLoad:
    """Every live broker tells about itself.

    Raises:
        SegmentsUnavailableError: no broker answers.
    """
    with Admin(cluster) as admin:
        names = [str(name) for name in admin.get("/admin/v2/brokers", "brokers")]
    scheme = urlsplit(cluster.urls[0]).scheme
    bundles: list[dict[str, Any]] = []
    brokers: list[dict[str, Any]] = []
    failures: dict[str, str] = {}
    for name in sorted(names):
        # Its own answer is wanted: no other broker may take its place.
        with Admin(replace(cluster, urls=(f"{scheme}://{name}",))) as admin:
            try:
                report = admin.get("/admin/v2/broker-stats/load-report", name)
                topics = admin.get("/admin/v2/broker-stats/topics", name)
            except PipelineError as error:
                failures[name] = str(error)
                continue
        rows = bundle_rows(name, topics)
        bundles += rows
        brokers.append(broker_row(name, report, rows))
    return BundleLoad(
        ReportTable("bundles", BUNDLE_COLUMNS, bundles),
        ReportTable("brokers", BROKER_COLUMNS, brokers),
        failures,
    )


def bundle_rows(broker: str, topics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Sums of each bundle.

    Args:
        topics: statistics by namespace, bundle, domain and topic, as ``broker-stats/topics``.
    """
    rows = []
    for namespace, bundles in sorted(topics.items()):
        for bundle, domains in sorted(bundles.items()):
            found = {
                topic: _topic_metrics(stats)
                for domain in domains.values()
                for topic, stats in domain.items()
            }
            row: dict[str, Any] = {"bundle": f"{namespace}/{bundle}", "broker": broker}
            metrics = list(found.values())
            for name in BUNDLE_COLUMNS:
                if name not in row and not name.startswith("hottest"):
                    row[name] = sum(each[name] for each in metrics)
            measure = next((name for name in ("rate", "messages", "storage") if row[name]), "rate")
            hottest = max(found, key=lambda topic: found[topic][measure], default=None)
            row["hottestTopic"] = hottest
            row["hottestShare"] = (
                found[hottest][measure] / row[measure] if hottest and row[measure] else None
            )
            rows.append(row)
    return rows


def _topic_metrics(stats: Mapping[str, Any]) -> dict[str, Any]:
    subscriptions = list(stats.get("subscriptions", {}).values())
    return {
        "topics": 1,
        "producers": len(stats.get("publishers", ())),
        "consumers": sum(len(each.get("consumers", ())) for each in subscriptions),
        "rate": float(stats.get("msgRateIn", 0)) + float(stats.get("msgRateOut", 0)),
        "throughput": float(stats.get("msgThroughputIn", 0))
        + float(stats.get("msgThroughputOut", 0)),
        "messages": int(stats.get("msgInCounter", 0)),
        "storage": int(stats.get("storageSize", 0)),
        "backlog": sum(int(each.get("msgBacklog", 0)) for each in subscriptions),
    }


def broker_row(
    broker: str, report: Mapping[str, Any], bundles: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The row of a broker, from its load report and its bundles."""
    cpu = report.get("cpu", {})
    limit = float(cpu.get("limit", 0))
    return {
        "broker": broker,
        "cpu": 100 * float(cpu.get("usage", 0)) / limit if limit > 0 else None,
        "memory": float(report.get("memory", {}).get("usage", 0)),
        "bundles": len(bundles),
        "topics": sum(each["topics"] for each in bundles),
        "rate": float(sum(each["rate"] for each in bundles)),
        "throughput": float(sum(each["throughput"] for each in bundles)),
    }


# ---- keys


def key_load(
    spark: SparkSession,
    topic: str,
    options: Mapping[str, str],
    *,
    top: int = 20,
    consumers: int = 4,
    ranges: int = 64,
    progress: Progress | None = None,
) -> KeyLoad:
    """Read keys of a range of a topic, and weigh them.

    Args:
        options: those of the source, bounds included; ``subscribe`` is set here.
        top: how many of the heaviest keys to name.
        consumers: of a Key_Shared subscription, to be imagined.
    Raises:
        OptionsError: of the options.
        DataLossError, SegmentsUnavailableError, NoSuchTopicError: of the read.
        JobError: Spark failed; its text has the reason.
    """
    if top < 1 or not 1 <= consumers <= SLOTS or not 1 <= ranges <= SLOTS:
        raise OptionsError(f"top, consumers and ranges: 1 to {SLOTS}")
    from pyspark.sql import functions as sql

    from magnetar.pipeline.source import read_topics

    chosen = {name: text for name, text in options.items() if name.lower() not in _CHOICES}
    with (
        spark_errors(),
        cancelled_on_error(spark, f"keys of {topic}"),
        (progress or Progress()).watching(spark, "keys"),
    ):
        by_key = (
            read_topics(spark, _KEY_SCHEMA, subscribe=topic, **chosen)
            # What Key_Shared goes by; without either, producer and sequence id.
            .withColumn("sticky", sql.coalesce("orderingKey", "key"))
            .groupBy("partition", "sticky")
            .agg(
                sql.count("*").alias("messages"),
                sql.coalesce(sql.sum(sql.octet_length("value")), sql.lit(0)).alias("bytes"),
            )
            .persist()
        )
        try:
            return _weigh(by_key, topic, top, consumers, ranges)
        finally:
            apart(by_key.unpersist)


def _weigh(by_key: DataFrame, topic: str, top: int, consumers: int, ranges: int) -> KeyLoad:
    from pyspark.sql import functions as sql

    sums = by_key.groupBy("partition").agg(sql.sum("messages").alias("messages")).collect()
    partitions = {int(row.partition): int(row.messages) for row in sums}
    keyed = (
        by_key.where("sticky IS NOT NULL")
        .groupBy("sticky")
        .agg(sql.sum("messages").alias("messages"), sql.sum("bytes").alias("bytes"))
    )
    weights = {
        int(row.messages): int(row["count"]) for row in keyed.groupBy("messages").count().collect()
    }
    with_key = sum(weight * count for weight, count in weights.items())
    heaviest = keyed.orderBy(sql.desc("messages"), "sticky").limit(top).collect()
    rows = [
        {
            "key": _readable(bytes(row.sticky)),
            "messages": int(row.messages),
            "bytes": int(row.bytes),
            "share": row.messages / with_key,
            "slot": slot_of(bytes(row.sticky)),
        }
        for row in heaviest
    ]
    slots = _slot_weights(keyed)
    total = sum(partitions.values())
    return KeyLoad(
        topic,
        ReportTable("keys", KEY_COLUMNS, rows),
        messages=total,
        keyless=total - with_key,
        distinct=sum(weights.values()),
        gini=gini(weights),
        top_share=sum(row["share"] for row in rows),
        partitions=dict(sorted(partitions.items())),
        ranges=range_loads(slots.items(), ranges),
        consumers=skew_stats(range_loads(slots.items(), consumers)),
    )


def _slot_weights(keyed: DataFrame) -> Counter[int]:
    """Messages by slot: at most 65,535 rows come to the driver, however many keys there are."""
    from pyspark.sql import functions as sql

    # Not an Arrow function: those want pandas.
    slots = sql.udf(slot_of, "int", useArrow=False)
    by_slot = keyed.select(slots("sticky").alias("slot"), "messages").groupBy("slot")
    rows = by_slot.agg(sql.sum("messages").alias("messages")).collect()
    return Counter({int(row.slot): int(row.messages) for row in rows})


def _readable(key: bytes) -> str:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"
