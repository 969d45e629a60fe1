"""What runs an embedded broker: a thread of this process, or a child process."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a broker that is ready listens."""

    service_url: str
    web_url: str
    service_url_tls: str = ""  # "": not served over TLS
    web_url_tls: str = ""


class Host(Protocol):
    """One run of one broker. Both futures end by themselves, whatever happens."""

    pid: int
    ready: Future[Addresses]
    """Set when clients are served; the error when that can't be."""
    ended: Future[None]
    """Set when nothing of the run is left; the error when it ended before it was asked to."""

    def start(self) -> None:
        """Return at once; ``ready`` tells the outcome."""

    def ask_to_stop(self) -> None:
        """Begin an orderly end; from any thread, more than once, at any time."""

    def give_up(self) -> None:
        """What can still be done when the orderly end takes too long."""

    def join(self) -> None:
        """Wait for the threads of the host; call it when ``ended`` is set."""

    def log(self) -> str:
        """What the broker printed; "" where it logs into this process's logging."""
