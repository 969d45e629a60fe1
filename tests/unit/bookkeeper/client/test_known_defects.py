"""Defects that the original protocol has had, one test each: none may return.

docs/spec/storage.md, "Defects".

Each fails on the naive implementation: ``tests/simulation/naive_variants.py`` has those, and runs
the tests on them. ``test_tables.py`` says where the other tests are: those of the writer's ensemble
change in ``test_ledger_writer.py``, those of bookies and of repair with these.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import ClientConfig, LedgerConfig, WriteConfig
from magnetar.bookkeeper.client.ledger_recovery import (
    AbortRecovery,
    CloseRecoveredLedger,
    LedgerRecovery,
    ReadLac,
    RecoveryEffect,
    RecoveryRead,
    ReplaceBookies,
)
from magnetar.bookkeeper.client.ledger_store import Change, LedgerStore, ledger_path
from magnetar.bookkeeper.client.pending_adds import SendAdds
from magnetar.bookkeeper.errors import (
    BookieUnavailableError,
    LedgerFencedError,
    LedgerRecoveryError,
    UnauthorizedAccessError,
)
from magnetar.bookkeeper.ledger_metadata import (
    EnsembleSegment,
    LedgerMetadata,
    LedgerState,
    close_by_recovery,
    close_by_writer,
    replace_members,
)
from magnetar.bookkeeper.packet import encode_heads
from magnetar.bookkeeper.transport import AddRequest, ReadRequest
from magnetar.metadata.store import Versioned
from tests.simulation.model_bookie import ModelBookie, ModelLedger
from tests.unit.bookkeeper.client.conftest import Cluster, eventually
from tests.unit.bookkeeper.client.test_client import created

LEDGER = 5


def never(request: AddRequest, code: int) -> None:
    raise AssertionError("the core only hands this on")


class Recovery:
    """A recovery core and model bookies A, B, ...; the test decides which message arrives."""

    def __init__(self, e: int, qw: int, qa: int, segments: Iterable[tuple[int, str]] = ()) -> None:
        self.bookies = {name: ModelBookie(name) for name in "ABCDEFGH"}
        named = tuple(segments) or ((0, "ABCDEFGH"[:e]),)
        self.metadata = LedgerMetadata(
            LEDGER,
            e,
            qw,
            qa,
            tuple(EnsembleSegment(first, tuple(bookies)) for first, bookies in named),
            state=LedgerState.IN_RECOVERY,
        )
        self.core = LedgerRecovery(self.metadata, never)
        self.effects: list[RecoveryEffect] = []
        self.sends: list[SendAdds] = []

    def store(self, bookies: str, entry_id: int, lac: int = -1) -> None:
        """Entry ``entry_id`` (10 bytes) as the writer sent it, on these bookies."""
        heads, _ = encode_heads(LEDGER, entry_id, lac, 10 * entry_id, [b""], [b"%010d" % entry_id])
        for name in bookies:
            ledger = self.bookies[name].ledgers.setdefault(LEDGER, ModelLedger(bytes(20)))
            ledger.entries[entry_id] = heads[0] + b"%010d" % entry_id

    def start(self, fenced: str = "") -> None:
        """The LAC queries to these bookies are answered at once."""
        self.core.start()
        self.take()
        self.fence(fenced)

    def take(self) -> None:
        self.effects += self.core.take_effects()
        self.sends += self.core.take_sends()

    def fence(self, bookies: str) -> None:
        """The LAC queries to these bookies are answered."""
        for effect in [e for e in self.effects if isinstance(e, ReadLac) and e.bookie in bookies]:
            self.effects.remove(effect)
            reply = self.bookies[effect.bookie].read_lac(LEDGER, fence=True, master_key=bytes(20))
            self.core.on_lac(effect.slot, reply.code, reply.last_packet, reply.explicit_lac)
        self.take()

    def read(self, bookie: str, code: int = codes.OK) -> None:
        """The recovery read of this bookie is answered, or fails with ``code``."""
        reads = [effect for effect in self.effects if isinstance(effect, RecoveryRead)]
        if all(read.bookie != bookie for read in reads):
            self.core.on_slow(reads[-1].first)  # the core has asked another one first
            self.take()
        reads = [effect for effect in self.effects if isinstance(effect, RecoveryRead)]
        self._answer_read(next(read for read in reads if read.bookie == bookie), code)
        self.take()

    def _answer_read(self, read: RecoveryRead, code: int) -> None:
        self.effects.remove(read)
        if code != codes.OK:
            self.core.on_read(read, code, [])
            return
        key = bytes(20)
        reply = self.bookies[read.bookie].read(
            ReadRequest(LEDGER, read.first, read.count_max, 1 << 20, fence=True, master_key=key)
        )
        self.core.on_read(read, reply.code, reply.packets)

    def replace(self, **replacements: str) -> None:
        """Answer the question for replacements: failed bookie = new bookie."""
        (asked,) = [effect for effect in self.effects if isinstance(effect, ReplaceBookies)]
        self.effects.remove(asked)
        chosen = {
            slot: (failed, replacements[failed])
            for slot, failed in asked.failed.items()
            if failed in replacements
        }
        self.core.on_replacements(chosen)
        self.take()

    def write(self, bookies: str, code: int = codes.OK) -> None:
        """The re-writes sent to these bookies are answered."""
        for send in [s for s in self.sends if s.bookie in bookies]:
            self.sends.remove(send)
            answer = self.bookies[send.bookie].add(send) if code == codes.OK else code
            self.core.on_add_done(send, answer)
        self.take()

    def finish(self, up: str) -> RecoveryEffect:
        """Answer everything for the bookies that are up, as unavailable for others; the result."""
        for _ in range(1000):
            if not self.effects or isinstance(
                self.effects[0], CloseRecoveredLedger | AbortRecovery
            ):
                if not self.sends:
                    break
                name = self.sends[0].bookie
                self.write(name, codes.OK if name in up else codes.UNAVAILABLE)
                continue
            effect = self.effects[0]
            if isinstance(effect, ReplaceBookies):
                self.replace()
            elif isinstance(effect, RecoveryRead):
                self._answer_read(effect, codes.OK if effect.bookie in up else codes.UNAVAILABLE)
                self.take()
            elif isinstance(effect, ReadLac) and effect.bookie in up:
                self.fence(effect.bookie)
            elif isinstance(effect, ReadLac):
                self.effects.remove(effect)
                self.core.on_lac(effect.slot, codes.UNAVAILABLE, None, -1)
                self.take()
        return self.outcome()

    def outcome(self) -> RecoveryEffect:
        assert isinstance(self.effects[-1], CloseRecoveredLedger | AbortRecovery), self.effects
        return self.effects[-1]


def closed(last_entry: int, *segments: tuple[int, str]) -> CloseRecoveredLedger:
    return CloseRecoveredLedger(
        last_entry,
        10 * (last_entry + 1),
        tuple(EnsembleSegment(first, tuple(bookies)) for first, bookies in segments),
    )


def test_worked_example_of_the_protocol() -> None:
    """3.2: B1 {0,1,2}, B2 {0,1}, B3 {0}; with B1 the end is 2, without it 1. Both are right."""
    for up, end in [("ABC", 2), ("AB", 2), ("BC", 1)]:
        r = Recovery(3, 3, 2)
        r.store("ABC", 0, lac=-1)
        r.store("AB", 1, lac=0)
        r.store("A", 2, lac=1)
        r.start()
        assert r.finish(up) == closed(end)


async def test_recovery_reads_fence(cluster: Cluster) -> None:
    """#2614: the add in flight must not reach a bookie that has just denied to hold the entry.

    C never got the LAC query; A (fenced by it) and C deny entry 0: the ledger ends before it. Had
    C not been fenced by that read, the writer's add of entry 0, still on its way, would be stored
    there and, with B's copy, make a quorum. Breaks with ``fence=False`` in ``_read_entries``.
    """
    writer = await created(cluster, LedgerConfig(3, 3, 2))
    a, b, c = writer.metadata.last_segment.bookies
    for name in (a, b, c):
        cluster.clients[name].hold_adds = True
    writer.append([b""], [b"in flight"])

    async def lost(*args: object, **options: object) -> object:
        raise BookieUnavailableError("the message was lost")

    cluster.clients[c].read_lac = lost  # type: ignore[method-assign,assignment]
    cluster.clients[b].read_entries = lost  # type: ignore[method-assign,assignment]
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_confirmed == -1
    for name in (c, b, a):
        cluster.clients[name].release()
    assert writer.last_confirmed == -1
    assert cluster.bookies[c].payload(writer.ledger_id, 0) is None


def test_a_brand_new_last_segment_starts_at_its_floor() -> None:
    """#2615: empty bookies of the last segment say LAC -1; what lies before it is confirmed.

    Breaks without ``max(..., first_entry - 1)`` in ``_begin_reading``: entry 0 is asked of D.
    """
    r = Recovery(2, 2, 2, [(0, "AB"), (3, "CD")])
    for entry_id in range(3):
        r.store("AB", entry_id, lac=entry_id - 1)
    r.start("CD")
    reads = [effect for effect in r.effects if isinstance(effect, RecoveryRead)]
    assert [read.first for read in reads] == [3]
    assert r.finish("ABCD") == closed(2)


def test_private_segments_until_the_close() -> None:
    """BOOKKEEPER-355, -581: a recoverer that dies leaves nothing that misleads the next one.

    The naive way publishes {1: ABD} before D holds entry 1; D's "no" with C's then makes Qf.
    Breaks when reads go by the recovery's own ensemble (``self._bookies`` replaced).
    """
    r = Recovery(3, 3, 2)
    r.store("ABC", 0, lac=-1)
    r.store("AB", 1, lac=0)
    r.start("AB")
    r.read("A")
    r.write("C", codes.UNAVAILABLE)
    r.replace(C="D")
    assert not [e for e in r.effects if isinstance(e, CloseRecoveredLedger)]
    r.read("A")  # it hasn't entry 2
    # Reads still go by the published ensemble.
    assert {e.bookie for e in r.effects if isinstance(e, RecoveryRead)} == {"B", "C"}
    # This recoverer dies here. The next one sees the ledger as it was.
    second = Recovery(3, 3, 2)
    second.bookies = r.bookies
    second.start()
    assert second.finish("AB") == closed(1)


def test_replaced_bookie_ends_up_in_the_closing_write() -> None:
    r = Recovery(3, 3, 3)
    r.store("ABC", 0, lac=-1)
    r.store("AB", 1, lac=0)
    r.start("ABC")
    r.read("A")
    r.write("AB")
    r.write("C", codes.UNAVAILABLE)
    r.replace(C="D")
    close = r.finish("ABD")
    assert close == closed(1, (1, "ABD"))
    assert isinstance(close, CloseRecoveredLedger)
    merged = close_by_recovery(r.metadata, close.last_entry, close.length, close.segments)
    assert merged is not None
    assert merged.segment_of(1).bookies == ("A", "B", "D")
    assert r.bookies["D"].payload(LEDGER, 1) is not None


def test_absence_needs_only_qf_negatives() -> None:
    """BOOKKEEPER-365, #1067: with a bookie down recovery must still end.

    Breaks when ``_decide_absence`` waits for all candidates.
    """
    r = Recovery(3, 3, 2)
    r.store("ABC", 0, lac=-1)
    r.start("AB")
    r.read("A")  # entry 0 found, entry 1 asked
    r.read("A")
    r.read("B")
    r.write("AB")
    assert r.outcome() == closed(0)  # C was asked and never answered


def test_coverage_counts_silent_bookies_per_write_set() -> None:
    """pulsar#6505: 4/2/2 is covered by two alternating bookies; two neighbours are not enough."""
    r = Recovery(4, 2, 2)
    r.start("AB")
    assert not [e for e in r.effects if isinstance(e, RecoveryRead)]
    r.fence("D")
    assert [e for e in r.effects if isinstance(e, RecoveryRead)]
    alternating = Recovery(4, 2, 2)
    alternating.start()
    alternating.fence("AC")
    assert [e for e in alternating.effects if isinstance(e, RecoveryRead)]


def test_too_few_rewrites_abort() -> None:
    """BOOKKEEPER-150: never close with, nor below, an entry that was found and couldn't be kept.

    Breaks when ``give_up``'s answer is ignored.
    """
    r = Recovery(3, 3, 2)
    r.store("ABC", 0, lac=-1)
    r.store("A", 1, lac=0)
    r.start("ABC")
    r.read("A")
    r.write("BC", codes.UNAVAILABLE)
    r.write("A")
    r.replace()  # there is nobody to take B's place
    r.replace()  # nor C's, which failed meanwhile
    abort = r.outcome()
    assert isinstance(abort, AbortRecovery)
    assert isinstance(abort.error, LedgerRecoveryError)


def test_recovery_goes_on_with_a_quorum_when_nobody_can_replace() -> None:
    """A cluster of just E bookies with one down recovers its ledgers."""
    r = Recovery(3, 3, 2)
    r.store("AB", 0)
    r.store("A", 1, lac=-1)
    r.start("AB")
    r.read("A")
    r.write("C", codes.UNAVAILABLE)
    r.replace()
    assert r.finish("AB") == closed(1)


async def test_repair_of_an_open_ledger_does_not_stop_its_writer(cluster: Cluster) -> None:
    """BOOKKEEPER-584, -112: changes are re-applied to what is stored, not written over it.

    Breaks when ``LedgerStore.update`` gives up at the first conflict, or writes whatever is stored.
    """
    writer = await created(cluster, LedgerConfig(2, 2, 2), bookies=5)
    writer.append([b""], [b"x"])
    await eventually(lambda: writer.last_confirmed == 0)
    kept, lost = writer.metadata.last_segment.bookies
    cluster.bookies[lost].up = False
    writer.append([b""], [b"y"])
    await eventually(lambda: writer.last_confirmed == 1)
    assert len(writer.metadata.segments) == 2
    spare = (set(cluster.bookies) - set(writer.metadata.last_segment.bookies) - {lost}).pop()
    ledgers = cluster.client.ledgers
    _change_before_the_next_write(
        ledgers, writer.ledger_id, lambda m: replace_members(m, 0, {1: (lost, spare)})
    )
    second = writer.metadata.last_segment.bookies[1]
    cluster.bookies[second].up = False
    writer.append([b""], [b"z"])  # a change of the ensemble meets the repair
    await eventually(lambda: writer.last_confirmed == 2 or writer.error is not None)
    assert writer.error is None
    _change_before_the_next_write(
        ledgers, writer.ledger_id, lambda m: replace_members(m, 0, {0: (kept, second)})
    )
    ended = await writer.close()  # and so does the close
    assert (ended.state, ended.last_entry) == (LedgerState.CLOSED, 2)
    assert ended.segments[0].bookies == (second, spare)
    assert ended == (await ledgers.require(writer.ledger_id)).metadata


def _change_before_the_next_write(ledgers: LedgerStore, ledger_id: int, change: Change) -> None:
    """Somebody else's change comes between what the next update reads and what it writes."""
    store = ledgers._store
    put = store.put

    async def put_late(path: str, *arguments: Any, **options: Any) -> Versioned:
        if path == ledger_path(ledger_id):
            store.put = put  # type: ignore[method-assign]
            await ledgers.update(ledger_id, change)
        return await put(path, *arguments, **options)

    store.put = put_late  # type: ignore[method-assign]


def test_writer_that_meets_a_recovery_is_fenced() -> None:
    """1.2: upstream lets it close with its own end."""
    opened = LedgerMetadata(LEDGER, 1, 1, 1, (EnsembleSegment(0, ("A",)),))
    with pytest.raises(LedgerFencedError):
        close_by_writer(replace(opened, state=LedgerState.IN_RECOVERY), 3, 30)
    ended = replace(opened, state=LedgerState.CLOSED, last_entry=4, length=50)
    with pytest.raises(LedgerFencedError):
        close_by_writer(ended, 3, 30)
    assert close_by_writer(ended, 4, 50) is None


def test_fencing_needs_the_password() -> None:
    """BOOKKEEPER-135."""
    r = Recovery(1, 1, 1)
    r.bookies["A"].ledgers[LEDGER] = ModelLedger(bytes(19) + b"o")
    r.start("A")
    abort = r.outcome()
    assert isinstance(abort, AbortRecovery)
    assert isinstance(abort.error, UnauthorizedAccessError)
    assert not r.bookies["A"].ledgers[LEDGER].fenced


@pytest.mark.parametrize(
    "code",
    [
        codes.UNAVAILABLE,
        codes.IO_ERROR,  # #2908: a corrupt location is not an absence
        codes.UNKNOWN_LEDGER_STATE,  # #2612, #1380: a bookie that lost its disk
        codes.TOO_MANY_REQUESTS,
        codes.FENCED,
        codes.OK,  # "yes", with nothing in it
    ],
)
def test_unknown_is_never_absent(code: int) -> None:
    """Breaks when ``_unknown.add`` becomes ``_negatives.add``."""
    r = Recovery(3, 3, 2)
    r.store("ABC", 0, lac=-1)
    r.store("A", 1, lac=0)
    r.start()
    r.fence("AC")  # LAC 0: entry 1 is the first to be read
    r.read("C")
    for effect in [e for e in r.effects if isinstance(e, RecoveryRead)]:
        r.core.on_read(effect, code, [])  # of A, which may hold it, and of B
    r.effects.clear()
    r.take()
    abort = r.outcome()
    assert isinstance(abort, AbortRecovery), "Qf - 1 negatives and unknowns decide nothing"
    assert isinstance(abort.error, LedgerRecoveryError)


def test_corrupt_copy_is_unknown_and_an_intact_one_counts() -> None:
    """Fault 16, and 3.1's table: one Y is enough, a Y with a bad digest is a "?"."""
    r = Recovery(3, 3, 2)
    r.store("ABC", 0, lac=-1)
    r.store("A", 1, lac=0)
    r.bookies["A"].corrupt(LEDGER, 1)
    r.start()
    assert isinstance(r.finish("AC"), AbortRecovery)
    again = Recovery(3, 3, 2)
    again.store("ABC", 0, lac=-1)
    again.store("AB", 1, lac=0)
    again.bookies["A"].corrupt(LEDGER, 1)
    again.start()
    assert again.finish("ABC") == closed(1)


def test_rewrites_carry_the_recovery_flag() -> None:
    """PR 4163: without it the bookie, fenced by ourselves, refuses them."""
    r = Recovery(2, 2, 2)
    r.store("A", 0)
    r.start("AB")
    r.read("A")
    assert r.sends
    assert all(send.recovery for send in r.sends)
    r.write("AB")
    assert r.bookies["B"].payload(LEDGER, 0) == b"%010d" % 0


def test_two_copies_one_ack_cannot_recover_with_one_down() -> None:
    """#3952: 2/2/1 needs two answers; the right result is "not now", never a short ledger."""
    r = Recovery(2, 2, 1)
    r.store("A", 0)
    r.start()
    abort = r.finish("B")
    assert isinstance(abort, AbortRecovery)
    assert r.core.metadata.state is LedgerState.IN_RECOVERY


def test_length_is_that_of_the_last_entry() -> None:
    """3.5: the packet that supplied the LAC lies above the end here, and so does its length.

    Breaks when ``_finish_rewrites`` takes the length of the highest packet seen, or 0.
    """
    r = Recovery(3, 3, 2)
    for entry_id in range(3):
        r.store("ABC", entry_id, lac=entry_id - 1)
    r.store("C", 7, lac=2)
    r.start("C")
    r.fence("A")
    assert r.core.base_lac == 2
    assert r.finish("ABC") == closed(2)
    # The last segment is empty: the last entry lies in the one before.
    empty = Recovery(2, 2, 2, [(0, "AB"), (2, "CD")])
    empty.store("AB", 0, lac=-1)
    empty.store("AB", 1, lac=0)
    empty.start()
    assert empty.finish("BCD") == closed(1)


def test_a_corrupt_lac_answer_fences_but_supplies_nothing() -> None:
    r = Recovery(1, 1, 1)
    r.store("A", 0, lac=-1)
    r.store("A", 1, lac=0)
    r.bookies["A"].corrupt(LEDGER, 1)
    r.start("A")
    assert r.core.base_lac == -1
    assert isinstance(r.finish("A"), AbortRecovery)  # entry 1 may have been confirmed


def test_close_waits_for_the_rewrites() -> None:
    """18: what was found has its quorum before the end is published.

    Breaks without the comparison with ``last_confirmed`` in ``_finish_rewrites``.
    """
    r = Recovery(2, 2, 2)
    r.store("A", 0, lac=-1)
    r.start("AB")
    r.read("A")  # entry 0
    r.read("A")  # entry 1: absent
    assert not r.effects
    r.write("A")
    assert not r.effects
    r.write("B")
    assert r.outcome() == closed(0)


def test_an_explicit_lac_counts() -> None:
    """#2747, #2709: it may be the only word of the last confirmed entry."""
    r = Recovery(1, 1, 1)
    r.store("A", 0, lac=-1)
    r.bookies["A"].ledgers[LEDGER].explicit_lac = 0
    r.start("A")
    assert r.core.base_lac == 0
    assert r.finish("A") == closed(0)


def test_reading_waits_for_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    """What recovery holds in memory is bounded, however long the tail is."""
    monkeypatch.setattr("magnetar.bookkeeper.client.ledger_recovery.PENDING_BYTES_MAX", 100)
    r = Recovery(2, 2, 2)
    r.core = LedgerRecovery(r.metadata, never, read_entries_max=2)
    for entry_id in range(7):
        r.store("AB", entry_id, lac=-1)
    r.start("AB")
    r.read("A")
    r.read("A")
    assert not r.effects  # 4 entries are on their way, nothing more is read
    r.write("A")
    assert not r.effects
    r.write("B")
    assert [effect.first for effect in r.effects if isinstance(effect, RecoveryRead)] == [4]
    assert r.finish("AB") == closed(6)


def test_bookie_given_up_may_be_missed_later() -> None:
    """The first entry had its quorum without the failed bookies, the second can't get one."""
    r = Recovery(3, 2, 2)
    for entry_id in range(3):
        r.store("ABC", entry_id, lac=-1)
    r.start("ABC")
    r.read("A")  # entry 0 is on A and B
    r.write("AB")
    r.read("B")  # entry 1 is on B and C
    r.write("C", codes.UNAVAILABLE)
    r.replace()
    abort = r.outcome()
    assert isinstance(abort, AbortRecovery)
    assert isinstance(abort.error, LedgerRecoveryError)


@pytest.mark.parametrize("step", ["read", "write"])
def test_wrong_password_is_passed_up(step: str) -> None:
    r = Recovery(1, 1, 1)
    r.store("A", 0, lac=-1)
    r.start("A")
    if step == "read":
        r.read("A", codes.UNAUTHORIZED)
    else:
        r.read("A")
        r.write("A", codes.UNAUTHORIZED)
    abort = r.outcome()
    assert isinstance(abort, AbortRecovery)
    assert isinstance(abort.error, UnauthorizedAccessError)
    r.write("A")  # late answers change nothing
    r.core.on_replacements({})
    assert r.core.take_effects() == []


def test_a_segment_replaced_in_place_is_replaced_at_the_same_key() -> None:
    """Fault 13: nothing of the last segment was confirmed; its key stays, its bookies change."""
    r = Recovery(2, 2, 2, [(0, "AB"), (1, "CD")])
    r.store("AB", 0, lac=-1)
    r.store("C", 1, lac=0)
    r.start("CD")
    r.read("C")
    r.write("C")
    r.write("D", codes.IO_ERROR)
    r.replace(D="E")
    r.write("E")
    close = r.finish("ABCDE")
    assert close == closed(1, (1, "CE"))


async def test_an_idle_writers_last_entry_becomes_visible(cluster: Cluster) -> None:
    """#2747, #2709: nothing carries the LAC of the last entry before a pause.

    Breaks when ``ExplicitLac.on_confirmed`` arms no timer.
    """
    rng = cluster.client._rng
    client = BookKeeperClient(
        *(cluster.store, cluster.pool, cluster.client._placement),
        clock=lambda: 0,
        rng=rng,
        config=ClientConfig(writes=WriteConfig(explicit_lac_interval_ms=1)),
    )
    cluster.add_bookies(3)
    writer = await client.create_ledger(LedgerConfig(3, 3, 2))
    writer.append([b""], [b"the last one"])
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    assert await reader.wait(-1, 30.0) == 0


async def test_a_lagging_lac_hides_no_earlier_segment(cluster: Cluster) -> None:
    """PR 3917: the bookies of a brand-new last segment know of no LAC at all.

    What lies before that segment is confirmed, or there were no segment. Breaks when
    ``LedgerTail._read_metadata`` doesn't raise the bound to the key of the last segment.
    """
    writer = await created(cluster, LedgerConfig(3, 3, 2), bookies=6)
    writer.append([b""] * 5, [b"x"] * 5)
    await eventually(lambda: writer.last_confirmed == 4)
    for name in writer.metadata.last_segment.bookies:
        cluster.bookies[name].up = False
    writer.append([b""], [b"y"])
    await eventually(lambda: len(writer.metadata.segments) == 2 and writer.last_confirmed == 5)
    for bookie in cluster.bookies.values():
        bookie.up = True
    for name in writer.metadata.last_segment.bookies:
        del cluster.bookies[name].ledgers[writer.ledger_id]  # as if it were on its way
    reader = await cluster.client.open_ledger(writer.ledger_id, recover=False)
    assert reader.last_confirmed == 4
    assert len((await reader.read(0, 4, 100)).bodies) >= 1


@pytest.mark.parametrize("empty", "ABC")
def test_an_empty_bookie_in_limbo_hides_nothing(empty: str) -> None:
    """#2612, BP-46, #1380: restarted without its disk it must not help to end a ledger.

    Entry 0 is on two of three bookies. Breaks when a bookie in limbo answers NO_LEDGER.
    """
    r = Recovery(3, 3, 2)
    r.store("ABC".replace(empty, ""), 0)
    r.bookies[empty].lose_disk()
    r.start()
    outcome = r.finish("ABC")
    assert outcome == closed(0) or isinstance(outcome, AbortRecovery)
    lonely = Recovery(3, 3, 2)
    lonely.store("A", 0)
    for name in "BC":
        lonely.bookies[name].lose_disk()
    lonely.start()
    outcome = lonely.finish("BC")  # A, with the only copy left, doesn't answer
    assert isinstance(outcome, AbortRecovery)
