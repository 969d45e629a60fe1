"""How many sockets clients may hold, so that storage never runs out of file descriptors.

A bookie that can't open its next journal segment ends the process, so the crowd must be told to
wait before that. An eighth of the process's descriptors, but 256 where that is at most a quarter,
stays for files and for the broker's own sockets. A quarter is for HTTP and WebSockets, or fewer if
their setting says so. The rest is for the binary protocol.
"""

import logging
import resource
from collections import Counter
from typing import Final

logger = logging.getLogger(__name__)

_FILES_MAX: Final = 1 << 20
"""Enough for all clients, where the operating system sets no limit."""
_FILES_KEPT: Final = 256


def file_limit() -> int:
    """Descriptors this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _FILES_MAX if soft == resource.RLIM_INFINITY else min(soft, _FILES_MAX)


def raise_file_limit() -> None:
    """Use all that the operating system allows: shells set the soft limit for ``select``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            logger.warning("the limit of open files stays at %d: %s", soft, error)


def http_sockets_max(setting: int) -> int:
    """``maxHttpServerConnections`` as far as descriptors allow; 0: a quarter of them."""
    share = file_limit() // 4
    return min(share, setting) if setting > 0 else share


def binary_sockets_max(setting: int, http_setting: int) -> int:
    """``brokerMaxConnections`` (0: any number) as far as files and HTTP leave descriptors."""
    limit = file_limit()
    files = max(limit // 8, min(limit // 4, _FILES_KEPT))
    share = limit - files - http_sockets_max(http_setting)
    return min(share, setting) if setting > 0 else share


class SocketQuota:
    """The sockets of one protocol; says once per crowd that there are too many."""

    def __init__(self, what: str, sockets_max: int) -> None:
        self.sockets_max = sockets_max
        self._what = what
        self._crowded = False

    def admits(self, count: int) -> bool:
        """Whether one socket may be the ``count``-th."""
        if count <= self.sockets_max:
            if self._crowded and count < self.sockets_max * 3 // 4:
                self._crowded = False
                logger.info("%s connections: %d, accepting again", self._what, count)
            return True
        if not self._crowded:
            self._crowded = True
            logger.error(
                "too many %s connections: refusing more than %d (limit of open files: %d)",
                *(self._what, self.sockets_max, file_limit()),
            )
        return False


class AddressQuota:
    """The sockets of one protocol by their clients' address."""

    def __init__(self, sockets_max: int) -> None:
        """``sockets_max``: of one address; 0: any number."""
        self._sockets_max = sockets_max
        self._counts: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Count a socket; whether its address may have it. ``leave`` in any case."""
        self._counts[address] += 1
        return not 0 < self._sockets_max < self._counts[address]

    def leave(self, address: str) -> None:
        self._counts[address] -= 1
        if self._counts[address] <= 0:
            del self._counts[address]
