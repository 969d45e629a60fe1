"""Which bookies fail: a memory of recent failures, and quarantine for those that fail too often.

Quarantine is this client's own circuit breaker: a bookie in it gets no new ledgers and replaces
nobody, as long as others can; ledgers that have it keep it. It ends with time, or with the process
that failed: a rolling upgrade restarts all bookies of a cluster, and must not leave all of them
in quarantine. Pure: clock and chance are arguments.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.config import HealthConfig
from magnetar.bookkeeper.client.placement import PlacementRandom

# Answers of a bookie that is ill. The others are about the ledger, the caller or a full disk, which
# the bookie says itself by its registration.
_ILL: Final = frozenset({codes.UNAVAILABLE, codes.IO_ERROR, codes.TOO_MANY_REQUESTS})


@dataclass(slots=True)
class _Failures:
    """Of one bookie."""

    last_ms: int
    interval_from_ms: int  # the interval that is being counted began then
    count: int  # failures in it
    quarantined_until_ms: int  # 0: never was
    excused_until_ms: int | None = None  # until then another restart excuses nothing


class BookieHealth:
    """Counts failed and timed-out requests by bookie; nothing happens on success.

    Args:
        clock_ms: milliseconds of any clock that doesn't jump.
        rng: chance, for ``quarantine_ratio``.

    Attributes:
        on_quarantine: told of each bookie that is put in quarantine, and for how many ms.
    """

    def __init__(
        self, config: HealthConfig, clock_ms: Callable[[], int], rng: PlacementRandom
    ) -> None:
        self._config = config
        self._clock_ms = clock_ms
        self._rng = rng
        self._failures: dict[str, _Failures] = {}
        self._quarantined: set[str] = set()  # some may be due for release
        self._is_on = config.enabled
        self.on_quarantine: Callable[[str, int], None] | None = None

    def note_error(self, bookie_id: str) -> None:
        """A request to the bookie failed or timed out."""
        now, config = self._clock_ms(), self._config
        known = self._failures.get(bookie_id)
        if known is None:
            known = self._failures[bookie_id] = _Failures(now, now, 0, 0)
        known.last_ms = now
        if now - known.interval_from_ms >= config.interval_ms:
            known.interval_from_ms, known.count = now, 0
        known.count += 1
        # Exactly at the threshold: one throw of the dice in an interval, however many errors.
        if (
            self._is_on
            and known.count == config.error_threshold
            and self._rng.random() < config.quarantine_ratio
        ):
            known.quarantined_until_ms = now + config.quarantine_ms
            self._quarantined.add(bookie_id)
            if self.on_quarantine is not None:
                self.on_quarantine(bookie_id, config.quarantine_ms)

    def note_code(self, bookie_id: str, code: int) -> None:
        """The bookie answered with this result code; most of them don't mean that it is ill."""
        if code in _ILL:
            self.note_error(bookie_id)

    def last_failure_ms(self, bookie_id: str) -> int | None:
        """When it last failed, by ``clock_ms``; None: not within ``failure_memory_ms``."""
        known = self._failures.get(bookie_id)
        if known is None:
            return None
        if self._clock_ms() - known.last_ms >= self._config.failure_memory_ms:
            self._forget(bookie_id)
            return None
        return known.last_ms

    def recent_failures(self, bookie_id: str) -> int:
        """Failures of the interval that is being counted; 0: none within ``failure_memory_ms``."""
        if bookie_id not in self._failures or self.last_failure_ms(bookie_id) is None:
            return 0
        return self._failures[bookie_id].count

    def is_quarantined(self, bookie_id: str) -> bool:
        return bookie_id in self._quarantined and bookie_id in self.quarantined()

    def quarantined(self) -> frozenset[str]:
        """Ids of the bookies in quarantine now."""
        if not self._quarantined:
            return frozenset()
        now = self._clock_ms()
        self._quarantined = {
            bookie
            for bookie in self._quarantined
            if now < self._failures[bookie].quarantined_until_ms
        }
        return frozenset(self._quarantined)

    def note_restarted(self, bookie_id: str) -> None:
        """The bookie is another process now: quarantine and failures were about the former one.

        Not twice within ``quarantine_ms``, so that one that keeps coming and failing ends in it.
        """
        known, now = self._failures.get(bookie_id), self._clock_ms()
        if known is None or (known.excused_until_ms is not None and now < known.excused_until_ms):
            return
        counts = now - known.interval_from_ms < self._config.interval_ms
        if counts or self.is_quarantined(bookie_id):
            known.excused_until_ms = now + self._config.quarantine_ms
            known.interval_from_ms, known.count = now, 0
            self._quarantined.discard(bookie_id)

    def release_all(self) -> None:
        """End every quarantine."""
        self._quarantined.clear()

    def switch(self, *, on: bool) -> None:
        """An operator's word: off releases all bookies, on means as it was configured."""
        self._is_on = on and self._config.enabled
        if not self._is_on:
            self.release_all()

    def _forget(self, bookie_id: str) -> None:
        """Drop what no longer matters, so that bookies gone for good leave nothing behind."""
        known, now = self._failures[bookie_id], self._clock_ms()
        if (
            bookie_id not in self._quarantined
            and now - known.interval_from_ms >= self._config.interval_ms
            and (known.excused_until_ms is None or now >= known.excused_until_ms)
        ):
            del self._failures[bookie_id]
