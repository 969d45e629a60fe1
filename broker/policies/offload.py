"""The policies of copies of ledgers elsewhere: Pulsar's OffloadPolicies.

One object of the namespace or the topic holds them; the thresholds and the lag of a namespace also
have paths of their own, which write into it. What holds is decided field by field: topic,
namespace, what a namespace was created with, broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.config import BrokerConfig
from magnetar.broker.policies.errors import PolicyRangeError, UnsupportedPolicyError
from magnetar.broker.policies.values import ANY_LONG, Choice, Integer, Shape, ShapeField, Text
from magnetar.managed_ledger.offload.config import FILESYSTEM, URI, OffloadConfig, path_of_uri

if TYPE_CHECKING:
    from magnetar.broker.policies.effective import EffectivePolicies

FIELD: Final = "offload_policies"
THRESHOLD_BYTES: Final = "managedLedgerOffloadThresholdInBytes"
THRESHOLD_SECONDS: Final = "managedLedgerOffloadThresholdInSeconds"
DELETION_LAG: Final = "managedLedgerOffloadDeletionLagInMillis"
_DRIVER: Final = "managedLedgerOffloadDriver"
_PRIORITY: Final = "managedLedgerOffloadedReadPriority"
_BLOCK: Final = "managedLedgerOffloadMaxBlockSizeInBytes"
_DRIVERS: Final = ("S3", "aws-s3", "google-cloud-storage", FILESYSTEM, "azureblob", "aliyun-oss")
_LEGACY: Final = {
    THRESHOLD_BYTES: "offload_threshold",
    THRESHOLD_SECONDS: "offload_threshold_in_seconds",
    DELETION_LAG: "offload_deletion_lag_ms",
}

_LONG: Final = ShapeField(ANY_LONG)
_TEXT: Final = ShapeField(Text())
_MEBIBYTE: Final = 1 << 20


def _count(default: int) -> ShapeField:
    return ShapeField(Integer(), default)


def _check_driver(value: dict[str, Any]) -> None:
    driver = value.get(_DRIVER)
    if driver not in _DRIVERS:
        raise PolicyRangeError(f"The driver is not supported, support value: {','.join(_DRIVERS)}")
    if driver != FILESYSTEM:
        if not any(value.get(name) for name in _BUCKETS):
            raise PolicyRangeError("The bucket must be specified for namespace offload.")
        raise UnsupportedPolicyError(
            f"The offload driver {driver} is not available in this version, {FILESYSTEM} is"
        )
    value.update(_KINDS, fileSystemDriver=True)


_BUCKETS: Final = (
    *("s3ManagedLedgerOffloadBucket", "gcsManagedLedgerOffloadBucket"),
    "managedLedgerOffloadBucket",
)
_KINDS: Final = {"s3Driver": False, "gcsDriver": False, "fileSystemDriver": False}
OFFLOAD: Final = Shape(
    {
        "offloadersDirectory": ShapeField(Text(), "./offloaders"),
        _DRIVER: _TEXT,
        "managedLedgerOffloadMaxThreads": _count(2),
        "managedLedgerOffloadReadThreads": _count(2),
        "managedLedgerOffloadPrefetchRounds": _count(1),
        THRESHOLD_SECONDS: _LONG,
        THRESHOLD_BYTES: _LONG,
        DELETION_LAG: _LONG,
        _PRIORITY: ShapeField(Choice(("tiered-storage-first", "bookkeeper-first"))),
        "managedLedgerExtraConfigurations": ShapeField(Shape({}), {}),
        **{
            f"s3ManagedLedgerOffload{name}": _TEXT
            for name in ("Region", "Bucket", "ServiceEndpoint", "Role")
        },
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes": _count(64 * _MEBIBYTE),
        "s3ManagedLedgerOffloadReadBufferSizeInBytes": _count(_MEBIBYTE),
        "s3ManagedLedgerOffloadRoleSessionName": ShapeField(Text(), "pulsar-s3-offload"),
        **{
            f"gcsManagedLedgerOffload{name}": _TEXT
            for name in ("Region", "Bucket", "ServiceAccountKeyFile")
        },
        "gcsManagedLedgerOffloadMaxBlockSizeInBytes": _count(128 * _MEBIBYTE),
        "gcsManagedLedgerOffloadReadBufferSizeInBytes": _count(_MEBIBYTE),
        "fileSystemProfilePath": _TEXT,
        URI: _TEXT,
        **{
            f"managedLedgerOffload{name}": _TEXT for name in ("Bucket", "Region", "ServiceEndpoint")
        },
        _BLOCK: ShapeField(Integer()),
        "managedLedgerOffloadReadBufferSizeInBytes": ShapeField(Integer()),
    },
    _check_driver,
)


OFFLOAD_EXAMPLE: Final = OFFLOAD.parse(
    {_DRIVER: FILESYSTEM, THRESHOLD_BYTES: 1 << 30, DELETION_LAG: 3_600_000}, FIELD
)


def unset_offload() -> dict[str, Any]:
    """An object in which nothing is set: what a namespace's threshold alone is written into."""
    value = {k: x.default for k, x in OFFLOAD.fields.items() if x.default is not None}
    return {**value, **_KINDS}


def check_place(value: Mapping[str, Any], config: BrokerConfig) -> None:
    """Copies go to the broker's directory or below it: a policy must not name any file there is.

    Raises:
        PolicyRangeError: elsewhere, or the broker has none.
    """
    if not config.file_system_uri:
        raise PolicyRangeError("This broker has no place for copies: fileSystemURI is not set")
    wanted = value.get(URI)
    if not wanted:
        return
    root = path_of_uri(config.file_system_uri)
    try:
        path = path_of_uri(wanted)
    except ValueError as error:
        raise PolicyRangeError(f"{URI}: {error}") from error
    if root != path and root not in path.parents:
        raise PolicyRangeError(f"{URI}: {wanted} is not below {root.as_uri()}, the broker's")


def _fields(policies: EffectivePolicies) -> dict[str, Any]:
    """What holds, field by field; only what anybody set."""
    fields: dict[str, Any] = {}
    for name, legacy in _LEGACY.items():
        value = policies.document.get(legacy)
        if type(value) is int and value >= 0:
            fields[name] = value
    for layer in reversed(policies.values(FIELD)):
        if isinstance(layer, Mapping):
            fields.update({key: item for key, item in layer.items() if item is not None})
    return fields


def effective_offload(policies: EffectivePolicies) -> OffloadConfig:
    """What holds for a topic."""
    config, fields = policies.config, _fields(policies)

    def number(name: str, default: int) -> int:
        value = fields.get(name)
        return value if type(value) is int else default

    driver = fields.get(_DRIVER) or config.managed_ledger_offload_driver
    block_bytes = number(_BLOCK, 0)
    return OffloadConfig(
        str(driver),
        ((URI, str(fields.get(URI) or config.file_system_uri)),) if driver else (),
        number(THRESHOLD_BYTES, config.managed_ledger_offload_auto_trigger_size_threshold_bytes),
        number(THRESHOLD_SECONDS, config.managed_ledger_offload_threshold_in_seconds),
        number(DELETION_LAG, config.managed_ledger_offload_deletion_lag_ms),
        (fields.get(_PRIORITY) or config.managed_ledger_data_read_priority) == "bookkeeper-first",
        block_bytes if block_bytes > 0 else config.managed_ledger_offload_max_block_size_in_bytes,
    )


def applied_offload(policies: EffectivePolicies) -> dict[str, Any] | None:
    """What holds in the end, as an object; None: nothing is set."""
    fields, held = _fields(policies), effective_offload(policies)
    if not fields and not held.driver:
        return None
    applied = {**unset_offload(), **fields}
    if held.driver:
        applied |= {_DRIVER: held.driver, "fileSystemDriver": True, **dict(held.location)}
    return applied | {
        THRESHOLD_BYTES: held.threshold_bytes,
        THRESHOLD_SECONDS: held.threshold_s,
        DELETION_LAG: held.deletion_lag_ms,
        _PRIORITY: "bookkeeper-first" if held.bookies_first else "tiered-storage-first",
    }
