"""What failing operations are tried on: a broker, its storage's faults, clients.

Metadata in memory, a model bookie, virtual time. For ``tests/failing_operations.py``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
from starlette.applications import Starlette

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.transport import AddRequest, LacReply, ReadReply, ReadRequest
from magnetar.broker.cluster.load_sharing import LoadSharing
from magnetar.broker.http.server.app import attach, create_app
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import parse_entry_body
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.loadbalance.balancer import Balancer
from magnetar.loadbalance.model import Move, Split
from magnetar.managed_ledger.offload.block_offloader import BlockOffloader
from magnetar.managed_ledger.offload.config import FILESYSTEM, OffloadMetrics
from magnetar.managed_ledger.position import EARLIEST
from magnetar.metadata.errors import OutcomeUnknownError, StoreUnreachableError
from magnetar.metadata.store import MetadataStore
from tests.failing_commands import TRANSACTION, command_of, status_of
from tests.simulation.simulator import VirtualLoop
from tests.simulation.test_bundles_ownership import commit_inline
from tests.unit.broker.doubles import Broker, message
from tests.unit.managed_ledger.offload_doubles import MemoryStore

NAME: Final = TopicName.parse("persistent://public/default/t")
SUBSCRIPTIONS: Final = {
    "shared": pb.CommandSubscribe.Shared,
    "alone": pb.CommandSubscribe.Exclusive,
}
_STORE_READS: Final = ("get", "children", "exists")
_STORE_WRITES: Final = ("put", "delete", "delete_recursive")
_SETUP: Final = (
    ("PUT", "/admin/v2/clusters/us-west", {"serviceUrl": "http://us-west.example:8080"}),
    ("PUT", "/admin/v2/persistent/public/default/orders", None),
    ("PUT", "/admin/v2/clusters/other", {"serviceUrl": "http://other.example:8080"}),
    ("PUT", "/admin/v2/tenants/idle", {"allowedClusters": ["standalone"]}),
    ("PUT", "/admin/v2/namespaces/public/spare", None),
    ("PUT", "/admin/v2/persistent/public/default/parted/partitions", 2),
)
_BY_RANGE: Final = "range_equally_divide"
NO_TRANSACTION: Final[Mapping[str, Any]] = {}
NO_ANSWER: Final = 599


@dataclass(slots=True)
class Fault:
    """What goes wrong, from the ``at``-th call on.

    Attributes:
        where: "metadata", "bookies", or "copies" of closed ledgers elsewhere.
        is_lost: that call has its effect, and nobody is told.
        lasts: every later call fails too, until the operation has answered.
    """

    where: str
    is_lost: bool
    lasts: bool
    at: int = -1
    calls: int = 0
    on: bool = False
    is_ready: bool = False
    """It has been on: before, copies wait."""
    met: bool = False

    def meets(self) -> str:
        """The fate of the next call: "", "fails" or "lost"."""
        if not self.on:
            return ""
        self.calls += 1
        if self.calls - 1 == self.at:
            self.met = True
            return "lost" if self.is_lost else "fails"
        return "fails" if self.lasts and self.met else ""


FAULTS: Final = (
    *(
        (where, is_lost, lasts)
        for where in ("metadata", "bookies")
        for is_lost in (False, True)
        for lasts in (False, True)
    ),
    *(("copies", False, lasts) for lasts in (False, True)),
)


class Consuming:
    """A client with one consumer, which notes what it is told."""

    def __init__(self, broker: Broker, name: str, port: int) -> None:
        self.name, self.client = name, broker.client(port=port)
        self.got: list[tuple[tuple[int, int], str]] = []
        self.is_closed = False
        self.answers: list[pb.BaseCommand] = []

    async def subscribe(self) -> bool:
        """Whether it was let in."""
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic, subscribe.subscription = NAME.full, self.name
        subscribe.subType, subscribe.consumer_id = SUBSCRIPTIONS[self.name], 1
        subscribe.request_id = next(self.client.request_ids)
        subscribe.initialPosition = pb.CommandSubscribe.Earliest
        self.client.send(command)
        await self.wait(1)
        if not any(x.type == pb.BaseCommand.SUCCESS for x in self.answers):
            return False
        command = pb.BaseCommand(type=pb.BaseCommand.FLOW)
        command.flow.consumer_id, command.flow.messagePermits = 1, 1000
        self.client.send(command)
        await self.wait(1)
        return True

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self.client.connection.closed:
            self.is_closed = True
        data = bytes(self.client.transport.written[self.client._seen :])
        self.client._seen += len(data)
        for command, body in self.client._reader.feed(data):
            if command.type == pb.BaseCommand.MESSAGE:
                got = command.message.message_id
                payload = bytes(parse_entry_body(bytes(body))[1])
                self.got.append(((got.ledgerId, got.entryId), payload.decode()))
            elif command.type == pb.BaseCommand.CLOSE_CONSUMER:
                self.is_closed = True
            else:
                self.answers.append(command)

    async def ack(
        self, *positions: tuple[int, int], transaction: Mapping[str, Any] = NO_TRANSACTION
    ) -> bool:
        """Whether all of it is confirmed."""
        _, status = await self.ask(pb.BaseCommand.ACK, transaction, positions)
        return status == 200

    async def ask(
        self, kind: int, values: Mapping[str, object], positions: Sequence[tuple[int, int]] = ()
    ) -> tuple[pb.BaseCommand | None, int]:
        """Send a command; its answer, and that as a status of HTTP.

        Args:
            positions: what an ACK names.
        """
        request_id = next(self.client.request_ids)
        command = command_of(kind, values, request_id)
        for ledger_id, entry_id in positions:
            command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id)
        self.client.send(command)
        for _ in range(600):
            await self.wait(1)
            for answer in self.answers:
                if (status := status_of(answer, request_id)) is not None:
                    return answer, status
            if self.client.transport.closed:
                return None, 503
        return None, NO_ANSWER


_apps: list[Starlette] = []


def document() -> dict[str, Any]:
    """Of HTTP; after the first world."""
    made: dict[str, Any] = _apps[0].state.openapi()
    return made


def app_of(service: BrokerService) -> Starlette:
    """One for all worlds: making it takes half a second."""
    if not _apps:
        _apps.append(create_app(service))
    attach(_apps[0], service)
    return _apps[0]


class InlineLoop(VirtualLoop):
    """What others do on threads takes no time."""

    def run_in_executor(  # type: ignore[override]  # no pool
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class Copies(MemoryStore):
    """Where copies of closed ledgers go."""

    meets: Callable[[], bool] = staticmethod(lambda: False)

    async def _call(self) -> None:
        if self.meets():
            raise OSError("no place is left")


class World:
    """A broker with a topic, two subscriptions of which each has acknowledged some, and clients.

    The topic has two ledgers. A transaction is open: the last message belongs to it, and "alone"
    has acknowledged the second one in it.

    Args:
        is_due: the first ledger is to be copied elsewhere.
        is_shared: there is another broker, too, and this one leads; no transaction, as one can't
            tell the other of its end here.
        has_sent: else the transaction has no message.
    """

    def __init__(
        self, *, is_due: bool = False, is_shared: bool = False, has_sent: bool = True
    ) -> None:
        self.copies, self.is_shared, self._has_sent = Copies(), is_shared, has_sent
        self.broker = Broker(
            managed_ledger_offload_driver=FILESYSTEM,
            managed_ledger_offload_auto_trigger_size_threshold_bytes=0 if is_due else -1,
            managed_ledger_offload_deletion_lag_ms=0,
            file_system_uri="file:///copies",
            load_balancer_shedding_interval_minutes=100_000.0,
            load_balancer_report_update_min_interval_millis=10**9,
            broker_peer_failure_detection_enabled=False,
            default_number_of_namespace_bundles=1,
            force_delete_namespace_allowed=True,
            force_delete_tenant_allowed=True,
            ttl_duration_default_in_seconds=60,
            subscription_expiration_time_minutes=1,
            backlog_quota_default_limit_second=60,
            backlog_quota_default_retention_policy="consumer_backlog_eviction",
            broker_deduplication_enabled=True,
            transaction_coordinator_enabled=True,
        )
        commit_inline(self.broker.cluster.store, 1)
        offloader = BlockOffloader(FILESYSTEM, lambda _: self.copies, 2, OffloadMetrics())
        self.broker.cluster.offloaders.append(offloader)
        self.broker.ledgers.offloaders[FILESYSTEM] = offloader
        self.services = [self.broker.service]
        if self.is_shared:
            self.broker.service.sharing = LoadSharing(self.broker.service, "1")
        self.http: httpx.AsyncClient
        self._ticking: asyncio.Task[None]
        self.clients: dict[str, Consuming] = {}
        self.fault = Fault("none", is_lost=False, lasts=False)
        self._port = 6000
        self._published = 0
        self.reason = ""
        """Of the last answer."""

    def port(self) -> int:
        self._port += 1
        return self._port

    async def _add_broker(self) -> None:
        """A second one, whose storage doesn't fail."""
        first, cluster = self.broker.service, self.broker.cluster
        ledgers = cluster.factory()
        commit_inline(cluster.store, 2)
        clock = lambda: cluster.now_ms  # noqa: E731  a clock is a function here
        second = BrokerService(first.config, cluster.sessions[-1], ledgers, clock=clock)
        second.service_url = "pulsar://other.example:6650"
        second.sharing = LoadSharing(second, "1")
        await second.start(8081)
        second.periodic_tasks.close()
        self.services.append(second)

    def use(self, service: BrokerService) -> None:
        """Clients go there from now on."""
        self.broker.service = service
        attach(_apps[0], service)

    def rounds(self, decides: str) -> dict[str, Callable[[int], Awaitable[object]]]:
        """All that a broker does now and then, by name."""
        service = self.services[0]
        found: dict[str, Callable[[int], Awaitable[object]]] = {
            **{name: each.work for name, each in service.background_tasks.rounds.items()},
            **service.ledgers.rounds,
        }
        if service.sharing is not None:
            manager = service.sharing.manager
            if decides and manager._leader_tasks is not None:
                self._decide(manager._leader_tasks.balancer, decides)
            found |= {name: _timeless(work) for name, work in manager.rounds().items()}
        return found

    def _decide(self, balancer: Balancer, what: str) -> None:
        mine, other = (each.broker_id for each in self.services)
        bundle = "public/default/0x00000000_0xffffffff"
        move, split = Move(bundle, mine, other), Split(bundle, mine, _BY_RANGE, unload=True)
        moves = [move] if what == "move" else []
        splits = [split] if what == "split" else []
        balancer.round = lambda now_s: iter(moves)  # type: ignore[method-assign]  # decided
        balancer.splits = lambda bundles_of: splits  # type: ignore[method-assign]  # decided

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1)
            self.broker.cluster.now_ms += 1000

    async def start(self) -> None:
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        await self.broker.start()
        self.broker.service.periodic_tasks.close()  # rounds begin when they are what is tried
        self._break()
        transport = httpx.ASGITransport(app_of(self.broker.service), raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        for method, path, body in _SETUP:
            answer = await self.http.request(method, path, json=body)
            assert answer.status_code < 300, (path, answer.text)
        topic = await self.broker.service.loader.load(NAME, create=True)
        for name in SUBSCRIPTIONS:
            await topic.create_subscription(name, EARLIEST)
        assert await self.publish("0", "1")
        await self.broker.service.loader.unload(str(NAME))
        assert await self.publish("2", "3")
        for name in SUBSCRIPTIONS:
            consuming = self.clients[name] = Consuming(self.broker, name, self.port())
            assert await consuming.subscribe()
            assert len(consuming.got) == 4, consuming.got
            assert await consuming.ack(consuming.got[0][0], consuming.got[2][0])
        if self.is_shared:
            await self._add_broker()
        else:
            await self._begin_transaction(self.clients["alone"])
        self.broker.cluster.now_ms += 3_600_000

    async def _begin_transaction(self, alone: Consuming) -> None:
        kinds = pb.BaseCommand
        asked: list[tuple[int, Mapping[str, object]]] = [
            (kinds.TC_CLIENT_CONNECT_REQUEST, {}),
            (kinds.NEW_TXN, {}),
            (kinds.ADD_PARTITION_TO_TXN, {"partitions": [NAME.full]}),
            *(
                (kinds.ADD_SUBSCRIPTION_TO_TXN, {"topic": NAME.full, "subscription": each})
                for each in SUBSCRIPTIONS
            ),
        ]
        for kind, values in asked:
            assert (await alone.ask(kind, {**TRANSACTION, **values}))[1] == 200
        assert await alone.ack(alone.got[1][0], transaction=TRANSACTION)
        if self._has_sent:
            assert await self.publish("4", transaction=TRANSACTION)

    async def publish(
        self, *payloads: str, transaction: Mapping[str, Any] = NO_TRANSACTION
    ) -> bool:
        """Whether all of them were stored, by a producer of its own."""
        client = self.broker.client(port=self.port())
        await asyncio.sleep(0.1)
        client.take()
        client.send(client.producer_command(NAME.full))
        await asyncio.sleep(1)
        if not any(x.type == pb.BaseCommand.PRODUCER_SUCCESS for x in client.take()):
            client.lose()
            return False
        for payload in payloads:
            client.feed(message(self._published, payload.encode(), **transaction))
            self._published += 1
        await asyncio.sleep(5)
        receipts = [x for x in client.take() if x.type == pb.BaseCommand.SEND_RECEIPT]
        client.lose()
        await asyncio.sleep(0.1)
        return len(receipts) == len(payloads)

    async def close(self) -> None:
        await self.http.aclose()
        for each in self.clients.values():
            each.client.lose()
        for service in self.services:
            await service.close()
        await self.broker.cluster.close()
        self._ticking.cancel()

    # --- faults

    def _break(self) -> None:
        self.copies.meets = lambda: not self.fault.is_ready or bool(self._meets("copies"))
        session = self.broker.cluster.sessions[0]
        for name in (*_STORE_READS, *_STORE_WRITES):
            setattr(session, name, self._store_call(session, name))
        link = self.broker.cluster.connections[0]
        answer = link._answer
        read, read_lac = link.read_entries, link.read_lac

        def answer_or_not(request: AddRequest) -> None:
            fate = self._meets("bookies")
            if fate == "lost":
                link.bookie.add(request)
            if fate:
                request.done(request, codes.UNAVAILABLE)
            else:
                answer(request)

        async def read_or_not(request: ReadRequest) -> ReadReply:
            fate = self._meets("bookies")
            if fate != "fails":
                reply = await read(request)
            return ReadReply(codes.UNAVAILABLE, request.first, []) if fate else reply

        async def read_lac_or_not(ledger_id: int, **named: Any) -> LacReply:
            fate = self._meets("bookies")
            if fate != "fails":
                reply = await read_lac(ledger_id, **named)
            return LacReply(codes.UNAVAILABLE, None, -1) if fate else reply

        link._answer = answer_or_not  # type: ignore[method-assign]  # the fault
        link.read_entries = read_or_not  # type: ignore[method-assign]  # the fault
        link.read_lac = read_lac_or_not  # type: ignore[method-assign]  # the fault

    def _meets(self, where: str) -> str:
        return self.fault.meets() if self.fault.where == where else ""

    def _store_call(self, session: MetadataStore, name: str) -> Callable[..., Awaitable[Any]]:
        real = getattr(session, name)

        async def call(path: str, *more: Any, **named: Any) -> Any:
            fate = self._meets("metadata")
            if fate == "lost" and name in _STORE_WRITES:
                await real(path, *more, **named)
                raise OutcomeUnknownError(path)
            if fate:
                raise StoreUnreachableError(path, "connection loss")
            return await real(path, *more, **named)

        return call


def _timeless(work: Callable[[], Awaitable[object]]) -> Callable[[int], Awaitable[object]]:
    return lambda now_ms: work()
