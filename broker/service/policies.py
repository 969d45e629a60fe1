"""A namespace's policies as the broker's parts ask for them; what is missing has a default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["NO_POLICIES", "Policies"]


class Policies:
    """Read-only view of a Policies document (http-api 3.2); never changed, replaced by events."""

    __slots__ = ("document", "encryption_required", "subscription_types")

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        """As stored; not to be modified."""
        self.encryption_required = document.get("encryption_required") is True
        self.subscription_types = frozenset(document.get("subscription_types_enabled") or ())
        """Names of the allowed types; empty: all."""

    def limit(self, field: str, default: int) -> int:
        """An integer policy, or the broker's default; 0 means no limit."""
        value = self.document.get(field)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def auto_topic_creation(self) -> tuple[bool, str, int | None] | None:
        """The namespace's override: (allowed, topic type, partition count); None: there is none."""
        override = self.document.get("autoTopicCreationOverride")
        if not isinstance(override, Mapping):
            return None
        count = override.get("defaultNumPartitions")
        return (
            override.get("allowAutoTopicCreation") is True,
            str(override.get("topicType") or "non-partitioned"),
            count if isinstance(count, int) else None,
        )

    def auto_subscription_creation(self) -> bool | None:
        """The namespace's override; None: there is none."""
        override = self.document.get("autoSubscriptionCreationOverride")
        if not isinstance(override, Mapping):
            return None
        return override.get("allowAutoSubscriptionCreation") is True


NO_POLICIES = Policies({})
