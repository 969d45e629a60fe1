"""Settings of a client of bookies that speak BookKeeper's protocol."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from magnetar.bookkeeper.bookie_protocol.login import ProtocolLogin

_MIB: Final = 1024 * 1024
FRAME_BYTES_MAX: Final = 5 * _MIB + 10 * 1024
"""Of a message of Pulsar's largest size and what is around it."""
OWN_FRAME_BYTES_MAX: Final = (64 + 9) * _MIB
"""Between a client and a bookie of ours, unless their settings say otherwise: above the largest
entry, and above what a reply may hold beside a first large entry."""


@dataclass(frozen=True, slots=True)
class ProtocolConfig:
    """Times in seconds, sizes in bytes.

    Attributes:
        add_timeout_s: a bookie whose oldest add waits longer is given up: its connection is closed.
        read_timeout_s: of every other call; a long poll has this on top of its own wait.
        connect_timeout_s: until a connection must be there; adds wait for it meanwhile.
        backoff_first_s, backoff_max_s: after a failure adds are refused for so long, then a new
            connection is tried; the time doubles from failure to failure.
        frame_bytes_max: the largest frame either side takes (``nettyMaxFrameSizeBytes``).
        entries_max: adds under way at a bookie; more wait here, as a bookie refuses those above
            10,000 of a thread.
        backlog_bytes: adds queued and unanswered; above, writers confirm no more until it is less,
            so that they go at the slowest bookie's pace.
        pending_bytes_max: the same, for those who don't wait for confirmations: above, adds are
            refused with TOO_MANY_REQUESTS, which counts as a failure.
        tls: makes the context of a new connection; None: connections are plain.
        login: what bookies want first; None: nothing.
    """

    add_timeout_s: float = 30.0
    read_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    backoff_first_s: float = 0.1
    backoff_max_s: float = 5.0
    frame_bytes_max: int = FRAME_BYTES_MAX
    entries_max: int = 5_000
    backlog_bytes: int = 64 * _MIB
    pending_bytes_max: int = 256 * _MIB
    tls: Callable[[], ssl.SSLContext] | None = None
    login: ProtocolLogin | None = None
