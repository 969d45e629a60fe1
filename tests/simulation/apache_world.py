"""The ledger's world on Apache's bookies: the client is the product's own, byte for byte.

Its connections are streams: nothing is lost, repeated or overtaken on one of them, but it ends, and
bytes come cut anywhere. A bookie that is down has either lost its connections, or is silent and
goes on with what it has got, later.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from struct import unpack_from
from typing import Any, Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.bookie_protocol.add_channel import EncodedAdds
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.digests import NO_PACKET, Digest, DigestType, from_stored
from magnetar.bookkeeper.bookie_protocol.frame_pieces import LENGTH
from magnetar.bookkeeper.bookie_protocol.frames_v2 import ADD, ADD_BYTES
from magnetar.bookkeeper.bookie_protocol.protocol_client import ProtocolBookieClient
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.layout import Layout
from magnetar.bookkeeper.transport import AddRequest, ReadReply, ReadRequest
from tests.simulation.apache_bookie import ApacheBookie
from tests.simulation.ledger_world import LedgerWorld
from tests.simulation.model_bookie import ModelBookie
from tests.simulation.simulator import Node, Simulator, VirtualLoop

ADDS_MAX: Final = 12
"""Of a connection, under way: ``entries_max``, small as the runs are."""
BATCH_MAX: Final = 7
"""Entries of the largest request: a recovery's."""
_CONFIG: Final = ProtocolConfig(
    add_timeout_s=0.8,
    read_timeout_s=0.8,
    connect_timeout_s=0.5,
    backoff_max_s=0.2,
    entries_max=ADDS_MAX,
)
_NEVER_TOO_SOON_S: Final = 1e-6


class ApacheLoop(VirtualLoop):
    """``create_connection`` leads to the world's bookies; a host is ``node/bookie``."""

    world: "ApacheWorld"

    async def create_connection(  # type: ignore[override]
        self, create: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        return await self.world.connect(create, *host.split("/"))


class Stream:
    """Bytes in one direction: in order, late."""

    def __init__(self, simulator: Simulator, deliver: Callable[[bytes], None]) -> None:
        self._simulator, self._deliver = simulator, deliver
        self._last_s = 0.0

    def send(self, data: bytes) -> None:
        rng, faults = self._simulator.rng, self._simulator.network.faults
        while data:
            cut = rng.randint(1, len(data)) if rng.random() < 0.2 else len(data)
            delay_ms = rng.uniform(0.1, faults.delay_ms_max)
            if rng.random() < faults.slow_message:
                delay_ms = rng.uniform(0.1, faults.slow_ms_max)
            loop = self._simulator.loop
            at = max(loop.time() + delay_ms / 1000, self._last_s + _NEVER_TOO_SOON_S)
            self._last_s = at
            loop.call_at(at, self._deliver, data[:cut])
            data = data[cut:]


class Connection(asyncio.Transport):
    """Both ends of one."""

    def __init__(
        self, world: "ApacheWorld", node: Node, bookie: ApacheBookie, protocol: asyncio.Protocol
    ) -> None:
        super().__init__()
        self._world, self._node, self._bookie, self._protocol = world, node, bookie, protocol
        self._requests = Stream(world.simulator, self._to_bookie)
        self._replies = Stream(world.simulator, self._to_node)
        self._data = b""
        self._adds = 0  # received, no reply is on its way yet
        self._closed = False

    # Of the client

    def write(self, data: Any) -> None:
        if not self._closed and self._node.step():
            self._requests.send(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(map(bytes, list_of_data)))

    def is_closing(self) -> bool:
        return self._closed

    def abort(self) -> None:
        self._closed = True

    # Of the network and of the bookie

    def _to_bookie(self, data: bytes) -> None:
        if self._closed:
            return
        rng, faults = self._world.simulator.rng, self._world.simulator.network.faults
        if rng.random() < faults.message_loss / 2:
            self._world.simulator.recorder.count("fault: connection lost")
            self.lose()
            return
        self._data += data
        self._go_on()

    def _go_on(self) -> None:
        if self._closed:
            return
        if not self._bookie.up:
            if self._bookie.gone or self._world.simulator.rng.random() < 0.1:
                self.lose()
            else:  # it was stopped: it goes on with what it has got
                self._world.simulator.loop.call_later(0.1, self._go_on)
            return
        while len(self._data) >= 4 and len(self._data) >= 4 + unpack_from(">I", self._data)[0]:
            (size,) = unpack_from(">I", self._data)
            body, self._data = self._data[4 : 4 + size], self._data[4 + size :]
            self._take(body)

    def _take(self, body: bytes) -> None:
        is_add = body[1] == ADD and body[0] == 2
        self._adds += is_add
        self._world.on_adds_under_way(self._adds)
        if is_add:
            self._world.on_packet(body[ADD_BYTES - LENGTH.size :])
        self._world.simulator.recorder.event("request", self._node.name, self._bookie)
        reply = self._bookie.answer(body)
        if reply is None:
            self.lose()
            return
        # Threads of a bookie answer in any order.
        delay_ms = self._world.simulator.rng.uniform(0, 3)
        self._world.simulator.loop.call_later(delay_ms / 1000, self._answer, reply, is_add)

    def _answer(self, reply: bytes, is_add: bool) -> None:
        self._adds -= is_add
        if not self._closed:
            self._replies.send(len(reply).to_bytes(4, "big") + reply)

    def _to_node(self, data: bytes) -> None:
        loop = self._world.simulator.loop
        if self._closed:
            return
        if self._node.paused_until > loop.time():
            loop.call_at(self._node.paused_until + loop.time() * 1e-9, self._to_node, data)
        elif self._node.step():
            self._world.simulator.recorder.event("reply", self._node.name, self._bookie)
            self._protocol.data_received(data)

    def lose(self) -> None:
        """It ends for the client, whatever was under way."""
        self._closed = True
        if self._node.alive:
            self._world.simulator.loop.call_soon(self._protocol.connection_lost, None)


class CheckedClient(ProtocolBookieClient):
    """The product's; the judge sees what is sent and what is denied."""

    def __init__(self, node: Node, world: "ApacheWorld", *args: Any) -> None:
        super().__init__(*args)
        self._node, self._world = node, world

    def add_entries(self, request: AddRequest) -> None:
        self._world.on_sent(self._node, request)
        super().add_entries(request)

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        reply = await super().read_entries(request)
        is_fenced = self._world.bookies[self.bookie_id].is_fenced(request.ledger_id)
        if is_fenced and codes.is_explicit_negative(reply.code):  # else it proves nothing
            self._world.negatives[self._node.name][request.first].add(self.bookie_id)
        return reply


class ApacheWorld(LedgerWorld):
    """Cluster and judge of one ledger."""

    def __init__(self, simulator: Simulator, bookie_count: int, ensemble_size: int) -> None:
        assert isinstance(simulator.loop, ApacheLoop)
        simulator.loop.world = self
        self._spares = bookie_count - ensemble_size
        self._nodes: dict[str, Node] = {}
        digest_type = simulator.rng.choice(list(DigestType))
        self._digest = Digest.create(digest_type, b"")
        super().__init__(simulator, bookie_count)
        self.digest_type = digest_type

    async def connect(
        self, create: Callable[[], asyncio.Protocol], node_name: str, bookie_id: str
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        node, bookie = self._nodes[node_name], self.bookies[bookie_id]
        await self.simulator.sleep_ms(self.simulator.rng.uniform(0.1, 5))
        if not node.step():
            await asyncio.Event().wait()
        assert isinstance(bookie, ApacheBookie)
        if not bookie.up:
            raise ConnectionRefusedError(bookie_id)
        protocol = create()
        connection = Connection(self, node, bookie, protocol)
        protocol.connection_made(connection)
        return connection, protocol

    def make_bookie(self, bookie_id: str) -> ModelBookie:
        return ApacheBookie(bookie_id, self._digest, self.simulator.rng)

    def make_layout(self) -> Layout:
        return BookKeeperLayout()

    def make_clients(self, node: Node, layout: Layout) -> Sequence[BookieClient]:
        assert isinstance(layout, BookKeeperLayout)
        self._nodes[node.name] = node
        encoded = EncodedAdds()

        async def resolve(bookie_id: str) -> tuple[str, int]:
            return f"{node.name}/{bookie_id}", 0

        return [
            CheckedClient(node, self, name, resolve, _CONFIG, layout.digest_of, encoded)
            for name in self.bookies
        ]

    def on_adds_under_way(self, count: int) -> None:
        limit = ADDS_MAX + BATCH_MAX - 1  # a request is sent whole
        self._check(count <= limit, f"T8: {count} adds under way at a bookie")

    def on_packet(self, packet: bytes) -> None:
        """A bookie gets it; it doesn't look at the digest."""
        is_sound = from_stored(self._digest, packet) != NO_PACKET
        self._check(is_sound, f"a packet without the digest {self.digest_type.name} of its ledger")

    def lose_disk(self, bookie_id: str) -> None:
        if self._spares > 0:  # else nobody could take its place
            self._spares -= 1
            super().lose_disk(bookie_id)

    def rot(self, bookie_id: str, ledger_id: int) -> bool:
        return bool(self._digest.size) and super().rot(bookie_id, ledger_id)
