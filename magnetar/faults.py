"""``broker.faults``: what goes wrong in a test because the test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.duration import Duration, milliseconds

if TYPE_CHECKING:
    from magnetar.embedding import EmbeddedBroker


class Faults:
    """The faults of one broker; docs/guides/embedding.md shows what each does to clients."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker

    def start(
        self,
        seed: int = 0,
        *,
        drop_receipts: float = 0.0,
        duplicate: float = 0.0,
        unload: float = 0.0,
        fence: float = 0.0,
        slow_disk: float = 0.0,
        kill: float = 0.0,
        slow_disk_delay: Duration = "200ms",
    ) -> None:
        """Make faults from now on, instead of those that were made before.

        The same seed and the same messages in the same order meet the same faults.

        Args:
            drop_receipts: share (0 to 1) of published messages that are stored, but whose
                connection breaks before the producer gets the receipt.
            duplicate: share of delivered messages that are delivered once more.
            unload: share of stored messages after which their topic is unloaded.
            fence: the same; the topic is fenced.
            slow_disk: share of durable writes that take ``slow_disk_delay`` longer.
            kill: share of stored messages after which the process is killed, as by `kill`, before
                their producers get the receipts.
        Raises:
            EmbeddedError: no share, or the broker isn't running, or ``kill`` in a thread.
        """
        rates = {
            "drop_receipts": drop_receipts,
            "duplicate": duplicate,
            "unload": unload,
            "fence": fence,
            "slow_disk": slow_disk,
            "kill": kill,
        }
        self._broker.perform("set_faults", seed, milliseconds(slow_disk_delay), rates)

    def stop(self) -> None:
        """Make no more faults."""
        self.start()

    def unload(self, topic: str) -> None:
        """Close the topic, or its partitions, in an orderly way: its clients connect again.

        Raises:
            EmbeddedError: no client uses it now.
        """
        self._broker.perform("unload", topic)

    def fence(self, topic: str) -> None:
        """Take the topic's ledger away as another broker would: what is on its way fails.

        Raises:
            EmbeddedError: no client uses it now.
        """
        self._broker.perform("fence", topic)

    def kill(self) -> None:
        """Kill the broker's process by ``kill -9``, and start it again on its data and its ports.

        Raises:
            EmbeddedError: it runs in a thread of this process, or doesn't start.
        """
        self._broker.kill()
