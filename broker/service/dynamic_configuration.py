"""Settings that an admin changes while the broker runs (Pulsar's dynamic configuration).

Stored as one JSON object, key to text, at Pulsar's path: every broker of the cluster follows it,
and a restarted one applies it on top of its file. Only settings whose every use reads the current
value are dynamic (``tests/unit/broker/service/test_dynamic_configuration.py`` looks for others).
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import orjson

from magnetar.broker.config import BrokerConfig, ConfigError, key_of
from magnetar.broker.errors import BrokerMetadataError, PreconditionFailedError
from magnetar.broker.pulsar_settings import lacking_error
from magnetar.broker.service.store_follower import StoreFollower
from magnetar.loadbalance.config import BalancerConfig
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.recipes import update
from magnetar.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

PATH: Final = "/admin/configuration"

_BALANCER_FIELDS: Final = tuple(
    # Placement and shedding are chosen together, and for all brokers at once: at a start.
    each.name
    for each in dataclasses.fields(BalancerConfig)
    if not each.name.endswith("strategy")
)
DYNAMIC_FIELDS: Final = (
    # read where they are used
    *("force_delete_namespace_allowed", "force_delete_tenant_allowed"),
    *("is_allow_auto_update_schema_enabled", "subscription_key_shared_enable"),
    *("subscription_types_enabled", "broker_service_compaction_rate_in_bytes"),
    *("max_concurrent_lookup_request", "max_message_publish_buffer_size_in_mb"),
    *("max_namespaces_per_tenant", "max_tenants", "max_num_partitions_per_partitioned_topic"),
    *("broker_delete_inactive_topics_frequency_seconds", "broker_shutdown_timeout_ms"),
    *("default_number_of_namespace_bundles", "flow_or_qps_difference_threshold_percentage"),
    # read by the leader and the reporter, which are made anew
    *_BALANCER_FIELDS,
    # read through Policies, which are made anew
    *("allow_auto_subscription_creation", "allow_auto_topic_creation"),
    *("allow_auto_topic_creation_type", "default_num_partitions", "max_topics_per_namespace"),
    *("broker_delete_inactive_topics_enabled", "broker_delete_inactive_topics_mode"),
    "broker_delete_inactive_topics_max_inactive_duration_seconds",
    *("max_producers_per_topic", "max_consumers_per_topic", "max_consumers_per_subscription"),
    *("max_subscriptions_per_topic", "ttl_duration_default_in_seconds"),
    *("default_retention_time_in_minutes", "default_retention_size_in_mb"),
    *("backlog_quota_default_limit_bytes", "backlog_quota_default_limit_second"),
    "backlog_quota_default_retention_policy",
    *("max_unacked_messages_per_consumer", "max_unacked_messages_per_subscription"),
    *("dispatcher_max_read_batch_size", "delayed_delivery_max_index_size_in_bytes"),
    *("max_publish_rate_per_topic_in_messages", "max_publish_rate_per_topic_in_bytes"),
    *("dispatch_throttling_rate_per_topic_in_msg", "dispatch_throttling_rate_per_topic_in_byte"),
    "dispatch_throttling_rate_per_subscription_in_msg",
    "dispatch_throttling_rate_per_subscription_in_byte",
    "dispatch_throttling_rate_relative_to_publish_rate",
    *("subscribe_throttling_rate_per_consumer", "subscribe_rate_period_per_consumer_in_second"),
)
_MAY_BE_NEGATIVE: Final = frozenset(
    {
        *("default_retention_time_in_minutes", "default_retention_size_in_mb"),  # -1: for ever
        *("backlog_quota_default_limit_bytes", "backlog_quota_default_limit_second"),  # -1: none
        "load_balancer_max_number_of_bundles_in_bundle_load_report",  # -1: all of them
        *("max_unload_bundle_num_per_shedding", "load_balancer_namespace_bundle_max_sessions"),
    }
)
_FIELD_OF_KEY: Final = {key_of(field): field for field in DYNAMIC_FIELDS}


class DynamicConfiguration:
    """Keeps a broker's settings equal to its own, changed by what the store says."""

    def __init__(
        self,
        store: MetadataStore,
        base: BrokerConfig,
        apply: Callable[[BrokerConfig], Awaitable[None]],
    ) -> None:
        """
        Args:
            base: the settings the broker was started with.
            apply: takes all settings whenever one has changed; they hold when it returns.
        """
        self._store, self._base, self._apply = store, base, apply
        self._current = base
        self._told: set[tuple[str, str]] = set()  # stored values that can't be used
        self._reading = asyncio.Lock()
        self._follower = StoreFollower(
            store, (PATH,), lambda path: path if path == PATH else None, self._follow
        )
        self.close = self._follower.close

    @staticmethod
    def names() -> list[str]:
        """Keys of the settings that can be changed."""
        return list(_FIELD_OF_KEY)

    async def values(self) -> dict[str, str]:
        """What was set, as it was set. Raises MetadataError, BrokerMetadataError."""
        found = await self._store.get(PATH)
        return _decode(None if found is None else found.value)

    async def set(self, key: str, text: str) -> None:
        """Store a value; it holds here when this returns.

        Raises:
            PreconditionFailedError: not dynamic, or not a value of its type and limits.
        """
        if key not in _FIELD_OF_KEY:
            reason = "Can't update non-dynamic configuration"
            if (error := lacking_error(key, text)) is not None:
                reason += f": {key}: {error}"
            raise PreconditionFailedError(reason)
        try:
            _with(self._base, key, text)
        except ConfigError as error:
            raise PreconditionFailedError(str(error)) from error
        await self._change(lambda values: {**values, key: text})

    async def delete(self, key: str) -> None:
        """Back to what the broker was started with; nothing set is no error.

        Raises:
            PreconditionFailedError: not dynamic.
        """
        if key not in _FIELD_OF_KEY:
            raise PreconditionFailedError("Can't delete non-dynamic configuration")
        await self._change(
            lambda values: {name: text for name, text in values.items() if name != key}
        )

    async def _change(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        await update(self._store, PATH, lambda value: orjson.dumps(change(_decode(value))))
        await self.renew()

    async def _follow(self, stale: Iterable[str]) -> Iterable[str]:
        try:
            await self.renew()
        except (MetadataError, BrokerMetadataError) as error:
            # The settings of now hold on until the store can be read again.
            logger.warning("dynamic configuration can't be read: %s", error)
            return () if isinstance(error, BrokerMetadataError) else stale
        return ()

    async def renew(self) -> None:
        """Apply what is stored. Raises MetadataError, BrokerMetadataError."""
        async with self._reading:  # an older answer never overtakes a newer one
            config = self._effective(await self.values())
            if config != self._current:
                changed = [
                    key
                    for key, field in _FIELD_OF_KEY.items()
                    if getattr(config, field) != getattr(self._current, field)
                ]
                logger.info("dynamic configuration: %s", ", ".join(changed))
                await self._apply(config)
                self._current = config  # only now: what failed is tried with the next news

    def _effective(self, values: Mapping[str, str]) -> BrokerConfig:
        """Without stored values that this broker can't use; each is told once.

        They never end a start: they are the cluster's, and would end all of its brokers at once
        (docs/decisions/0042).
        """
        config = self._base
        for key, text in values.items():
            try:
                config = _with(config, key, text)
            except ConfigError as error:
                if (key, text) not in self._told:
                    logger.warning("dynamic configuration: ignored %s: %s", key, error)
                self._told.add((key, text))
        return config


def _with(config: BrokerConfig, key: str, text: str) -> BrokerConfig:
    """Raises ConfigError."""
    if (field := _FIELD_OF_KEY.get(key)) is None:
        raise ConfigError(lacking_error(key, text) or "not a dynamic setting")
    changed = config.with_keys({key: text})
    value = getattr(changed, field)
    if isinstance(value, int | float) and value < (-1 if field in _MAY_BE_NEGATIVE else 0):
        raise ConfigError(f"{key}={value}: is too small")
    return changed


def _decode(value: bytes | None) -> dict[str, str]:
    if not value:
        return {}
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise BrokerMetadataError(f"{PATH} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BrokerMetadataError(f"{PATH} is not a JSON object")
    return {str(key): str(text) for key, text in document.items()}
