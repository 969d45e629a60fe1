"""Where a replicator gets what a slot owns: from other bookies with intact copies.

Of a striped ledger (E > Qw) the slot's share is a stripe, and each of the other bookies holds only
some of it: several are asked at a time, each for a stripe of its own, and what they give is put
together.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice

from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.client.striped_runs import StripeRead, plan_parts, put_together
from magnetar.bookkeeper.replication.config import ReplicationConfig
from magnetar.bookkeeper.replication.errors import UnreadableEntryError
from magnetar.bookkeeper.replication.fragments import Fragment, Run, split_runs
from magnetar.bookkeeper.replication.ledger_checker import gather_all
from magnetar.bookkeeper.replication.replica_reader import ReplicaStatus, read_replica
from magnetar.bookkeeper.transport import ALL_ENTRIES


class CopySource:
    """Reads what one slot of a fragment owns.

    Args:
        location: ``/zone/upgrade-domain`` of this process; near bookies are preferred.
    """

    def __init__(
        self,
        bookies: BookiePool,
        fragment: Fragment,
        slot: int,
        config: ReplicationConfig,
        location: str,
    ) -> None:
        self._bookies, self._fragment, self._slot = bookies, fragment, slot
        self._config = config
        self._stripe = fragment.stripe_of(slot)
        self._failures = dict.fromkeys(fragment.bookies, 0)
        self._distance = {
            bookie: _distance(location, bookies.location(bookie) or "")
            for bookie in fragment.bookies
        }

    async def batches(self, runs: Iterable[Run]) -> AsyncIterator[tuple[list[int], list[bytes]]]:
        """Ascending ids and their packets, at most ``batch_bytes`` at a time, or one entry.

        Raises:
            UnreadableEntryError: no replica has an intact copy of an entry.
        """
        config, stripe = self._config, self._stripe
        spans = split_runs(runs, config.batch_entries, stripe)
        ahead = next(spans, None)
        group: list[Run] = []
        while True:
            count = sum(stripe.count(*span) for span in group)
            # Where only holes are to be filled, several at a time.
            while ahead is not None and len(group) < config.parallel_reads:
                count += stripe.count(*ahead)
                if count > config.batch_entries:
                    break
                group.append(ahead)
                ahead = next(spans, None)
            if not group:
                return
            share = config.batch_bytes // len(group)
            found = await gather_all(self._read(*span, share) for span in group)
            ids: list[int] = []
            packets: list[bytes] = []
            rest: list[Run] = []
            for (first, end), part in zip(group, found, strict=True):
                ids += islice(stripe.ids(first), len(part))
                packets += part
                reached = stripe.nth(first, len(part))
                if reached < end:
                    rest.append((reached, end))
            group = rest
            for start, stop in _cuts(packets, config.batch_bytes):
                yield ids[start:stop], packets[start:stop]

    async def _read(self, first: int, end: int, bytes_max: int) -> Sequence[bytes]:
        """At least one entry of the stripe, from ``first`` on."""
        stripe, parts = self._stripe, self._plan(first, end)
        width = sum(part.stripe.width for part in parts)
        found = await gather_all(
            self._read_part(part, end, bytes_max * part.stripe.width // width) for part in parts
        )
        packets, answers = found[0]
        if not packets:
            raise UnreadableEntryError(f"entry {first} can't be read: {', '.join(answers)}")
        if len(parts) == 1:
            return packets
        # Why others gave nothing comes out when it is their entry's turn to be the first.
        shares = [(part.stripe, share) for part, (share, _) in zip(parts, found, strict=True)]
        ids = islice(stripe.ids(first), stripe.count(first, end))
        return put_together(shares, ids, stripe.cycle)

    def _plan(self, first: int, end: int) -> list[StripeRead]:
        fragment = self._fragment
        if self._stripe is ALL_ENTRIES:
            return [StripeRead(self._order(fragment.slots_of(first)), first, ALL_ENTRIES)]
        quorums = (fragment.ensemble_size, fragment.write_quorum)
        return plan_parts(first, end, quorums, self._order, wanted=self._stripe)

    async def _read_part(
        self, part: StripeRead, end: int, bytes_max: int
    ) -> tuple[list[bytes], list[str]]:
        """From the first bookie that has it; nothing, and what each of them said."""
        fragment, answers = self._fragment, list[str]()
        quorums = (fragment.ensemble_size, fragment.write_quorum)
        for slot in part.slots:
            bookie = fragment.bookies[slot]
            found = await read_replica(
                self._bookies,
                bookie,
                fragment.ledger_id,
                part.first,
                part.stripe.count(part.first, part.end_at(slot, end, quorums)),
                bytes_max,
                self._config.request_timeout_s,
                part.stripe,
                creator=fragment.creator,
            )
            if found.answer is ReplicaStatus.GOOD:
                return found.packets, []
            answers.append(f"{bookie} {found}")
            # Of a striped ledger it would end the run of the others, too, each time.
            if found.answer is ReplicaStatus.SILENT or self._stripe is not ALL_ENTRIES:
                self._failures[bookie] += 1
        return [], answers

    def _order(self, slots: Sequence[int]) -> list[int]:
        """Those that failed late, then near ones first.

        The bookie that is to be replaced comes last: it may be there all the same, and be the only
        one that has an intact copy.
        """
        bookies = self._fragment.bookies
        return sorted(
            slots,
            key=lambda slot: (
                slot == self._slot,
                self._failures[bookies[slot]],
                self._distance[bookies[slot]],
            ),
        )


def _cuts(packets: Sequence[bytes], bytes_max: int) -> Iterator[tuple[int, int]]:
    """Each bookie gives one entry at least, so several may give far more than they share."""
    start = taken = 0
    for index, packet in enumerate(packets):
        if index > start and taken + len(packet) > bytes_max:
            yield start, index
            start, taken = index, 0
        taken += len(packet)
    yield start, len(packets)


def _distance(here: str, there: str) -> int:
    """0: same upgrade domain, 1: same zone, 2: elsewhere or unknown."""
    if not here or not there:
        return 2
    if here == there:
        return 0
    return 1 if here.split("/")[1:2] == there.split("/")[1:2] else 2
