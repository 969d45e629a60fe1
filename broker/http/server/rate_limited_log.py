"""Log lines about unauthenticated clients: counted, so that no client can fill the log."""

import asyncio
import logging

logger = logging.getLogger(__name__)

_PERIOD_S = 1.0


class RateLimitedLog:
    """At most one line a second for each reason why connections were closed."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, reason: str) -> None:
        """One more connection was closed; a reason is one of a few texts, none of the client's."""
        if reason not in self._counts:
            self._counts[reason] = 0
            asyncio.get_running_loop().call_later(_PERIOD_S, self._tell, reason)
        self._counts[reason] += 1

    def _tell(self, reason: str) -> None:
        logger.info(
            "http: connections closed in a second: %d: %s", self._counts.pop(reason), reason
        )
