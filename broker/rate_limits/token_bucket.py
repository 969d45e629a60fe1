"""Rate limits as token buckets: exact, deterministic, told the time; no clock, no waiting.

A bucket fills steadily with ``rate`` tokens a period and holds at most one period's worth. A
taker is never refused and may take more tokens than there are: what a socket read brought, or a
batch holds, is taken in one piece, and the debt is waited for afterwards. So over any time ``t`` at
most ``rate * t + rate + the last piece`` pass, and a limit below the size of a piece still moves.
"""

from collections.abc import Hashable
from typing import Final

UNLIMITED: Final = 1 << 62
"""Room where there is no limit."""
_IDENTITIES_KEPT: Final = 1_000


class TokenBucket:
    """Tokens of one kind. Levels are counted in 1/period_ms of a token, so nothing is rounded."""

    __slots__ = ("_at_ms", "_full", "_level", "_period_ms", "_rate")

    def __init__(self, rate: int, period_ms: int, now_ms: int) -> None:
        """Begins full. REQUIRES: both positive."""
        assert min(rate, period_ms) > 0
        self._rate, self._period_ms = rate, period_ms
        self._full = self._level = rate * period_ms
        self._at_ms = now_ms

    def change(self, rate: int, period_ms: int, now_ms: int) -> None:
        """Go on at another rate; what was taken stays taken. REQUIRES: both positive."""
        assert min(rate, period_ms) > 0
        self._fill(now_ms)
        level = self._level * period_ms // self._period_ms
        self._rate, self._period_ms, self._full = rate, period_ms, rate * period_ms
        self._level = min(level, self._full)

    def _fill(self, now_ms: int) -> None:
        elapsed_ms = now_ms - self._at_ms
        if elapsed_ms > 0:  # a clock that went back costs the time until it has caught up
            self._level = min(self._level + elapsed_ms * self._rate, self._full)
            self._at_ms = now_ms

    def room(self, now_ms: int) -> int:
        """Whole tokens there are; negative: tokens owed."""
        self._fill(now_ms)
        return self._level // self._period_ms

    def take(self, tokens: int, now_ms: int) -> None:
        """Take tokens, on credit if need be."""
        self._fill(now_ms)
        self._level -= tokens * self._period_ms

    def wait_ms(self, now_ms: int) -> int:
        """How long until there is a whole token; 0: there is one."""
        self._fill(now_ms)
        missing = self._period_ms - self._level
        return -(-missing // self._rate) if missing > 0 else 0

    def is_full(self, now_ms: int) -> bool:
        """Whether a new bucket would be the same."""
        self._fill(now_ms)
        return self._level == self._full


class TokenBuckets:
    """Messages and bytes of one stream; each may be without a limit."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages: int, size: int, period_ms: int, now_ms: int) -> None:
        """messages, size: in each period; 0: no limit."""
        self._messages = TokenBucket(messages, period_ms, now_ms) if messages > 0 else None
        self._bytes = TokenBucket(size, period_ms, now_ms) if size > 0 else None

    def change(self, messages: int, size: int, period_ms: int, now_ms: int) -> None:
        """Go on with other limits; debts of a limit that stays are kept."""
        self._messages = _changed(self._messages, messages, period_ms, now_ms)
        self._bytes = _changed(self._bytes, size, period_ms, now_ms)

    def take(self, messages: int, size: int, now_ms: int) -> None:
        """So much has passed."""
        if self._messages is not None:
            self._messages.take(messages, now_ms)
        if self._bytes is not None:
            self._bytes.take(size, now_ms)

    def room(self, now_ms: int) -> tuple[int, int]:
        """Messages and bytes that may pass now; UNLIMITED where there is no limit."""
        return (
            UNLIMITED if self._messages is None else self._messages.room(now_ms),
            UNLIMITED if self._bytes is None else self._bytes.room(now_ms),
        )

    def wait_ms(self, now_ms: int) -> int:
        """How long until at least a message and a byte may pass; 0: they may now."""
        messages, size = self._messages, self._bytes
        return max(
            0 if messages is None else messages.wait_ms(now_ms),
            0 if size is None else size.wait_ms(now_ms),
        )


def _changed(
    bucket: TokenBucket | None, rate: int, period_ms: int, now_ms: int
) -> TokenBucket | None:
    if rate <= 0:
        return None
    if bucket is None:
        return TokenBucket(rate, period_ms, now_ms)
    bucket.change(rate, period_ms, now_ms)
    return bucket


class SubscribeRateLimiter:
    """How often each consumer of a topic may subscribe: it is refused, not delayed.

    Identities that have not subscribed for a period are forgotten, so a client that always comes
    under another name costs no memory for longer than that.
    """

    __slots__ = ("_buckets", "_forget_above", "_period_ms", "_rate")

    def __init__(self, rate: int, period_ms: int) -> None:
        """REQUIRES: both positive."""
        self._rate, self._period_ms = rate, period_ms
        self._buckets: dict[Hashable, TokenBucket] = {}
        self._forget_above = _IDENTITIES_KEPT

    def change(self, rate: int, period_ms: int, now_ms: int) -> None:
        """Go on with another limit. REQUIRES: both positive."""
        self._rate, self._period_ms = rate, period_ms
        for bucket in self._buckets.values():
            bucket.change(rate, period_ms, now_ms)

    def admit(self, identity: Hashable, now_ms: int) -> bool:
        """Whether this consumer may subscribe now; if so, that is counted."""
        bucket = self._buckets.get(identity)
        if bucket is None:
            if len(self._buckets) >= self._forget_above:
                self._forget(now_ms)
            bucket = self._buckets[identity] = TokenBucket(self._rate, self._period_ms, now_ms)
        if bucket.room(now_ms) < 1:
            return False
        bucket.take(1, now_ms)
        return True

    def _forget(self, now_ms: int) -> None:
        self._buckets = {
            identity: bucket
            for identity, bucket in self._buckets.items()
            if not bucket.is_full(now_ms)
        }
        self._forget_above = max(_IDENTITIES_KEPT, 2 * len(self._buckets))
