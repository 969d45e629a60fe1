"""Topic names: parsing, canonical form, partitions, the managed ledger's name.

Source: docs/spec/wire-protocol.md, "Topic names".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from urllib.parse import quote, unquote

# Not "." or "..": they are no metadata path.
_PART = re.compile(r"(?!\.{1,2}\Z)[-=:.\w]+\Z", re.ASCII)
PARTITION_MARK = "-partition-"
PENDING_ACK_SUFFIX = "__transaction_pending_ack"
_COORDINATOR_LOCALS = ("__transaction_log_", "transaction_coordinator_assign")
_SYSTEM_LOCALS = ("__change_events", "__transaction_buffer_snapshot", "__transaction_log_")
_SYSTEM_LOCALS_EXACT = {
    "__transaction_buffer_snapshot_segments",
    "__transaction_buffer_snapshot_indexes",
}


class InvalidTopicNameError(ValueError):
    """The text is no topic name; the message says which part is wrong."""


def is_transaction_log(namespace: str, local: str) -> bool:
    """See `TopicName.is_transaction_log`; ``local`` may be percent-encoded."""
    return local.endswith(PENDING_ACK_SUFFIX) or (
        namespace == "pulsar/system" and local.startswith(_COORDINATOR_LOCALS)
    )


def valid_namespace_part(text: str) -> bool:
    """Whether ``text`` may name a tenant, a cluster or a namespace's local part."""
    return _PART.match(text) is not None


@dataclass(frozen=True, slots=True)
class TopicName:
    """A parsed topic name; build it with ``TopicName.parse``.

    ``str(name)`` is the canonical full name, the only form used as a key.
    """

    domain: str
    """``persistent`` or ``non-persistent``."""
    tenant: str
    namespace_local: str
    local: str
    full: str
    partition_index: int
    """N of a name that ends in ``-partition-N``, else -1."""

    @staticmethod
    def parse(text: str) -> TopicName:
        """Parse a short or full name.

        Raises:
            InvalidTopicNameError: bad domain, empty part, illegal character, wrong part count.
        """
        return _parse(text)

    def __str__(self) -> str:
        return self.full

    @property
    def is_persistent(self) -> bool:
        return self.domain == "persistent"

    @property
    def namespace(self) -> str:
        """``tenant/namespace``."""
        return f"{self.tenant}/{self.namespace_local}"

    @property
    def is_partition(self) -> bool:
        return self.partition_index >= 0

    @property
    def base(self) -> TopicName:
        """The partitioned topic this partition belongs to; itself when it is no partition."""
        if self.partition_index < 0:
            return self
        return _parse(self.full[: self.full.rindex(PARTITION_MARK)])

    def partition(self, index: int) -> TopicName:
        """The name of partition ``index`` of this topic."""
        return _parse(f"{self.full}{PARTITION_MARK}{index}")

    @property
    def ml_name(self) -> str:
        """Name of the managed ledger: ``tenant/ns/persistent/<percent-encoded local name>``."""
        return f"{self.tenant}/{self.namespace_local}/{self.domain}/{quote(self.local, safe='')}"

    @staticmethod
    def from_ml_name(ml_name: str) -> TopicName:
        """The inverse of ``ml_name``."""
        tenant, namespace, domain, local = ml_name.split("/", 3)
        return _parse(f"{domain}://{tenant}/{namespace}/{unquote(local)}")

    @property
    def is_transaction_log(self) -> bool:
        """No topic: a managed ledger of the broker's own, or where a coordinator is."""
        return is_transaction_log(self.namespace, self.local)

    @property
    def is_system(self) -> bool:
        """Topics that lists and watchers leave out."""
        local = self.base.local
        return (
            local in _SYSTEM_LOCALS_EXACT
            or local.startswith(_SYSTEM_LOCALS)
            or local.endswith(PENDING_ACK_SUFFIX)
            or self.namespace == "pulsar/system"
            or (local == "healthcheck" and self.tenant == "pulsar")
        )


def is_system_topic(full: str) -> bool:
    """``TopicName.is_system`` of a full name; to take each name apart costs ten times as much."""
    maybe = "__" in full or "healthcheck" in full or "://pulsar/system/" in full
    return maybe and _parse(full).is_system


_INDEX_MAX, _INDEX_DIGITS_MAX = 2**31 - 1, 10


@lru_cache(maxsize=16_384)
def _parse(text: str) -> TopicName:
    domain, separator, rest = text.partition("://")
    if not separator:
        parts = text.split("/")
        if len(parts) == 1:
            parts = ["public", "default", *parts]
        elif len(parts) != 3:
            raise InvalidTopicNameError(
                f"Invalid short topic name '{text}', it should be in the format of "
                "<tenant>/<namespace>/<topic> or <topic>"
            )
        domain = "persistent"
    else:
        parts = rest.split("/", 3)
        if len(parts) == 4:
            # The legacy form with a cluster: a slash in a local name can't be told from it.
            raise InvalidTopicNameError(
                f"Invalid topic name '{text}': V1 names with a cluster are not supported"
            )
        if len(parts) != 3:
            raise InvalidTopicNameError(f"Invalid topic name: {text}")
    if domain not in ("persistent", "non-persistent"):
        raise InvalidTopicNameError(f"Invalid topic domain: '{domain}'")
    tenant, namespace, local = parts
    for part in (tenant, namespace):
        if not valid_namespace_part(part):
            raise InvalidTopicNameError(
                f"Invalid topic name '{text}': illegal tenant or namespace '{part}'"
            )
    if not local.strip():
        raise InvalidTopicNameError(f"Invalid topic name '{text}': the local name is empty")
    full = f"{domain}://{tenant}/{namespace}/{local}"
    if full == text:
        full = text  # else the cache above would keep it twice
    # Ten thousand topics of a namespace share the texts that they have in common.
    return TopicName(
        *(intern(domain), intern(tenant), intern(namespace), local, full, _partition_index(local))
    )


def _partition_index(local: str) -> int:
    base, separator, digits = local.rpartition(PARTITION_MARK)
    # Only canonical decimals count: "01", "+1" and "-1" belong to an ordinary name.
    if not separator or not base or not digits.isascii() or not digits.isdigit():
        return -1
    if len(digits) > _INDEX_DIGITS_MAX or str(index := int(digits)) != digits:
        return -1
    return index if index <= _INDEX_MAX else -1  # an int32 on the wire; Java's parseInt fails
