"""What a topic remembers of the last client that it refused, and what that explains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from magnetar.broker.dispatch.explanation import Explanation, Reason, duration

RECENT_MS: Final = 600_000
"""A client that doesn't come again for so long has given up, or is served elsewhere."""
_ERROR_LENGTH_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class RefusedClient:
    """A producer, a consumer or a message that wasn't accepted.

    Attributes:
        client: who that was, as a sentence begins: ``Producer p of 10.0.0.7:4711``.
        error: what it was told.
        at_ms: when, since 1970.
    """

    client: str
    error: str
    at_ms: int

    @classmethod
    def of(cls, client: str, error: object, at_ms: int) -> RefusedClient:
        return cls(client, str(error)[:_ERROR_LENGTH_MAX].rstrip("."), at_ms)

    def sentence(self, now_ms: int) -> str:
        return f"{self.client} was refused {duration(now_ms - self.at_ms)} ago: {self.error}."

    def is_recent(self, now_ms: int) -> bool:
        return now_ms - self.at_ms < RECENT_MS


def producer_refused(refusal: RefusedClient, now_ms: int, *, producers: int) -> Explanation:
    """``producers``: that are connected, and have published nothing since."""
    return Explanation(
        Reason.PRODUCER_REFUSED,
        ("" if producers else "No producer is connected. ") + refusal.sentence(now_ms),
        "Messages come when producers are accepted: mend what the error says, in the application "
        "or in the policies of the topic.",
        since_ms=refusal.at_ms,
        details={"error": refusal.error},
    )


def consumer_refused(refusal: RefusedClient, now_ms: int, found: Explanation) -> Explanation:
    """``found``: that there is no consumer."""
    return replace(
        found,
        reason=Reason.CONSUMER_REFUSED,
        message=f"{found.message} {refusal.sentence(now_ms)}",
        next="Delivery starts when a consumer is accepted: mend what the error says, in the "
        "application or in the policies of the topic.",
        details={"error": refusal.error},
    )


def another_refused(refusal: RefusedClient, now_ms: int, found: Explanation) -> Explanation:
    """``found``: of a subscription that has consumers."""
    return replace(
        found,
        message=f"{found.message} {refusal.sentence(now_ms)}",
        details={**found.details, "refused": refusal.error},
    )
