"""Since when entries have been pending, from samples: nothing is noted when an entry is sent."""

from collections.abc import Iterable, Sequence
from typing import Final

from pyroaring import BitMap

from magnetar.broker.dispatch.interfaces import ConsumerState
from magnetar.broker.dispatch.position_set import PositionSet
from magnetar.managed_ledger.position import Position

SAMPLES_MAX: Final = 10


def least_needed(moments: Sequence[int], now_ms: int) -> int:
    """Index of the moment whose neighbours are closest, for its age. REQUIRES: three of them."""
    return min(
        range(1, len(moments) - 1),
        key=lambda at: (moments[at + 1] - moments[at - 1]) / (now_ms - moments[at] + 1),
    )


class PendingAges:
    """What consumers had at some moments; the longer ago, the further apart.

    Invariant: what a sample has was pending at its consumer from that moment to the last sample.
    """

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: dict[ConsumerState, list[tuple[int, PositionSet]]] = {}  # ascending in time

    def sample(self, consumers: Iterable[ConsumerState], now_ms: int) -> None:
        """Note what is pending; it costs nothing where nothing is."""
        held = [consumer for consumer in consumers if consumer.pending]
        if held or self._samples:
            self._samples = {each: self._sample_of(each, now_ms) for each in held}

    def _sample_of(self, consumer: ConsumerState, now_ms: int) -> list[tuple[int, PositionSet]]:
        pending = consumer.pending
        known = [(ms, had.common(pending)) for ms, had in self.samples_of(consumer)]
        known = [each for each in known if each[1]]
        if not known or len(known[-1][1]) < len(pending):  # else it is the same
            known.append((now_ms, pending.common(pending)))
        if len(known) > SAMPLES_MAX:
            del known[least_needed([ms for ms, _ in known], now_ms)]
        return known

    def on_redeliver(self, consumer: ConsumerState, ledger_id: int, entries: BitMap) -> None:
        """These were taken from the consumer; it may get them again."""
        for _, had in self.samples_of(consumer):
            had.take(ledger_id, entries)

    def samples_of(self, consumer: ConsumerState) -> Sequence[tuple[int, PositionSet]]:
        """Moments, ascending, and what it had then and still has."""
        return self._samples.get(consumer, ())

    def since_ms(self, consumer: ConsumerState, position: Position) -> int | None:
        """When the consumer had this entry already; None: it came since the last sample.

        REQUIRES: it is pending there.
        """
        return next((ms for ms, had in self.samples_of(consumer) if position in had), None)
