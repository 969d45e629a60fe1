"""Series of the broker and its process: connections, lookups, loads, caches, web server, memory."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

from magnetar.broker.http.metrics.bookie_metrics import add_stalls
from magnetar.broker.http.metrics.prometheus_page import PrometheusPage, label
from magnetar.broker.http.metrics.topic_metrics import TopicMetrics
from magnetar.broker.listener.file_limit import file_limit
from magnetar.broker.listener.unauthenticated_limiter import UnauthenticatedLimiter
from magnetar.broker.rate_limits.rate_sampler import RateSampler
from magnetar.broker.schema.metrics import OPERATIONS
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.service.metrics import QUOTA_CHECK_LIMITS_S

if TYPE_CHECKING:
    from magnetar.broker.http.middleware.request_context import HttpMetrics

_BROKER_SUMS: Final = (
    *("subscriptions_count", "producers_count", "consumers_count", "rate_in", "rate_out"),
    *("throughput_in", "throughput_out", "storage_size", "storage_logical_size"),
    *("storage_write_rate", "storage_read_rate", "storage_read_cache_misses_rate", "msg_backlog"),
)
"""Of the topics' series, with ``pulsar_`` in front: there is one of the broker for each."""
_PUBLISH: Final = ("0.0", "0.5", "0.95", "0.99", "0.999", "0.9999", "1.0")
_LOAD: Final = ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999")
_LOAD_NAMES: Final = (
    *("median", "75percentile", "95percentile", "99_percentile", "99_9_percentile"),
    "99_99_percentile",
)
"""Pulsar's names of these quantiles in its older series of the same."""
_LOOKUP: Final = ("0.5", "0.99", "0.999", "1.0")
_CACHE_PERIOD_MS: Final = 10_000


class CacheRates:
    """Hits and misses of the entry cache per second, over ten seconds or more."""

    def __init__(self) -> None:
        self._sampler = RateSampler()
        self._next_ms = 0

    def sample(self, now_ms: int, hits: int, misses: int) -> tuple[float, float]:
        if now_ms >= self._next_ms:
            self._sampler.sample(now_ms, (hits, misses, 0, 0))
            self._next_ms = now_ms + _CACHE_PERIOD_MS
        hit_rate, miss_rate, _, _ = self._sampler.rates
        return hit_rate, miss_rate


def add_broker_metrics(
    page: PrometheusPage,
    service: BrokerService,
    http: HttpMetrics,
    cache_rates: CacheRates,
    topics: TopicMetrics,
    process: ProcessMetrics,
    throttled: int,
) -> None:
    """Args:
    topics: the walk over the topics, which is over.
    throttled: connections that aren't read at the moment.
    """
    base = page.base
    page.add("pulsar_broker_throttled_connections", base, throttled)
    page.add("pulsar_broker_topics_count", base, len(service.topics))
    for name in _BROKER_SUMS:
        page.add(f"pulsar_broker_{name}", base, topics.total(f"pulsar_{name}"))
    system_in, system_out = topics.system_bytes_in, 0.0  # there are no system subscriptions
    for name, of, total, system in (
        ("in", "topic", topics.total("pulsar_in_bytes_total"), system_in),
        ("out", "subscription", topics.total("pulsar_out_bytes_total"), system_out),
    ):
        name = f"pulsar_broker_{name}_bytes_total"
        page.add(name, f'{base},system_{of}="false"', total - system)
        page.add(name, f'{base},system_{of}="true"', system)
    _add_connections(page, service)
    _add_durations(page, service)
    page.add("pulsar_ml_count", base, topics.persistent_topics)
    _add_cache(page, service, cache_rates)
    _add_reads(page, service)
    _add_offloads(page, service)
    _add_quota_checks(page, service)
    _add_load(page, service)
    _add_http(page, http)
    _add_process(page, process)
    if service.loop_stalls is not None:
        add_stalls(page, service.loop_stalls)


def _add_connections(page: PrometheusPage, service: BrokerService) -> None:
    metrics = service.metrics
    labels = f'{page.base},{label("broker", service.broker_id)},metric="broker_connection"'
    created, refused = metrics.connections_created, metrics.connections_refused
    page.add("pulsar_active_connections", labels, len(service.connections))
    page.add("pulsar_connection_created_total_count", labels, created)
    page.add("pulsar_connection_create_success_count", labels, created - refused)
    page.add("pulsar_connection_create_fail_count", labels, refused)
    page.add("pulsar_connection_closed_total_count", labels, metrics.connections_closed)
    if (authenticator := service.authenticator) is not None:
        for name, counts in (
            ("pulsar_authentication_success_total", authenticator.accepted),
            ("pulsar_authentication_failures_total", authenticator.refused),
        ):
            for method in sorted({*authenticator.chain.methods, *counts}):
                page.add(
                    name, f"{page.base},{label('auth_method', method)}", counts[method], "counter"
                )
        _add_unauthenticated(page, page.base, service.unauthenticated_limiter)
        checks = authenticator.passwords.pending
        page.add("pulsar_authentication_password_checks", page.base, checks)
    for listener, limiter in service.limiters.items():
        _add_unauthenticated(page, f"{page.base},{label('listener', listener)}", limiter)
    if (access := service.access) is not None:
        page.add("pulsar_authorization_failures_total", page.base, access.refused, "counter")


def _add_unauthenticated(
    page: PrometheusPage, labels: str, limiter: UnauthenticatedLimiter
) -> None:
    page.add("pulsar_unauthenticated_connections", labels, len(limiter))
    page.add("pulsar_unauthenticated_connections_closed_total", labels, limiter.cut, "counter")


def _add_durations(page: PrometheusPage, service: BrokerService) -> None:
    metrics, period_s = service.metrics, service.config.stats_update_frequency_in_secs
    now_s = time.monotonic()
    for name, durations, wanted in (
        ("pulsar_topic_load_times", metrics.topic_load, _LOAD),
        ("pulsar_broker_publish_latency", metrics.publish, _PUBLISH),
        ("pulsar_broker_lookup", metrics.lookup, _LOOKUP),
    ):
        page.add_durations(name, durations, wanted, now_s, period_s)
    base = page.base
    page.add("pulsar_broker_lookup_answers_total", base, metrics.lookup.count, "counter")
    page.add("pulsar_broker_lookup_failures_total", base, metrics.lookup_failures, "counter")
    # One broker owns everything it answers for, so that no lookup is redirected.
    page.add("pulsar_broker_lookup_redirects_total", base, 0, "counter")
    page.add("pulsar_broker_lookup_pending_requests", base, service.lookups)
    page.add("pulsar_broker_topic_load_pending_requests", base, service.loader.loading)
    page.add("topic_load_times_count", base, metrics.topic_load.count)  # the name before 4.0
    labels = f'{base},{label("broker", service.broker_id)},metric="pulsar_topic_load_times"'
    loads = metrics.topic_load.quantiles([float(each) for each in _LOAD], now_s, period_s)
    for name, value in zip(_LOAD_NAMES, loads, strict=True):
        page.add(f"pulsar_topic_load_time_{name}_ms", labels, value)
    page.add("pulsar_topic_load_failed_count", labels, metrics.topic_load_failures)
    page.add("topic_load_failed_total", base, metrics.topic_load_failures, "counter")


def _add_cache(page: PrometheusPage, service: BrokerService, cache_rates: CacheRates) -> None:
    base = page.base
    cache = service.ledgers.cache
    hit_rate, miss_rate = cache_rates.sample(service.wall_clock(), cache.hits, cache.misses)
    page.add("pulsar_ml_cache_used_size", base, cache.size)
    inserted, evicted = cache.inserted_entries, cache.evicted_entries
    page.add("pulsar_ml_cache_entries", base, inserted - evicted)
    page.add("pulsar_ml_cache_inserted_entries_total", base, inserted)
    page.add("pulsar_ml_cache_evicted_entries_total", base, evicted)
    page.add("pulsar_ml_cache_hits_rate", base, hit_rate)
    page.add("pulsar_ml_cache_misses_rate", base, miss_rate)


def _add_reads(page: PrometheusPage, service: BrokerService) -> None:
    """Reads of ledgers that weren't as easy as they should be."""
    metrics = service.ledgers.read_metrics
    for name, count in (
        ("speculative_reads", metrics.speculative),
        ("speculative_reads_won", metrics.speculative_won),
        ("reads_fallen_over", metrics.fell_over),
        ("corrupt_entries", metrics.corrupt),
        ("corrupt_entries_reported", metrics.reported),
    ):
        page.add(f"pulsar_bookkeeper_client_{name}_total", page.base, count, "counter")


def _add_offloads(page: PrometheusPage, service: BrokerService) -> None:
    """Copies of ledgers elsewhere (docs/guides/offload.md), by driver."""
    for offloader in service.ledgers.offloaders.values():
        metrics = offloader.metrics
        labels = f"{page.base},{label('driver', offloader.driver)}"
        for name, count in (
            ("copies", metrics.copies),
            ("copied_bytes", metrics.copied_bytes),
            ("copy_errors", metrics.copy_errors),
            ("reads", metrics.reads),
            ("read_bytes", metrics.read_bytes),
            ("read_errors", metrics.read_errors),
            ("copies_deleted", metrics.deleted),
        ):
            page.add(f"pulsar_ledger_offloader_{name}_total", labels, count, "counter")


def _add_quota_checks(page: PrometheusPage, service: BrokerService) -> None:
    name = "pulsar_storage_backlog_quota_check_duration_seconds"
    checks = service.metrics.quota_check
    page.add_histogram(name, QUOTA_CHECK_LIMITS_S, checks.counts, checks.total)


def add_schemas(page: PrometheusPage, service: BrokerService) -> Iterator[None]:
    """Operations of the schema registry; a step for each namespace."""
    latencies = {kind: f"pulsar_schema_{kind}_ops_latency" for kind in OPERATIONS}
    names = [f"pulsar_schema_{kind}_ops_failed_total" for kind in OPERATIONS]
    names += ["pulsar_schema_compatible_total", "pulsar_schema_incompatible_total"]
    table = page.table(names)
    for namespace, metrics in list(service.schemas.metrics.of_namespace.items()):
        labels = f"{page.base},{label('namespace', namespace)}"
        for kind, name in latencies.items():
            page.add_summary(name, (), metrics.counts[kind], metrics.ms[kind], labels)
        failed = tuple(metrics.failed.values())
        table.add(labels, (*failed, metrics.compatible, metrics.incompatible))
        yield


def _add_load(page: PrometheusPage, service: BrokerService) -> None:
    labels = f'{page.base},{label("broker", service.broker_id)},metric="loadBalancing"'
    sample = service.host_usage.sample()
    cache, cache_max = service.ledgers.cache.size, service.ledgers.cache.bytes_max
    # Pulsar keeps messages on their way to consumers there, outside of its heap.
    direct_memory = 100 * cache / cache_max if cache_max else 0.0
    page.add("pulsar_lb_directMemory_usage", labels, direct_memory)
    for name, resource in (
        ("pulsar_lb_cpu_usage", "cpu"),
        ("pulsar_lb_memory_usage", "memory"),
        ("pulsar_lb_bandwidth_in_usage", "bandwidthIn"),
        ("pulsar_lb_bandwidth_out_usage", "bandwidthOut"),
    ):
        metrics = sample[resource]
        if metrics["limit"] > 0:  # else this machine doesn't tell
            page.add(name, labels, 100 * metrics["usage"] / metrics["limit"])


def _add_http(page: PrometheusPage, http: HttpMetrics) -> None:
    base = page.base
    page.add("jetty_requests_total", base, sum(http.answers), "counter")
    page.add("jetty_requests_active", base, http.active)
    for number, count in enumerate(http.answers):
        if number:  # 0: left before there was an answer
            page.add("jetty_responses_total", f'{base},code="{number}xx"', count, "counter")
    page.add("jetty_request_time_seconds_total", base, http.seconds, "counter")


def _add_process(page: PrometheusPage, process: ProcessMetrics) -> None:
    base = page.base
    page.add("process_cpu_seconds_total", base, time.process_time(), "counter")
    page.add("process_resident_memory_bytes", base, process.resident_bytes)
    page.add("process_virtual_memory_bytes", base, process.virtual_bytes)
    page.add("process_start_time_seconds", base, _STARTED_S)
    page.add("process_open_fds", base, process.open_files)
    page.add("process_max_fds", base, file_limit())
    page.add("jvm_threads_current", base, threading.active_count())
    for generation, metrics in enumerate(gc.get_stats()):
        labels = f'{base},gc="generation {generation}"'
        page.add("jvm_gc_collection_seconds_count", labels, metrics["collections"], "counter")
    # Dashboards fill their variables from this one.
    page.add("jvm_memory_bytes_used", f'{base},area="heap"', process.resident_bytes)


_STARTED_S: Final = psutil.Process().create_time()


class ProcessMetrics(NamedTuple):
    """The system's figures of this process; 0 where it has none."""

    virtual_bytes: int = 0
    resident_bytes: int = 0
    open_files: int = 0


def process_metrics() -> ProcessMetrics:
    """Ask the system. Takes milliseconds when thousands of files are open: not for the loop."""
    try:
        process = psutil.Process()
        memory = process.memory_info()
        return ProcessMetrics(memory.vms, memory.rss, process.num_fds())
    except (OSError, psutil.Error):  # as when all files that may be open are
        return ProcessMetrics()
