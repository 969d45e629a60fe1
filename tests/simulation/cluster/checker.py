"""Checks a simulated cluster at each effect: docs/spec/storage.md, "Safety".

Numbers in comments and messages are those of 10.1; docs/internals/simulation.md has the table.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.client.async_ledger_writer import AsyncLedgerWriter
from magnetar.bookkeeper.client.ledger_store import ledger_path
from magnetar.bookkeeper.layout.layout import Layout
from magnetar.bookkeeper.ledger_metadata import (
    EnsembleSegment,
    LedgerMetadata,
    LedgerState,
)
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES
from magnetar.bookkeeper.service_info import (
    AVAILABLE_PATH,
    LEDGERS_ROOT,
    UNDER_REPLICATION_ROOT,
)
from magnetar.bookkeeper.transport import AddRequest, ReadReply
from magnetar.metadata.store import Stat, Versioned
from tests.ledger_transitions import transition_error
from tests.simulation.cluster.machine import BookieMachine
from tests.simulation.cluster.metadata_model import TreeNode
from tests.simulation.cluster.nodes import Process
from tests.simulation.simulator import Simulator

ZONE_MS: Final = 700.0  # an audit that runs when a zone goes down may go on so long
CLOSED_MS: Final = 1500.0  # who looked while a segment was open ends its repair in this time
SWITCH_MS: Final = 2000.0  # what had begun when auto-recovery was switched off may go on so long


class LedgerHistory:
    """What the world knows of one ledger.

    Attributes:
        payloads: what its writer appended, by entry id.
        acked: everything up to it was confirmed to the writer's owner.
        read_upto: the highest entry any reader got.
        ends: what recoverers and the writer's close were told.
        negatives: process -> entry -> bookies that denied it to a fencing read.
        password: of the ledger.
        deleted: its owner deletes it; nothing is promised any more.
    """

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.payloads: list[bytes] = []
        self.acked = -1
        self.password = b""
        self.read_upto = -1
        self.ends: set[int] = set()
        self.negatives: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.metadata: LedgerMetadata | None = None
        self.deleted = False
        self.closed_ms = math.inf  # when
        self.lac_sent = -1  # highest LAC any packet of the writer carried
        self.writer: AsyncLedgerWriter | None = None


class Checker:
    """Told of every effect that matters; ``check`` records what isn't as it must be."""

    def __init__(self, simulator: Simulator, layout: Layout) -> None:
        self.simulator, self.layout = simulator, layout
        self.machines: dict[str, BookieMachine] = {}
        self.ledgers: dict[int, LedgerHistory] = {}
        self.zones: dict[str, tuple[str, str]] = {}  # bookie -> (zone, upgrade domain)
        self.disabled_ms: float | None = None  # since when auto-recovery is switched off
        self.zones_down: dict[str, float] = {}  # zone -> since when, in ms
        self.zone_ms = ZONE_MS
        self._registered: set[str] = set()
        # When a repair's lock was taken: what the metadata said, and what was acknowledged.
        self._locked: dict[int, tuple[LedgerMetadata | None, int]] = {}
        self.checks_marks = False  # 42, by the bookies that markers name
        self.strict_zones = 0  # 41: zones that every write set must span; 0: no such policy

    def check(self, holds: bool, what: str) -> None:
        self.simulator.check(holds, what)

    def count(self, what: str) -> None:
        self.simulator.recorder.count(what)

    def history(self, ledger_id: int) -> LedgerHistory:
        found = self.ledgers.get(ledger_id)
        if found is None:
            found = self.ledgers[ledger_id] = LedgerHistory(ledger_id)
        return found

    # Writers

    def on_sent(self, process: Process, request: AddRequest) -> None:
        """Packets leave a client."""
        history = self.history(request.ledger_id)
        for entry_id, head, body in zip(
            request.entry_ids, request.heads, request.bodies, strict=True
        ):
            lac = int.from_bytes(head[16:24], "big", signed=True)
            self.check(lac < entry_id, f"9: entry {entry_id} carries LAC {lac}")
            packet = head + body
            self.check(
                entry_id < len(history.payloads)
                and packet[PACKET_HEADER_BYTES:] == history.payloads[entry_id],
                f"12: {process}: entry {entry_id} of ledger {request.ledger_id} changed",
            )
            if not request.recovery:
                assert history.writer is not None
                confirmed = history.writer.last_confirmed
                self.check(lac <= confirmed, f"9: LAC {lac} sent, {confirmed} is confirmed")
                history.lac_sent = max(history.lac_sent, lac)

    def on_confirmed(self, history: LedgerHistory, upto: int) -> None:
        """The writer acknowledged everything up to ``upto`` to its owner."""
        ledger_id = history.ledger_id
        self.simulator.recorder.event("confirmed", ledger_id, upto)
        self.check(upto > history.acked, f"8: {upto} confirmed after {history.acked}")
        self.check(upto < len(history.payloads), f"8: {upto} confirmed, never appended")
        first, history.acked = history.acked + 1, upto
        metadata = history.metadata
        if metadata is None or history.deleted:
            return
        if metadata.state is LedgerState.CLOSED:
            self.check(upto <= metadata.last_entry, f"14: ledger {ledger_id}: {upto} above the end")
        for entry_id in range(first, upto + 1):
            self._check_copies(history, metadata, entry_id, "6, 7: confirmed,")

    # Bookies

    def is_repair(self, request: AddRequest) -> bool:
        """It brings a copy of an entry of a closed ledger; else it may be a recovery's."""
        metadata = self.history(request.ledger_id).metadata
        return request.recovery and metadata is not None and metadata.state is LedgerState.CLOSED

    def on_added(
        self, machine: BookieMachine, request: AddRequest, code: int, was_fenced: bool
    ) -> None:
        """A bookie answers an add that it got when it had, or hadn't, answered a fence."""
        ledger_id = request.ledger_id
        if code != codes.OK:
            self.count(f"answer: add {codes.code_name(code)}")
            return
        self.check(
            request.recovery or not was_fenced,
            f"15: {machine.host} took an add of ledger {ledger_id} after it was fenced",
        )
        packets = {
            entry_id: head + body
            for entry_id, head, body in zip(
                request.entry_ids, request.heads, request.bodies, strict=True
            )
        }
        if request.deferred_sync:  # acknowledged, and maybe only in memory
            machine.promises.early[ledger_id].update(packets)
        else:
            self._on_promised(machine, ledger_id, packets)

    def _on_promised(
        self, machine: BookieMachine, ledger_id: int, packets: dict[int, bytes]
    ) -> None:
        machine.promises.entries[ledger_id].update(packets)
        spoilt = machine.promises.spoilt.get(ledger_id)
        if spoilt is not None:
            spoilt.difference_update(packets)

    def on_forced(
        self, machine: BookieMachine, ledger_id: int, early: dict[int, bytes], code: int
    ) -> None:
        """A bookie answers a force; ``early``: what it vouches for if it says OK."""
        self.count(f"answer: force {codes.code_name(code)}")
        if code == codes.OK:
            self._on_promised(machine, ledger_id, early)

    def on_fenced(self, machine: BookieMachine, ledger_id: int) -> None:
        machine.promises.fences.add(ledger_id)

    def on_read(self, machine: BookieMachine, ledger_id: int, reply: ReadReply, held: bool) -> None:
        """A bookie answers a read; ``held``: it had promised the entry when it was asked."""
        if reply.code == codes.OK:
            return
        self.count(f"answer: read {codes.code_name(reply.code)}")
        history = self.history(ledger_id)
        if held and codes.is_explicit_negative(reply.code) and not history.deleted:
            self._check_denial(machine, history, reply.first)

    def on_denied(
        self, process: Process, machine: BookieMachine, ledger_id: int, entry: int
    ) -> None:
        """A client hears that a fenced bookie hasn't the entry."""
        self.history(ledger_id).negatives[process.name][entry].add(machine.host)

    def _check_denial(self, machine: BookieMachine, history: LedgerHistory, entry_id: int) -> None:
        """24, 28: who promised an entry, and is still asked for it, never says there is none."""
        metadata = history.metadata
        if metadata is None:
            return
        if metadata.state is LedgerState.CLOSED and entry_id > metadata.last_entry:
            return
        if not machine.promises.holds(history.ledger_id, entry_id):
            return
        if machine.host in owners(metadata, entry_id):
            lost = machine.promises.is_spoilt(history.ledger_id, entry_id)
            self.check(
                False,
                f"{'28' if lost else '24'}: {machine.host} denies entry {entry_id} of ledger "
                f"{history.ledger_id}{', which it lost' if lost else ''}",
            )

    def on_forgotten(self, machine: BookieMachine, ledger_id: int) -> None:
        """25: a bookie deletes what it has of a ledger."""
        self.count("state: a bookie collected a ledger")
        metadata = self.history(ledger_id).metadata
        if metadata is None:
            return
        listed = any(machine.host in segment.bookies for segment in metadata.segments)
        self.check(
            metadata.state is LedgerState.CLOSED and not listed,
            f"25: {machine.host} deletes ledger {ledger_id}, {metadata.state.value}, "
            f"{'which lists it' if listed else ''}",
        )

    # Metadata

    def on_metadata(
        self, writer: str, path: str, before: TreeNode | None, after: TreeNode | None
    ) -> None:
        """The tree changed."""
        if path.startswith(AVAILABLE_PATH):
            self._on_registration(path, after)
            return
        if path.startswith(UNDER_REPLICATION_ROOT):
            self._on_repair_node(writer, path, before, after)
            return
        name = path.rpartition("/")[2]
        if name[:1] != "L" or not name[1:].isdigit():
            return
        ledger_id = int(path.removeprefix(LEDGERS_ROOT).replace("/", "").replace("L", ""))
        assert path == ledger_path(ledger_id)
        decode = self.layout.decode_ledger
        old = None if before is None else decode(ledger_id, before.value)
        if after is None:
            if old is not None:
                self.history(old.ledger_id).metadata = None
            return
        new = decode(ledger_id, after.value)  # 1
        history = self.history(new.ledger_id)
        self.check(old is not None or history.metadata is None, f"31: ledger id {path} again")
        history.metadata = new
        self.simulator.recorder.event(new.state.value, new.last_entry, *new.segments)
        self._check_zones(old, new)
        if old is not None and before is not None:
            self.check(after.version == before.version + 1, f"4: version {after.version}")
            self._on_changed(writer, history, old, new)

    def _on_registration(self, path: str, after: TreeNode | None) -> None:
        """Since when zones are down, as whoever looks at registrations sees it."""
        host = path.rpartition("/")[2]
        if host not in self.zones:
            return
        if after is None:
            self._registered.discard(path)
        else:
            self._registered.add(path)
        present = {each.rpartition("/")[2] for each in self._registered}
        zone = self.zones[host][0]
        members = [each for each, place in self.zones.items() if place[0] == zone]
        missing = [each for each in members if each not in present]
        if len(missing) < 2 or 2 * len(missing) <= len(members):
            self.zones_down.pop(zone, None)
        elif zone not in self.zones_down:
            self.count("state: zone down")
            self.zones_down[zone] = self.simulator.loop.now * 1000

    def _check_marked(self, writer: str, name: str, marker: TreeNode) -> None:
        """42: nothing is marked for a zone that is down as a whole."""
        named = self._named(marker)
        now_ms = self.simulator.loop.now * 1000
        down = {zone for zone, since in self.zones_down.items() if now_ms > since + self.zone_ms}
        self.check(
            not named or not all(self.zones[host][0] in down for host in named),
            f"42: {writer} marks {name} for {sorted(named)}, zones {sorted(down)} are down",
        )

    def _named(self, marker: TreeNode) -> frozenset[str]:
        node = Versioned("marker", marker.value, Stat(0, 0, 0, False, False))
        return self.layout.under_replication.decode_marker(0, node).bookies

    def _on_repair_node(
        self, writer: str, path: str, before: TreeNode | None, after: TreeNode | None
    ) -> None:
        """Markers, locks and the switch of auto-recovery."""
        now_ms, name = self.simulator.loop.now * 1000, path.rpartition("/")[2]
        if name == "disable":
            self.disabled_ms = None if after is None else now_ms
            self.count(f"state: auto-recovery switched {'on' if after is None else 'off'}")
            return
        is_marker = name.startswith("urL") and "/locks/" not in path
        is_off = self.disabled_ms is not None and now_ms > self.disabled_ms + SWITCH_MS
        if is_marker and before is None:
            self.count("state: ledger marked")
            self.check(not is_off, f"42: {writer} marks {name} while auto-recovery is off")
            if after is not None and writer.startswith("a") and self.checks_marks:
                self._check_marked(writer, name, after)
        elif is_marker and after is None and before is not None:
            self.count("state: marker cleared")
            self._check_cleared(int(name[3:]), before)
        elif name.startswith("urL") and before is None:
            self.count("state: ledger locked for repair")
            history = self.history(int(name[3:]))
            self._locked[history.ledger_id] = history.metadata, history.acked
            is_worker = writer.startswith("a")
            self.check(
                not (is_off and is_worker), f"42: {writer} repairs {name} while it is switched off"
            )

    def _check_cleared(self, ledger_id: int, marker: TreeNode) -> None:
        """30: the bookies that were named have what is theirs, or are not asked any more."""
        history = self.history(ledger_id)
        metadata = history.metadata
        if metadata is None or history.deleted or not marker.value:
            return
        named = self._named(marker)
        for segment in metadata.segments:
            end = self._end_looked_at(history, metadata, segment)
            for slot, host in enumerate(segment.bookies):
                if host in named:
                    missing = self.missing(metadata, slot, host, range(segment.first_entry, end))
                    missing = [e for e in missing if not self._is_restored(host, ledger_id, e)]
                    self.check(
                        not missing,
                        f"30: the marker of ledger {ledger_id} is gone, {host} has no {missing}",
                    )

    def _is_restored(self, host: str, ledger_id: int, entry_id: int) -> bool:
        """It is in memory, and limbo lasts, over restarts, until it is durable."""
        machine = self.machines[host]
        return (
            machine.is_up
            and machine.knows_its_loss(ledger_id)
            and machine.read(ledger_id, entry_id) is not None
        )

    def _end_looked_at(
        self, history: LedgerHistory, metadata: LedgerMetadata, segment: EnsembleSegment
    ) -> int:
        """Up to where a repair that ends now has to have looked at a segment."""
        end = metadata.segment_end(segment.first_entry)
        if end is not None:
            return end
        end = metadata.last_entry + 1
        before, acked = self._locked[history.ledger_id]
        was_closed = before is not None and before.state is LedgerState.CLOSED
        if was_closed or self.simulator.loop.now * 1000 >= history.closed_ms + CLOSED_MS:
            return end
        # It may have looked while this was open: at what was there then, at least.
        return acked + 1 if metadata.state is not LedgerState.CLOSED else min(end, acked + 1)

    def missing(self, metadata: LedgerMetadata, slot: int, host: str, span: range) -> list[int]:
        """Entries of a segment that a bookie should have by its slot, and hasn't."""
        ledger_id, machine = metadata.ledger_id, self.machines[host]
        owned = quorum.entries_of(
            slot, span.start, span.stop, metadata.ensemble_size, metadata.write_quorum
        )
        return [e for e in owned if not machine.has_durably(ledger_id, e)]

    def _on_changed(
        self, writer: str, history: LedgerHistory, old: LedgerMetadata, new: LedgerMetadata
    ) -> None:
        self._count_change(history, old, new)
        error = transition_error(old, new)  # 2, 19
        self.check(error is None, f"2: ledger {new.ledger_id}: {error}")
        if history.deleted:
            return
        for entry_id in range(history.acked + 1):
            self._check_copies(history, new, entry_id, "7: after a metadata write,")
        if len(new.segments) > len(old.segments) and new.state is LedgerState.OPEN:
            key = new.last_segment.first_entry
            self.check(history.lac_sent < key, f"10: segment {key}, LAC {history.lac_sent} sent")
        if new.state is LedgerState.CLOSED and old.state is not LedgerState.CLOSED:
            self._on_closed(writer, history, old, new)
        else:
            self._check_moved(history, old, new)

    def _on_closed(
        self, writer: str, history: LedgerHistory, old: LedgerMetadata, new: LedgerMetadata
    ) -> None:
        history.closed_ms = self.simulator.loop.now * 1000
        end, where = new.last_entry, f"ledger {new.ledger_id} closed at {new.last_entry}"
        self.check(end >= history.acked, f"5, 17: {where}, {history.acked} was acknowledged")
        self.check(end >= history.read_upto, f"13: {where}, {history.read_upto} was read")
        self.check(end >= history.lac_sent, f"17: {where}, LAC {history.lac_sent} was sent")
        self.check(end < len(history.payloads), f"3: {where}, {len(history.payloads)} appended")
        length = sum(map(len, history.payloads[: end + 1]))
        self.check(new.length == length, f"3: {where} with length {new.length}, not {length}")
        for entry_id in range(end + 1):
            self._check_copies(history, new, entry_id, "18: closed,")
        if old.state is LedgerState.IN_RECOVERY:
            members = set(owners(old, end + 1))
            denied = history.negatives[writer][end + 1] & members
            needed = quorum.absence_quorum(new.write_quorum, new.ack_quorum)
            self.check(
                len(denied) >= needed, f"16: {where}, denied by {sorted(denied)} of {needed}"
            )

    def _check_moved(
        self, history: LedgerHistory, old: LedgerMetadata, new: LedgerMetadata
    ) -> None:
        """29: who comes into a closed segment has what belongs there."""
        for before, after in zip(old.segments, new.segments, strict=False):
            if before.bookies == after.bookies:
                continue
            last = after is new.last_segment
            if last and new.state is not LedgerState.CLOSED:
                self.check(
                    old.state is LedgerState.OPEN, f"29: {new.state.value} segment {after} changed"
                )
                continue  # the writer's own
            following = new.segment_end(after.first_entry)
            end = new.last_entry + 1 if following is None else following
            self.count("state: closed segment repaired")
            for slot, (gone, came) in enumerate(zip(before.bookies, after.bookies, strict=True)):
                if gone != came:
                    self._check_newcomer(history, new, slot, came, range(after.first_entry, end))

    def _check_newcomer(
        self, history: LedgerHistory, metadata: LedgerMetadata, slot: int, host: str, span: range
    ) -> None:
        machine, missing = self.machines[host], self.missing(metadata, slot, host, span)
        if missing and machine.knows_its_loss(history.ledger_id):
            # It lost them between its answer and the write, which nobody can rule out. It denies
            # nothing, and isn't done before it has got them again.
            self.count("state: named after it lost its copies")
            missing = [e for e in missing if not machine.promises.is_spoilt(history.ledger_id, e)]
        self.check(
            not missing,
            f"29: {host} came into {span} of ledger {history.ledger_id} without {missing}",
        )

    def _check_zones(self, old: LedgerMetadata | None, new: LedgerMetadata) -> None:
        """41: every published segment spans enough zones."""
        if not self.strict_zones:
            return
        known = set() if old is None else set(old.segments)
        for segment in new.segments:
            if segment not in known:
                self._check_segment_zones(new, segment)

    def _check_segment_zones(self, metadata: LedgerMetadata, segment: EnsembleSegment) -> None:
        for slots in quorum.write_sets(metadata.ensemble_size, metadata.write_quorum):
            places = [self.zones[segment.bookies[slot]] for slot in slots]
            zones = {zone for zone, _ in places}
            self.check(
                len(zones) >= self.strict_zones and len(set(places)) == len(places),
                f"41: {segment} of ledger {metadata.ledger_id} lies in {places}",
            )

    def _count_change(
        self, history: LedgerHistory, old: LedgerMetadata, new: LedgerMetadata
    ) -> None:
        if new.state is not old.state:
            self.count(f"state: {old.state.value} to {new.state.value}")
        if new.state is LedgerState.CLOSED and new.state is not old.state:
            if new.last_entry > history.acked:
                self.count("state: recovered above what was acknowledged")
            if new.segments != old.segments:
                self.count("state: a recovery's segments")
        elif new.segments != old.segments and old.state is LedgerState.OPEN:
            in_place = len(new.segments) == len(old.segments)
            self.count(f"state: ensemble change{' in place' if in_place else ''}")

    # Recoverers and readers

    def on_end(self, history: LedgerHistory, last_entry: int) -> None:
        """Somebody was told where the ledger ends."""
        history.ends.add(last_entry)
        self.check(
            len(history.ends) == 1, f"20: ledger {history.ledger_id}: ends {sorted(history.ends)}"
        )

    def on_payloads(
        self, history: LedgerHistory, first: int, payloads: Sequence[bytes], bound: int
    ) -> None:
        """A reader got entries."""
        last = first + len(payloads) - 1
        self.check(last <= bound, f"11: {last} read above {bound}")
        metadata = history.metadata
        if metadata is not None and metadata.state is LedgerState.CLOSED:
            self.check(last <= metadata.last_entry, f"11: {last} read above the end")
        self.check(
            list(payloads) == history.payloads[first : last + 1],
            f"12, 43: ledger {history.ledger_id}: {first}..{last} differ",
        )
        history.read_upto = max(history.read_upto, last)

    def on_no_entry(self, history: LedgerHistory, entry_id: int) -> None:
        """A reader is told definitely that there is no such entry."""
        if history.deleted:
            return
        self.check(
            entry_id > max(history.acked, history.read_upto),
            f"13: ledger {history.ledger_id}: entry {entry_id} is denied, it was readable",
        )

    # Copies

    def _check_copies(
        self, history: LedgerHistory, metadata: LedgerMetadata, entry_id: int, when: str
    ) -> None:
        members = list(owners(metadata, entry_id))
        holders = [host for host in members if self._holds(host, history.ledger_id, entry_id)]
        if len(holders) < metadata.ack_quorum:
            self.check(
                False,
                f"{when} ledger {history.ledger_id}: entry {entry_id} is on {holders} of {members}",
            )

    def _holds(self, host: str, ledger_id: int, entry_id: int) -> bool:
        # Spoilt copies count: the test took them away, not the product.
        machine = self.machines[host]
        return machine.promises.holds(ledger_id, entry_id) or machine.has_durably(
            ledger_id, entry_id
        )


def owners(metadata: LedgerMetadata, entry_id: int) -> Iterator[str]:
    """The write set of an entry, as the metadata has it."""
    segment = metadata.segment_of(entry_id).bookies
    for slot in quorum.write_set(entry_id, metadata.ensemble_size, metadata.write_quorum):
        yield segment[slot]
