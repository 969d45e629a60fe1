"""A simulated cluster for one ledger: bookies, metadata store, and the judge of its invariants.

Numbers in comments are those of docs/spec/storage.md, "Safety".
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.bookie_protocol.digests import DigestType
from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.layout.layout import JsonLayout, Layout
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.bookkeeper.transport import (
    AddRequest,
    BookieStatus,
    LacReply,
    ReadReply,
    ReadRequest,
)
from magnetar.metadata.errors import (
    BadVersionError,
    MetadataError,
    NotEmptyError,
    NotFoundError,
    OutcomeUnknownError,
)
from magnetar.metadata.paths import check_path
from magnetar.metadata.store import (
    MetadataEvent,
    MetadataStore,
    SessionEvent,
    Stat,
    Versioned,
    Watch,
    check_delete,
    check_put,
)
from tests.ledger_transitions import transition_error
from tests.simulation.model_bookie import ModelBookie
from tests.simulation.simulator import Node, Simulator

T = TypeVar("T")
LATE_MS_MAX = 50.0  # a metadata write whose answer was lost may still happen this much later
NEVER_MS = 600_000.0


class Registry:
    """The metadata tree: linearizable, always up; the world judges every ledger write."""

    def __init__(self, world: "LedgerWorld") -> None:
        self.up = True
        self.nodes: dict[str, tuple[bytes, int]] = {}
        self._world = world

    def __str__(self) -> str:
        return "metadata"

    def put(self, node: Node, path: str, value: bytes, expected: int | None) -> int:
        """The new version; raises BadVersionError."""
        found = self.nodes.get(path)
        actual = -1 if found is None else found[1]
        if expected is not None and expected != actual:
            raise BadVersionError(path, expected, actual)
        self.nodes[path] = (value, actual + 1)  # 4
        if path.rpartition("/")[2].startswith("L"):
            decode = self._world.decode
            old = None if found is None else decode(path, found[0])
            self._world.on_metadata(node, old, decode(path, value))
        self._world.on_put(path, value)
        return actual + 1


class SimulatedStore(MetadataStore):
    """One node's session: every call takes time, and the answer to a write may be lost."""

    def __init__(self, node: Node, world: "LedgerWorld") -> None:
        self._node, self._world = node, world
        self._registry = world.registry

    async def get(self, path: str) -> Versioned | None:
        check_path(path)
        found = await self._call(lambda: self._registry.nodes.get(path))
        return None if found is None else _versioned(path, *found)

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Versioned:
        check_put(path, value, expected_version, sequential)
        world = self._world
        if sequential:
            path += f"{world.sequence():010d}"
        if world.simulator.rng.random() < world.simulator.network.faults.metadata_unknown:
            world.simulator.recorder.count("fault: metadata answer lost")
            if self._node.alive and world.simulator.rng.random() < 0.7:
                delay_ms = world.simulator.rng.uniform(0, LATE_MS_MAX)
                world.simulator.loop.call_later(
                    delay_ms / 1000, self._apply, path, value, expected_version
                )
            await self._call(lambda: None)
            raise OutcomeUnknownError(path)
        result = await self._call(lambda: self._apply(path, value, expected_version))
        if isinstance(result, BadVersionError):
            raise result
        return _versioned(path, value, result)

    def _apply(self, path: str, value: bytes, expected: int | None) -> int | BadVersionError:
        try:
            return self._registry.put(self._node, path, value, expected)
        except BadVersionError as error:
            return error

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        check_delete(path, expected_version)
        if (error := await self._call(lambda: self._remove(path, expected_version))) is not None:
            raise error

    def _remove(self, path: str, expected: int | None) -> MetadataError | None:
        found = self._registry.nodes.get(path)
        if found is None:
            return NotFoundError(path)
        if expected is not None and expected != found[1]:
            return BadVersionError(path, expected, found[1])
        if any(x.startswith(path + "/") for x in self._registry.nodes):
            return NotEmptyError(path)
        del self._registry.nodes[path]
        return None

    async def children(self, path: str) -> list[str]:
        prefix = path + "/"
        below = [p[len(prefix) :] for p in self._registry.nodes if p.startswith(prefix)]
        return sorted({p.split("/")[0] for p in below})

    async def exists(self, path: str) -> bool:
        return await self.get(path) is not None

    async def delete_recursive(self, path: str) -> None:
        raise AssertionError("the ledger client never deletes trees")

    def watch(self, path_prefix: str, on_event: Callable[[MetadataEvent], None]) -> Watch:
        raise AssertionError("bookies of this simulation are added by hand")

    def on_session_event(self, on_event: Callable[[SessionEvent], None]) -> Watch:
        raise AssertionError("sessions of this simulation never end")

    @property
    def session_id(self) -> str:
        return self._node.name

    @property
    def session_key(self) -> str:
        return self._node.name

    async def end_session(self, key: str) -> None:
        raise AssertionError("sessions of this simulation never end")

    async def close(self) -> None:
        return

    async def _call(self, handle: Callable[[], T]) -> T:
        reply = await self._world.simulator.network.call(
            self._node, self._registry, lambda: (handle(),), NEVER_MS, lossless=True
        )
        assert reply is not None
        return reply[0]


class SimulatedBookieClient(BookieClient):
    """A bookie as one node sees it over the faulty network."""

    def __init__(self, node: Node, bookie: ModelBookie, world: "LedgerWorld") -> None:
        self._node, self._bookie, self._world = node, bookie, world
        self._network = world.simulator.network

    @property
    def bookie_id(self) -> str:
        return self._bookie.bookie_id

    def add_entries(self, request: AddRequest) -> None:
        self._world.on_sent(self._node, request)
        self._network.request(
            self._node,
            self._bookie,
            lambda: self._bookie.add(request),
            # Repeated and late replies call ``done`` again, which a real transport doesn't.
            lambda code: request.done(request, codes.UNAVAILABLE if code is None else code),
        )

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        reply = await self._network.call(
            self._node,
            self._bookie,
            lambda: self._bookie.read(request),
        )
        if reply is None:
            return ReadReply(codes.UNAVAILABLE, request.first, [])
        if reply.code == codes.UNKNOWN_LEDGER_STATE:
            self._world.simulator.recorder.count("state: limbo answer")
        if request.fence and codes.is_explicit_negative(reply.code):
            self._world.negatives[self._node.name][request.first].add(self.bookie_id)
        return reply

    async def read_lac(
        self, ledger_id: int, *, fence: bool, master_key: bytes = b"", creator: int = 0
    ) -> LacReply:
        reply = await self._network.call(
            self._node,
            self._bookie,
            lambda: self._bookie.read_lac(
                ledger_id, fence=fence, master_key=master_key, creator=creator
            ),
        )
        return LacReply(codes.UNAVAILABLE, None, -1) if reply is None else reply

    async def wait_lac(
        self, ledger_id: int, above: int, wait_s: float, *, creator: int = 0
    ) -> LacReply:
        return await self.read_lac(ledger_id, fence=False, creator=creator)

    async def info(self) -> BookieStatus:
        return BookieStatus(self.bookie_id, False, 1 << 40, 1 << 40)

    async def report_corrupt(self, ledger_id: int, entry_id: int) -> int:
        return codes.OK  # repair is no part of this world


class LedgerWorld:
    """Cluster and judge of one ledger."""

    def __init__(self, simulator: Simulator, bookie_count: int) -> None:
        self.simulator = simulator
        self.registry = Registry(self)
        self.bookies = {f"b{n}": self.make_bookie(f"b{n}") for n in range(bookie_count)}
        self.digest_type = DigestType.CRC32C
        self.lost_disks: dict[str, set[int]] = {}  # bookie -> entries it held
        self.payloads: list[bytes] = []  # what the writer appended, by entry id
        self.metadata: LedgerMetadata | None = None
        self.acked = -1
        self.read_upto = -1  # highest entry any reader got
        self.ends: set[int] = set()  # what recoverers and the writer's close reported
        self.negatives: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._layout = self.make_layout()
        self._numbers = 0

    # What a world of other bookies has instead

    def make_bookie(self, bookie_id: str) -> ModelBookie:
        return ModelBookie(bookie_id)

    def make_store(self, node: Node) -> SimulatedStore:
        return SimulatedStore(node, self)

    def make_layout(self) -> Layout:
        """Each client has its own: it may remember ledgers."""
        return JsonLayout()

    def make_clients(self, node: Node, layout: Layout) -> Sequence[BookieClient]:
        return [SimulatedBookieClient(node, bookie, self) for bookie in self.bookies.values()]

    def client(self, node: Node) -> BookKeeperClient:
        pool, layout = BookiePool(), self.make_layout()
        for each in self.make_clients(node, layout):
            pool.add(each)
        return BookKeeperClient(
            self.make_store(node),
            pool,
            RandomPlacement(self.simulator.rng),
            clock=lambda: int(self.simulator.loop.now * 1000),
            rng=self.simulator.rng,
            config=ClientConfig(recovery_read_entries=7),
            layout=layout,
        )

    def decode(self, path: str, value: bytes) -> LedgerMetadata:
        """Of a ledger's node."""
        return self._layout.decode_ledger(int(re.sub(r"\D", "", path)), value)

    def sequence(self) -> int:
        """Of a sequential node."""
        self._numbers += 1
        return self._numbers

    def lose_disk(self, bookie_id: str) -> None:
        self.simulator.recorder.count("fault: disk lost")
        bookie = self.bookies[bookie_id]
        held = {e for ledger in bookie.ledgers.values() for e in ledger.entries}
        self.lost_disks.setdefault(bookie_id, set()).update(held)
        bookie.lose_disk()

    def rot(self, bookie_id: str, ledger_id: int) -> bool:
        """Flip a bit in one entry whose other copies are sound; False: there is none."""
        ledger = self.bookies[bookie_id].ledgers.get(ledger_id)
        spoilt = set[int]().union(*self.lost_disks.values())
        sound = [e for e in (() if ledger is None else ledger.entries) if e not in spoilt]
        if not sound:
            return False
        entry_id = self.simulator.rng.choice(sound)
        self.bookies[bookie_id].corrupt(ledger_id, entry_id)
        self.lost_disks.setdefault(bookie_id, set()).add(entry_id)
        self.simulator.recorder.count("fault: bit flipped")
        return True

    # The judge

    def on_sent(self, node: Node, request: AddRequest) -> None:
        if request.recovery:
            return
        for entry_id, head, body in zip(
            request.entry_ids, request.heads, request.bodies, strict=True
        ):
            lac = int.from_bytes(head[16:24], "big", signed=True)
            self._check(lac < entry_id, f"9: entry {entry_id} carries LAC {lac}")
            self._check(
                (head + body)[36:] == self.payloads[entry_id], f"12: entry {entry_id} changed"
            )

    def on_confirmed(self, upto: int) -> None:
        """The writer acknowledged everything up to ``upto`` to the application."""
        self._check(upto > self.acked, f"8: {upto} confirmed after {self.acked}")
        first, self.acked = self.acked + 1, upto
        metadata = self.metadata
        assert metadata is not None
        if metadata.state is LedgerState.CLOSED:
            self._check(upto <= metadata.last_entry, f"14: {upto} confirmed above the end")
        for entry_id in range(first, upto + 1):
            self._check_copies(metadata, entry_id, "6, 7: confirmed")

    def on_put(self, path: str, value: bytes) -> None:
        """Any node has a new value."""

    def on_metadata(self, node: Node, old: LedgerMetadata | None, new: LedgerMetadata) -> None:
        self.metadata = new
        self.simulator.recorder.event("metadata", node.name, new.state.value, *new.segments)
        if old is None:
            return
        self._count_change(old, new)
        error = transition_error(old, new)  # 1 (decode), 2, 19
        self._check(error is None, f"2: {error}")
        for entry_id in range(self.acked + 1):
            self._check_copies(new, entry_id, "7: after a metadata write,")
        if len(new.segments) > len(old.segments) and new.state is LedgerState.OPEN:
            key = new.last_segment.first_entry
            claims = [
                lac
                for bookie in self.bookies.values()
                for lac in bookie.lac_claims(new.ledger_id).values()
            ]
            self._check(all(lac < key for lac in claims), f"10: segment {key}, LACs {claims}")
        if new.state is LedgerState.CLOSED and old.state is not LedgerState.CLOSED:
            self._on_closed(node, old, new)

    def _on_closed(self, node: Node, old: LedgerMetadata, new: LedgerMetadata) -> None:
        end = new.last_entry
        self._check(end >= self.acked, f"5: closed at {end}, {self.acked} was acknowledged")
        self._check(end >= self.read_upto, f"13: closed at {end}, {self.read_upto} was read")
        length = sum(map(len, self.payloads[: end + 1]))
        self._check(new.length == length, f"3: length {new.length}, not {length}")
        for entry_id in range(end + 1):
            self._check_copies(new, entry_id, "18: closed,")
        if old.state is LedgerState.IN_RECOVERY:
            segment = old.last_segment.bookies
            slots = quorum.write_set(end + 1, new.ensemble_size, new.write_quorum)
            denied = self.negatives[node.name][end + 1] & {segment[slot] for slot in slots}
            needed = quorum.absence_quorum(new.write_quorum, new.ack_quorum)
            self._check(len(denied) >= needed, f"16: end {end} with {denied} of {needed}")

    def _count_change(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        count = self.simulator.recorder.count
        if new.state is not old.state:
            count(f"state: {old.state.value} to {new.state.value}")
        if new.state is LedgerState.CLOSED and new.last_entry > self.acked:
            count("state: recovered above what was acknowledged")
        if new.segments != old.segments:
            kind = "a recovery's segments" if new.state is LedgerState.CLOSED else "ensemble change"
            in_place = len(new.segments) == len(old.segments)
            count(f"state: {kind}{' in place' if in_place else ''}")

    def on_end(self, last_entry: int) -> None:
        """Somebody was told where the ledger ends."""
        self.ends.add(last_entry)
        self._check(len(self.ends) == 1, f"20: ends {self.ends}")

    def on_read(self, first: int, payloads: list[bytes], bound: int) -> None:
        last = first + len(payloads) - 1
        self._check(last <= bound, f"11: {last} read above {bound}")
        self._check(payloads == self.payloads[first : last + 1], f"12: {first}..{last} differ")
        self.read_upto = max(self.read_upto, last)

    def _check_copies(self, metadata: LedgerMetadata, entry_id: int, when: str) -> None:
        segment = metadata.segment_of(entry_id).bookies
        slots = quorum.write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        holders = [segment[slot] for slot in slots if self._holds(segment[slot], entry_id)]
        self._check(
            len(holders) >= metadata.ack_quorum,
            f"{when} entry {entry_id} is on {holders} of {segment}",
        )

    def _holds(self, bookie_id: str, entry_id: int) -> bool:
        if entry_id in self.lost_disks.get(bookie_id, ()):
            return True  # the test took it away, not the protocol
        assert self.metadata is not None
        return self.bookies[bookie_id].payload(self.metadata.ledger_id, entry_id) is not None

    def _check(self, holds: bool, what: str) -> None:
        self.simulator.check(holds, what)


def _versioned(path: str, value: bytes, version: int) -> Versioned:
    return Versioned(path, value, Stat(version, 0, 0, False, False))
