"""Broker settings: one frozen value with Pulsar's broker.conf keys.

Read from a file, the environment and the command line. A plain dataclass and not pydantic-settings:
importing pydantic costs more than the CLI's whole start-up budget
(docs/decisions/0002-argparse-and-lean-config.md).

Attribute names are Pulsar's keys in snake case (``maxMessageSize`` -> ``max_message_size``), so
units are where Pulsar put them; where the key names none, the comment beside the field does.
"""

import dataclasses
import functools
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, get_type_hints

from magnetar.bookkeeper.environment import PREFIXES, normalize_key, settings_among
from magnetar.bookkeeper.network_location import ZONE_LABEL, check_place
from magnetar.bookkeeper.origin_check import host_names
from magnetar.bookkeeper.settings_parser import value_of
from magnetar.broker.advertised_listeners import parse_listeners
from magnetar.broker.pulsar_settings import (
    DIGEST_NAMES,
    INTERCEPTORS,
    OTHER_KEYS,
    OtherSettings,
    apache_store_url,
)
from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.errors import InvalidSettingError
from magnetar.managed_ledger.offload.config import FILESYSTEM, path_of_uri

logger = logging.getLogger(__name__)

_CHOICES = {
    "broker_entry_metadata_interceptors": INTERCEPTORS,
    "allow_auto_topic_creation_type": ("non-partitioned", "partitioned"),
    "broker_delete_inactive_topics_mode": (
        "delete_when_no_subscriptions",
        "delete_when_subscriptions_caught_up",
    ),
    "schema_compatibility_strategy": (
        *("ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL"),
        *("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"),
    ),
    "backlog_quota_default_retention_policy": (
        *("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
    ),
    "managed_ledger_offload_driver": ("", FILESYSTEM),
    "managed_ledger_digest_type": tuple(DIGEST_NAMES),
    "managed_ledger_data_read_priority": ("tiered-storage-first", "bookkeeper-first"),
    "log_level": ("DEBUG", "INFO", "WARNING", "ERROR"),
    "log_format": ("text", "json"),
}
# Fields that may not be negative or zero, though their type allows it.
_PORTS = ("broker_service_port", "web_service_port")
_LISTS = ("load_balancer_shedding_excluded_namespaces", "subscription_types_enabled")
_ALL_PORTS = (*_PORTS, *(f"{name}_tls" for name in _PORTS), "bookie_port")
_SECRETS = frozenset(
    {
        *("managed_ledger_password", "token_secret_key", "token_previous_secret_key"),
        *("basic_auth_conf", "bookkeeper_client_authentication_parameters"),
        "broker_client_authentication_parameters",
    }
)
_POSITIVE = (
    "max_message_size",
    "default_num_partitions",
    "default_number_of_namespace_bundles",
    "managed_ledger_default_ensemble_size",
    "managed_ledger_default_write_quorum",
    "managed_ledger_default_ack_quorum",
    "managed_ledger_max_entries_per_ledger",
    "managed_ledger_max_size_per_ledger_mbytes",
    *(f"managed_ledger_offload_{name}_threads" for name in ("max", "read")),
    "managed_ledger_offload_max_block_size_in_bytes",
    "dispatcher_max_read_batch_size",
    "dispatcher_max_round_robin_batch_size",
    "web_socket_max_text_frame_size",
    "http_max_request_header_size",
    "http_max_request_headers",
    "http_request_header_timeout_millis",
    "http_server_idle_timeout",
    "http_server_accept_queue_size",
    "http_requests_max_per_second",
    "bookkeeper_client_timeout_in_seconds",
    "metadata_store_session_timeout_millis",
    "metadata_store_operation_timeout_seconds",
    "metadata_store_start_timeout_seconds",
    "authentication_refresh_check_seconds",
    "open_id_http_read_timeout_millis",
    "open_id_cache_refresh_after_write_seconds",
    "open_id_key_id_cache_miss_refresh_seconds",
)


_AUTHORIZATION_PROVIDERS = (
    "",
    "org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider",
)

# Pulsar's former names; a process that ignored them would start with an empty store of its own.
_FORMER_KEYS = {
    "zookeeperservers": "metadata_store_url",
    "configurationstoreservers": "configuration_metadata_store_url",
    "globalzookeeperservers": "configuration_metadata_store_url",
    # Above 0 they count, not the new ones, as in Pulsar.
    "zookeepersessiontimeoutmillis": "metadata_store_session_timeout_millis",
    "zookeeperoperationtimeoutseconds": "metadata_store_operation_timeout_seconds",
}
# Our own keys under the names of earlier releases: read with a warning, for one release.
_RENAMED_KEYS = {"brokerdeathwatchenabled": "broker_peer_failure_detection_enabled"}

_AUTHENTICATION = ("authentication_", "authenticate_", "token_", "basic_auth_", "open_id_")
_ROLES = frozenset({"anonymous_user_role", "proxy_roles", "super_user_roles"})
"""Fields of authentication: how they begin, and the others."""


class ConfigError(ValueError):
    """A setting can't be used; the text names the key, the value and its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(BalancerConfig):
    """All settings of one broker process: build with ``load``, change with ``replace``.

    Those of the load balancer are inherited.
    """

    # --- where it lives
    cluster_name: str = "standalone"
    data_dir: str = "data"  # own key: journal, ledgers, metadata of a standalone process
    bind_address: str = "127.0.0.1"
    advertised_address: str = ""  # "": the bind address; localhost for loopback and wildcards
    advertised_listeners: str = ""  # addresses by name: broker/advertised_listeners.py
    internal_listener_name: str = ""  # of clients that name none; "": the first with the scheme
    broker_service_port: int = 6650  # 0: any free port; empty or -1: only over TLS
    web_service_port: int = 8080
    metadata_store_url: str = ""  # "": the embedded store in data_dir; zk:host:port/chroot
    configuration_metadata_store_url: str = ""  # must be the same: there is one store for both
    metadata_store_config_path: str = ""  # properties: TLS and login (docs/operate/metadata.md)
    metadata_store_session_timeout_millis: int = 30_000
    metadata_store_operation_timeout_seconds: int = 30
    metadata_store_start_timeout_seconds: int = 300  # own key: for one that isn't there yet
    broker_peer_failure_detection_enabled: bool = True  # own key: docs/decisions/0029
    log_level: str = "INFO"
    log_format: str = "text"  # own key: "json" is one object a line
    status_file_path: str = (
        ""  # /status.html is 404 while this file is missing; "": ready is enough
    )
    broker_shutdown_timeout_ms: int = 60_000

    # --- connections and frames
    max_message_size: int = 5 * 1024 * 1024  # bytes of headers and payload
    keep_alive_interval_seconds: int = 30  # PING after this silence; closed after the same again
    broker_max_connections: int = 0  # 0: no limit
    broker_max_connections_per_ip: int = 0
    max_concurrent_lookup_request: int = 50_000
    max_concurrent_topic_load_request: int = 5_000
    topic_load_timeout_seconds: int = 60
    connection_write_buffer_high_bytes: int = 16 * 1024  # own key: dispatch pauses above it
    connection_write_buffer_low_bytes: int = 4 * 1024  # own key: and resumes below it
    connection_liveness_check_timeout_millis: int = 5_000

    # --- producers and publish
    max_message_publish_buffer_size_in_mb: int = (
        256  # bytes of all publishes in flight in this process
    )
    max_producers_per_topic: int = 0  # 0: no limit, as for all max_*_per_* below
    max_consumers_per_topic: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions_per_topic: int = 0
    max_topics_per_namespace: int = 0
    max_namespaces_per_tenant: int = 0
    max_tenants: int = 0
    max_num_partitions_per_partitioned_topic: int = 0

    # --- topics
    allow_auto_topic_creation: bool = True
    allow_auto_topic_creation_type: str = "non-partitioned"
    default_num_partitions: int = 1
    allow_auto_subscription_creation: bool = True
    broker_delete_inactive_topics_enabled: bool = True
    broker_delete_inactive_topics_frequency_seconds: int = 60
    broker_delete_inactive_topics_mode: str = "delete_when_no_subscriptions"
    broker_delete_inactive_topics_max_inactive_duration_seconds: int = 0  # 0: the frequency
    enable_persistent_topics: bool = True
    enable_non_persistent_topics: bool = True
    default_number_of_namespace_bundles: int = 32  # as Pulsar 5.0
    force_delete_tenant_allowed: bool = False
    force_delete_namespace_allowed: bool = False
    ttl_duration_default_in_seconds: int = 0  # 0: messages never expire
    message_expiry_check_interval_in_minutes: int = 5
    default_retention_time_in_minutes: int = 0
    default_retention_size_in_mb: int = 0
    subscription_expiration_time_minutes: int = 0  # of subscriptions without use; 0: never
    subscription_expiry_check_interval_in_minutes: int = 5
    subscription_backlog_scan_max_entries: int = 10_000  # of one analyzeBacklog
    subscription_backlog_scan_max_time_ms: int = 120_000
    backlog_quota_check_enabled: bool = True
    backlog_quota_check_interval_in_seconds: int = 60
    backlog_quota_default_limit_bytes: int = -1  # -1: no limit
    backlog_quota_default_limit_gb: float = -1.0  # above 0: instead of the bytes
    backlog_quota_default_limit_second: int = -1
    backlog_quota_default_retention_policy: str = "producer_request_hold"
    max_publish_rate_per_topic_in_messages: int = 0  # a second; 0: no limit, as for all rates
    max_publish_rate_per_topic_in_bytes: int = 0
    broker_publisher_throttling_max_message_rate: int = 0  # of all topics together
    broker_publisher_throttling_max_byte_rate: int = 0
    dispatch_throttling_rate_in_msg: int = 0  # of all topics together
    dispatch_throttling_rate_in_byte: int = 0
    dispatch_throttling_rate_per_topic_in_msg: int = 0
    dispatch_throttling_rate_per_topic_in_byte: int = 0
    dispatch_throttling_rate_per_subscription_in_msg: int = 0
    dispatch_throttling_rate_per_subscription_in_byte: int = 0
    dispatch_throttling_rate_relative_to_publish_rate: bool = False
    dispatch_throttling_on_non_backlog_consumer_enabled: bool = True
    dispatch_throttling_on_batch_message_enabled: bool = False  # a batch counts as one message
    subscribe_throttling_rate_per_consumer: int = 0  # in a period of the next setting
    subscribe_rate_period_per_consumer_in_second: int = 30
    encryption_require_on_producer: bool = False  # also no namespace can then switch it off
    topic_level_policies_enabled: bool = True

    # --- schemas: for namespaces whose policies leave it open
    schema_compatibility_strategy: str = "FULL"
    is_allow_auto_update_schema_enabled: bool = True
    is_schema_validation_enforced: bool = False  # also no namespace can then switch it off

    # --- bundles: parts that the split algorithm flow_or_qps_equally_divide makes
    flow_or_qps_difference_threshold_percentage: int = 10  # a bundle above by less stays whole

    # --- subscriptions and dispatch
    max_unacked_messages_per_consumer: int = 50_000
    max_unacked_messages_per_subscription: int = 200_000
    max_unacked_messages_per_broker: int = 0  # of all Shared and Key_Shared ones; 0: no limit
    max_unacked_messages_per_subscription_on_broker_blocked: float = 0.16  # of that; more waits
    acknowledgment_at_batch_index_level_enabled: bool = True  # as Pulsar 4.2
    active_consumer_failover_delay_time_millis: int = 1_000
    subscription_key_shared_enable: bool = True
    subscription_types_enabled: frozenset[str] = frozenset(
        {"Exclusive", "Shared", "Failover", "Key_Shared"}
    )  # policies may name others
    subscription_key_shared_use_consistent_hashing: bool = True  # False: halves of ranges
    dispatcher_max_read_batch_size: int = 100  # entries
    dispatcher_max_round_robin_batch_size: int = 20  # entries a consumer gets before the next one
    delayed_delivery_enabled: bool = True
    delayed_delivery_tick_time_millis: int = 1_000
    is_delayed_delivery_deliver_at_time_strict: bool = False
    delayed_delivery_max_delay_in_millis: int = 0  # 0: no limit
    delayed_delivery_max_index_size_in_bytes: int = 32 * 1024 * 1024  # a subscription; 0: no limit
    enable_replicated_subscriptions: bool = True  # False: a plain one instead

    # --- messages that are sent again
    broker_deduplication_enabled: bool = False
    broker_entry_metadata_interceptors: str = ""  # Pulsar's two classes, or one
    exposing_broker_entry_metadata_to_client_enabled: bool = False
    broker_deduplication_entries_interval: int = 1_000  # stored ones between snapshots
    broker_deduplication_snapshot_interval_seconds: int = 120  # 0: by entries only
    broker_deduplication_snapshot_frequency_in_seconds: int = 120  # how often it is looked at
    broker_deduplication_max_number_of_producers: int = 10_000  # in a snapshot of a topic
    broker_deduplication_producer_inactivity_timeout_minutes: int = 360

    # --- compaction
    broker_service_compaction_threshold_in_bytes: int = 0  # 0: by hand only
    broker_service_compaction_monitor_interval_in_seconds: int = 60
    broker_service_compaction_rate_in_bytes: int = 30_000_000  # by all in a second; 0: no limit
    topic_compaction_retain_null_key: bool = False
    transaction_coordinator_enabled: bool = False
    max_active_transactions_per_coordinator: int = 0  # more get no answer; 0: no limit

    # --- managed ledgers
    managed_ledger_default_ensemble_size: int = 1
    managed_ledger_default_write_quorum: int = 1
    managed_ledger_default_ack_quorum: int = 1
    managed_ledger_default_mark_delete_rate_limit: float = 1.0  # cursor writes a second
    managed_ledger_password: str = field(default="", repr=False)
    managed_ledger_digest_type: str = "CRC32C"  # of new ledgers; on Apache's bookies others, too
    managed_ledger_cache_size_mb: int = 256
    managed_ledger_max_entries_per_ledger: int = 50_000
    managed_ledger_min_ledger_rollover_time_minutes: int = 10
    managed_ledger_max_ledger_rollover_time_minutes: int = 240
    managed_ledger_max_size_per_ledger_mbytes: int = 2_048
    managed_ledger_cursor_max_entries_per_ledger: int = 50_000
    managed_ledger_cursor_rollover_time_in_seconds: int = 14_400

    # --- copies of closed ledgers elsewhere (docs/guides/offload.md)
    managed_ledger_offload_driver: str = ""  # "": none by default; filesystem
    file_system_uri: str = ""  # file:///DIRECTORY of the copies; standalone: dataDir/offloaded
    managed_ledger_offload_max_threads: int = 2  # ledgers that are copied at the same time
    managed_ledger_offload_read_threads: int = 2
    managed_ledger_offload_auto_trigger_size_threshold_bytes: int = -1  # of a topic; -1: never
    managed_ledger_offload_threshold_in_seconds: int = -1  # since the close; -1: never
    managed_ledger_offload_deletion_lag_ms: int = 14_400_000  # bookies keep theirs; -1: for ever
    managed_ledger_offload_max_block_size_in_bytes: int = 64 * 1024 * 1024
    managed_ledger_data_read_priority: str = "tiered-storage-first"

    # --- bookies of a cluster: magnetar broker (docs/operate/bookies.md)
    bookkeeper_metadata_service_uri: str = ""  # of Apache BookKeeper; "": on our bookies
    bookkeeper_client_timeout_in_seconds: int = 30  # until a silent bookie counts as failed
    # PEM files; TLS is used when one of them is set. Pulsar's keys are bookkeeperTLS...
    bookkeeper_tls_trust_certs_file_path: str = ""  # authorities of the bookies' certificates
    bookkeeper_tls_certificate_file_path: str = ""
    bookkeeper_tls_key_file_path: str = ""
    bookkeeper_tls_client_authentication: bool = False  # then the certificate must be there
    bookkeeper_client_authentication_plugin: str = ""  # token; sasl for Apache's bookies
    bookkeeper_client_authentication_parameters_name: str = ""  # what the next one is, with SASL
    # file:///path of the token that bookies are shown, or token:...; the section's name with SASL
    bookkeeper_client_authentication_parameters: str = field(default="", repr=False)
    bookkeeper_client_login_config_path: str = ""  # own key: a JAAS file
    # which bookies; bookkeeper_<key of BookKeeper's client> as in Pulsar. "": as the next two say
    bookkeeper_ensemble_placement_policy: str = ""  # random, rack-aware, zone-aware
    bookkeeper_client_rackaware_policy_enabled: bool = True
    bookkeeper_client_regionaware_policy_enabled: bool = False
    bookkeeper_client_min_num_racks_per_write_quorum: int = 2
    bookkeeper_client_enforce_min_num_racks_per_write_quorum: bool = False
    bookkeeper_min_num_zones_per_write_quorum: int = 2
    bookkeeper_desired_num_zones_per_write_quorum: int = 3
    bookkeeper_enforce_strict_zoneaware_placement: bool = True
    bookkeeper_enforce_min_num_fault_domains_for_write: bool = False  # acks must span them
    bookkeeper_opportunistic_striping: bool = False  # rather a smaller ensemble than none
    bookkeeper_repp_minimum_regions_for_durability: int = 2
    # Only bookies of these groups get new ledgers; commas between. Groups: racks-info.
    bookkeeper_client_isolation_groups: str = ""
    bookkeeper_client_secondary_isolation_groups: str = ""  # where those have too few bookies
    # Topics of namespaces without groups of their own are kept on bookies that are in no group.
    strict_bookie_affinity_enabled: bool = False
    bookkeeper_disk_weight_based_placement_enabled: bool = False
    bookkeeper_bookie_max_weight_multiple_for_weight_based_placement: float = 3.0
    bookkeeper_client_get_bookie_info_interval_seconds: int = 86_400
    bookkeeper_client_get_bookie_info_retry_interval_seconds: int = 60
    bookkeeper_client_health_check_enabled: bool = True  # quarantine of bookies that fail
    bookkeeper_client_health_check_interval_seconds: int = 60
    bookkeeper_client_health_check_error_threshold_per_interval: int = 5
    bookkeeper_client_health_check_quarantine_time_in_seconds: int = 1_800
    bookkeeper_client_quarantine_ratio: float = 1.0
    # reading and writing ledgers (docs/operate/bookies.md)
    bookkeeper_client_reorder_read_sequence_enabled: bool = True  # by zone, load and failures
    bookkeeper_network_location: str = ""  # own key: /zone/... of this broker
    zone: str = ""  # own keys: instead of its parts, as a bookie's (docs/guides/containers.md)
    upgrade_domain: str = ""
    node_name: str = ""
    zone_label: str = ZONE_LABEL
    bookkeeper_reorder_threshold_pending_requests: int = 0  # 0: any number is fine
    bookkeeper_bookie_failure_history_expiration_m_sec: int = 60_000  # how long failures count
    bookkeeper_enable_sticky_reads: bool = True
    bookkeeper_client_speculative_read_timeout_in_millis: int = 0  # 0: never
    bookkeeper_max_speculative_read_timeout: int = 2_000  # ms
    bookkeeper_explicit_lac_interval_in_mills: int = 0  # 0: never
    bookkeeper_add_entry_quorum_timeout_sec: int = -1  # -1: never
    bookkeeper_max_allowed_ensemble_changes: int = 2_147_483_647
    bookkeeper_delay_ensemble_change: bool = False

    # --- the embedded bookie (own keys, bookkeeper.conf's names where one exists)
    bookie_port: int = 0  # for readers of entries, opened when one asks; 0: any; empty or -1: never
    journal_max_size_mb: int = 64  # small, so that recycled (already zeroed) ones come soon
    journal_max_group_bytes: int = 4 * 1024 * 1024
    db_storage_write_cache_max_size_mb: int = 64
    entry_log_size_limit_mb: int = 512
    flush_interval_ms: int = 30_000
    gc_wait_time_ms: int = 900_000  # full rounds; deletions are collected at once anyway
    disk_usage_threshold: float = 0.95

    # --- HTTP, WebSocket
    web_socket_service_enabled: bool = True
    web_socket_max_text_frame_size: int = 1024 * 1024  # bytes of one JSON text frame
    web_socket_session_idle_timeout_millis: int = 300_000
    web_socket_ping_duration_seconds: int = -1  # -1: only the client pings
    web_socket_buffer_bytes: int = 64 * 1024  # own key: with more unsent none are read for a client
    http_max_request_size: int = 64 * 1024 * 1024  # bytes; -1: no limit
    http_max_request_header_size: int = 8192  # bytes of the request line and all headers
    http_max_request_headers: int = 100  # own key
    http_request_header_timeout_millis: int = 10_000  # own key: until the headers are complete
    http_request_body_min_bytes_per_second: int = 256  # own key: a slower sender gets 408; 0: any
    http_response_stall_timeout_millis: int = 300_000  # own key: nothing of an answer is taken
    http_server_idle_timeout: int = 75_000  # ms that a connection may be kept unused
    http_server_accept_queue_size: int = 8192
    max_http_server_connections: int = 10_000  # WebSockets too; 0: a quarter of the open files
    max_http_server_connections_per_ip: int = 0  # own key; 0: no limit
    max_concurrent_http_requests: int = 0  # more: 503; 0: as many as there are connections
    http_requests_limit_enabled: bool = False
    http_requests_max_per_second: float = 100.0  # of each client address
    http_server_gzip_compression_excluded_paths: str = ""  # prefixes, ^patterns; ^.*: never
    web_service_allowed_hosts: str = ""  # own key: names, *.suffix, *
    web_console_enabled: bool = True  # own key
    web_service_trust_x_forwarded_for: bool = False  # believe X-Forwarded-Proto of any client
    web_console_read_only: bool = False  # own key
    web_console_messages: str = "full"  # own key: full, metadata, off
    web_console_masked_fields: str = ""  # own key: names of fields, with commas
    web_console_environment: str = ""  # own key: "production:red", shown beside the cluster's name
    cors_allowed_origins: str = ""  # own key: comma list or *; "": browsers of other sites may not
    cors_allowed_methods: str = "GET,HEAD,POST,PUT,DELETE,OPTIONS"
    cors_allowed_headers: str = "*"
    cors_max_age_seconds: int = 600
    expose_topic_level_metrics_in_prometheus: bool = True
    expose_consumer_level_metrics_in_prometheus: bool = False
    expose_producer_level_metrics_in_prometheus: bool = False
    split_topic_and_partition_label_in_prometheus: bool = False
    stats_update_frequency_in_secs: int = 60
    loop_stall_threshold_millis: int = (
        0  # own key: longer turns of the loop are told; 0: not looked
    )
    rest_consumer_sessions_max: int = 10_000  # own key
    rest_consumer_session_timeout_millis: int = 60_000  # own key: unused this long -> closed
    rest_consumer_buffer_bytes: int = 4 * 1024 * 1024  # own key: undelivered bytes per session

    # --- TLS (docs/guides/security.md): PEM files
    tls_enabled: bool = False  # what old broker.conf files say beside the ports, which count
    broker_service_port_tls: int = -1  # -1: no TLS; 0: any free port
    web_service_port_tls: int = -1
    tls_certificate_file_path: str = ""
    tls_key_file_path: str = ""
    tls_trust_certs_file_path: str = ""  # authorities of clients'; "": none are asked for
    tls_allow_insecure_connection: bool = False  # client certificates aren't looked at
    tls_require_trusted_client_cert_on_connect: bool = False
    tls_protocols: str = ""  # of TLSv1.2 and TLSv1.3; "": both
    tls_ciphers: str = ""  # of TLS 1.2, OpenSSL's or IANA's names; "": good ones
    tls_cert_refresh_check_duration_sec: int = 300  # how often changed files are noticed; 0: never

    # --- roles of clients (docs/guides/security.md)
    authentication_enabled: bool = False
    authentication_providers: str = ""  # comma list of token, tls, basic, openid, or Pulsar's names
    anonymous_user_role: str = ""  # of clients that show no credentials; "": they are refused
    proxy_roles: str = ""  # may speak for others; each also needs the right itself
    authenticate_original_auth_data: bool = False
    authenticate_metrics_endpoint: bool = False
    authentication_refresh_check_seconds: int = 60
    max_unauthenticated_connections: int = 1_000  # own key: binary; more: the oldest is cut; 0: any
    # file: or data: URL, path or base64, as for all keys
    token_secret_key: str = field(default="", repr=False)
    token_previous_secret_key: str = field(default="", repr=False)  # own keys: good as well
    token_previous_public_key: str = ""
    token_public_key: str = ""
    token_public_alg: str = ""
    token_auth_claim: str = "sub"
    token_audience_claim: str = ""
    token_audience: str = ""
    token_allowed_clock_skew_seconds: int = 0
    basic_auth_conf: str = field(default="", repr=False)  # a password file, in the same forms
    open_id_allowed_token_issuers: str = ""
    open_id_allowed_audiences: str = ""
    open_id_role_claim: str = "sub"
    open_id_token_issuer_trust_certs_file_path: str = ""
    open_id_accepted_time_leeway_seconds: int = 0
    open_id_require_issuers_use_https: bool = True
    open_id_http_read_timeout_millis: int = 10_000
    open_id_cache_expiration_seconds: int = 86_400
    open_id_cache_refresh_after_write_seconds: int = 64_800
    open_id_key_id_cache_miss_refresh_seconds: int = 300

    # --- this broker's role at the others of its cluster (docs/guides/security.md)
    broker_client_tls_enabled: bool = False  # they are asked over HTTPS
    broker_client_trust_certs_file_path: str = ""  # authorities of theirs; "": the system's
    broker_client_authentication_plugin: str = ""  # token, basic, tls, oauth2, or Pulsar's names
    broker_client_authentication_parameters: str = field(default="", repr=False)

    # --- what a client may do (docs/guides/security.md)
    authorization_enabled: bool = False
    authorization_provider: str = ""
    super_user_roles: str = ""  # comma list; they may do everything
    authorization_allow_wildcards_matching: bool = False  # roles of grants: x* and *x

    def __post_init__(self) -> None:
        try:
            BalancerConfig.__post_init__(self)  # a class with slots has no super() here
        except InvalidSettingError as error:
            raise ConfigError(str(error)) from error
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{key_of(name)}={getattr(self, name)!r}: not one of {', '.join(choices)}"
                )
        if strange := self.subscription_types_enabled - _DEFAULTS["subscription_types_enabled"]:
            raise ConfigError(f"subscriptionTypesEnabled: no type {', '.join(sorted(strange))}")
        self._check_listeners()
        self._check_ledgers_uri()
        for name in _ALL_PORTS:
            if not -1 <= getattr(self, name) <= 65_535:
                raise ConfigError(f"{key_of(name)}={getattr(self, name)}: not a port number")
        for name in _PORTS:
            if getattr(self, name) == getattr(self, f"{name}_tls") == -1:
                raise ConfigError(f"{key_of(name)} and {key_of(name)}Tls: neither is a port")
        if self.tls_enabled and self.broker_service_port_tls == self.web_service_port_tls == -1:
            key = key_of("tls_enabled")
            raise ConfigError(f"{key}=true needs brokerServicePortTls or webServicePortTls")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{key_of(name)}={getattr(self, name)}: must be positive")
        quorums = (
            self.managed_ledger_default_ensemble_size,
            self.managed_ledger_default_write_quorum,
            self.managed_ledger_default_ack_quorum,
        )
        if sorted(quorums, reverse=True) != list(quorums):
            raise ConfigError(
                f"ensemble size >= write quorum >= ack quorum is needed, not {quorums}"
            )
        try:
            if self.file_system_uri:
                path_of_uri(self.file_system_uri)
        except ValueError as error:
            raise ConfigError(f"fileSystemURI: {error}") from error
        try:
            host_names(self.web_service_allowed_hosts)
        except ValueError as error:
            raise ConfigError(f"webServiceAllowedHosts: {error}") from None
        if self.web_console_messages not in ("full", "metadata", "off"):
            raise ConfigError(
                f"webConsoleMessages: full, metadata or off, not {self.web_console_messages}"
            )
        try:
            check_place(self.zone, self.upgrade_domain)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if self.configuration_metadata_store_url not in ("", self.metadata_store_url):
            raise ConfigError(
                f"configurationMetadataStoreUrl={self.configuration_metadata_store_url}: only the"
                f" same as metadataStoreUrl={self.metadata_store_url}"
            )
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled=true needs authenticationEnabled=true: roles must be proved"
            )
        # Another provider has rules of its own: ours in its place would let the wrong ones in.
        if self.authorization_provider not in _AUTHORIZATION_PROVIDERS:
            raise ConfigError(
                f"authorizationProvider={self.authorization_provider}: only Pulsar's own exists"
            )

    def _check_ledgers_uri(self) -> None:
        try:
            if self.apache_store_url is None and self.managed_ledger_digest_type != "CRC32C":
                raise ConfigError(
                    f"managedLedgerDigestType={self.managed_ledger_digest_type}: our bookies"
                    " protect entries by CRC32C, only Apache's by others"
                )
        except ValueError as error:
            raise ConfigError(
                f"bookkeeperMetadataServiceUri={self.bookkeeper_metadata_service_uri}: {error}"
            ) from error

    def _check_listeners(self) -> None:
        try:
            listeners = parse_listeners(self.advertised_listeners)
        except ValueError as error:
            raise ConfigError(f"advertisedListeners: {error}") from None
        if (name := self.internal_listener_name) and name not in listeners:
            raise ConfigError(f"internalListenerName={name}: not one of advertisedListeners")

    @classmethod
    def load(
        cls,
        file: Path | None = None,
        environment: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        defaults: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Read the settings; a later source wins: defaults, file, environment, overrides.

        Args:
            file: a broker.conf (``key=value`` lines, ``#`` comments), UTF-8.
            environment: variables ``MAGNETAR_<key>``, ``PULSAR_PREFIX_<key>``; None: ours.
            overrides: keys and values of the command line.
            defaults: of this kind of process, where they aren't the attributes'.
        Raises:
            ConfigError: a value doesn't fit its key, or the file can't be read or parsed.
        """
        values: dict[str, Any] = {}
        former: dict[str, Any] = {}
        renamed: dict[str, tuple[str, Any]] = {}
        others = OtherSettings()
        for source, pairs in (
            ("defaults", defaults),
            (str(file), read_properties(file) if file else {}),
            ("environment", _environment_pairs(os.environ if environment is None else environment)),
            ("command line", dict(overrides)),
        ):
            for key, text in pairs.items():
                if (name := _FORMER_KEYS.get(normalize_key(key))) is not None:
                    former[name] = _parse_former(name, text, source)
                elif (name := _RENAMED_KEYS.get(normalize_key(key))) is not None:
                    renamed[name] = key, _parse(name, text, source)
                elif (name := _FIELD_OF_KEY.get(normalize_key(key))) is None:
                    others.add(key, text, source)
                else:
                    values[name] = _parse(name, text, source)
        values |= {
            name: value
            for name, value in former.items()
            if (value > 0 if _TYPES[name] is int else not values.get(name))
        }
        _add_renamed(values, renamed)
        try:
            others.end()
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return cls(**values)

    def with_keys(self, settings: Mapping[str, object]) -> Self:
        """These settings with some changed, named by Pulsar's keys or by attributes.

        Raises:
            ConfigError: no such setting (a typing error would change nothing), or a bad value.
        """
        values: dict[str, Any] = {}
        renamed: dict[str, tuple[str, Any]] = {}
        for key, value in settings.items():
            if (name := _RENAMED_KEYS.get(normalize_key(key))) is not None:
                renamed[name] = key, _parse(name, _text(value), "argument")
            elif (name := _FIELD_OF_KEY.get(normalize_key(key))) is None:
                raise ConfigError(f"{key}: no such setting")
            else:
                values[name] = _parse(name, _text(value), "argument")
        _add_renamed(values, renamed)
        return dataclasses.replace(self, **values)

    @property
    def advertised_host(self) -> str:
        """Host that clients are told to connect to."""
        if self.advertised_address:
            return self.advertised_address
        # localhost as Pulsar's standalone says: a client that was given this name finds itself
        # already connected to what a lookup names, and doesn't connect (and log in) twice.
        local = self.bind_address in ("", "0.0.0.0", "::", "127.0.0.1", "::1")
        return "localhost" if local else self.bind_address

    @property
    def digest_type(self) -> str:
        """Of new ledgers, as their metadata call it."""
        return DIGEST_NAMES[self.managed_ledger_digest_type]

    @property
    def apache_store_url(self) -> str | None:
        """See ``pulsar_settings.apache_store_url``."""
        return apache_store_url(self.bookkeeper_metadata_service_uri, self.metadata_store_url)

    @property
    def data_path(self) -> Path:
        return Path(self.data_dir)

    def as_keys(self, *, changed: bool = False) -> dict[str, str]:
        """Every setting, or those that differ from their defaults, as Pulsar's key and text.

        Secrets are masked.
        """
        default = type(self)() if changed else None
        return {
            key_of(name): "******" if name in _SECRETS else _text(getattr(self, name))
            for name in _TYPES
            if default is None or getattr(self, name) != getattr(default, name)
        }


def read_properties(file: Path) -> dict[str, str]:
    """Read ``key=value`` lines; blank lines and lines that start with # or ! are skipped.

    Raises:
        ConfigError: unreadable file, or a line without "=".
    """
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    pairs: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not (stripped := line.strip()) or stripped[0] in "#!":
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            raise ConfigError(f"{file}:{number}: expected key=value, found {stripped!r}")
        pairs[key.strip()] = value.strip()
    return pairs


@functools.cache
def key_of(name: str) -> str:
    """Pulsar's key of an attribute: ``max_message_size`` -> ``maxMessageSize``."""
    first, *rest = name.split("_")
    return first + "".join(
        word.upper() if word in {"mb", "gb", "cpu", "ttl"} else word.capitalize() for word in rest
    )


def _environment_pairs(environment: Mapping[str, str]) -> dict[str, str]:
    """Raises ConfigError: variables that contradict each other."""
    known = _FIELD_OF_KEY.keys() | _FORMER_KEYS | _RENAMED_KEYS.keys() | OTHER_KEYS.keys()
    try:
        found = settings_among(environment, PREFIXES, lambda key: normalize_key(key) in known)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    # Nothing else begins like this: a typing error is told.
    for name in sorted(environment):
        key = name.removeprefix(PREFIXES[0])
        if key != name and normalize_key(key) not in known:
            found[key] = environment[name]
    return found


def _parse(name: str, text: str, source: str) -> object:
    kind = _TYPES[name]
    try:
        if name in _ALL_PORTS and text == "":
            return -1  # Pulsar's way to switch a port off
        if name in _LISTS:
            return frozenset(filter(None, map(str.strip, text.split(",")))) or _DEFAULTS[name]
        # Pulsar writes an empty value for "default"; of texts only these are never empty.
        never_empty = kind not in (str, bool) or name in _CHOICES or name == "cluster_name"
        return _DEFAULTS[name] if text == "" and never_empty else value_of(kind, text)
    except ValueError as error:
        raise ConfigError(f"{key_of(name)}={text!r} ({source}): {error}") from error


def _parse_former(name: str, text: str, source: str) -> object:
    if _TYPES[name] is int:
        return _parse(name, text or "-1", source)
    return f"zk:{text.removeprefix('zk:')}" if text else ""


def _add_renamed(values: dict[str, Any], renamed: Mapping[str, tuple[str, Any]]) -> None:
    """Add to ``values`` what was set by an old key: field -> the key as it was written, the value.

    Raises:
        ConfigError: the new key has another value.
    """
    for name, (key, value) in renamed.items():
        if values.setdefault(name, value) != value:
            raise ConfigError(
                f"{key}={_text(value)}: the old name of {key_of(name)}, which is"
                f" {_text(values[name])}; remove {key}"
            )
        logger.warning("%s is the old name of %s: rename it", key, key_of(name))


def _text(value: object) -> str:
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def without_effect(config: BrokerConfig) -> str:
    """A warning of settings of authentication while it is off; "": none is given.

    An operator that names keys wants them asked for; without one line every client gets in.
    """
    if config.authentication_enabled:
        return ""
    given = [
        key_of(each.name)
        for each in _FIELDS
        if (each.name.startswith(_AUTHENTICATION) or each.name in _ROLES)
        and each.name != "authentication_enabled"
        and getattr(config, each.name) not in (each.default, "")
    ]
    if not given:
        return ""
    return f"{', '.join(given)}: without effect, because authenticationEnabled is not true"


_FIELDS = dataclasses.fields(BrokerConfig)
_TYPES: dict[str, type] = get_type_hints(BrokerConfig)
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in _FIELDS}
_FIELD_OF_KEY = {normalize_key(key_of(field.name)): field.name for field in _FIELDS}
