"""Every operation on storage that fails at a chosen call: worlds, faults, observations.

A world is one broker in this process: metadata in memory, a model bookie, virtual time. Its
operations are those of the HTTP document that aren't GET, with parameters and bodies made from the
document; the commands of the binary protocol that are answered; and the rounds of the product's own
tables. Nothing lists them: one that is added is in.

The judge knows no operation either. It observes a world in which the operation wasn't asked for,
and one in which it met no fault: whatever is observed after a fault is, part by part, as in one of
the two, and as in the second if the operation said that it succeeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx
from fastapi import FastAPI

from bookkeeper import codes
from bookkeeper.transport import AddRequest, LacReply, ReadReply
from broker.errors import BrokerError
from broker.http.app import attach, create_app
from broker.http.openapi import operations
from broker.protocol import pulsar_api_pb2 as pb
from broker.protocol.framing import parse_entry_body
from broker.protocol.topic_name import TopicName
from broker.service.broker_service import BrokerService
from broker.service.persistent_topic import PersistentTopic
from managed_ledger.position import EARLIEST
from metadata.errors import MetadataError, OutcomeUnknownError
from metadata.store import MetadataStore
from tests.failing_commands import command_of, commands, status_of
from tests.simulation.simulator import Simulator, VirtualLoop, simulate
from tests.simulation.test_bundles_ownership import commit_inline
from tests.unit.broker_service.doubles import Broker, message

__all__ = ["FAULTS", "LACKING", "Fault", "Judge", "calls_of", "document", "way_of"]

T = TypeVar("T")

_ACCEPTED: Final = 202
NO_ANSWER: Final = 599
NAME: Final = TopicName.parse("persistent://public/default/t")
SUBSCRIPTIONS: Final = {
    "shared": pb.CommandSubscribe.Shared,
    "alone": pb.CommandSubscribe.Exclusive,
}
_STORE_READS: Final = ("get", "children", "exists")
_STORE_WRITES: Final = ("put", "delete", "delete_recursive")
_THERE: Final[Mapping[str, str]] = {
    "domain": "persistent",
    "tenant": "public",
    "namespace": "default",
    "topic": "t",
    "subscription": "shared",
    "cluster": "standalone",
    "bundle": "0x00000000_0xffffffff",
    "bookie": "127.0.0.1:3181",
    "role": "somebody",
    "group": "group",
    "policy": "policy",
    "key": "k",
    "value": "60",
    "name": "brokerDeleteInactiveTopicsFrequencySeconds",
    "seconds": "60",
    "partition": "0",
    "count": "1",
    "timestamp": "1700000000000",
}
"""Path parameters: what a world has."""
_VARIANTS: Final[tuple[Mapping[str, str], ...]] = (
    {},
    {"topic": "parted"},
    {"topic": "new", "subscription": "new"},
    {"subscription": "new"},
    {"namespace": "spare"},
    {"tenant": "idle", "namespace": "new"},
    {"tenant": "idle"},
    {"tenant": "new"},
    {"cluster": "other"},
    {"cluster": "new"},
    {"group": "new"},
    {"domain": "non-persistent", "topic": "volatile"},
)
"""What they are instead, until an operation succeeds: new things to create, idle ones to delete."""
_SETUP: Final = (
    ("PUT", "/admin/v2/clusters/us-west", {"serviceUrl": "http://us-west.example:8080"}),
    ("PUT", "/admin/v2/persistent/public/default/orders", None),
    ("PUT", "/admin/v2/clusters/other", {"serviceUrl": "http://other.example:8080"}),
    ("PUT", "/admin/v2/tenants/idle", {"allowedClusters": ["standalone"]}),
    ("PUT", "/admin/v2/namespaces/public/spare", None),
    ("PUT", "/admin/v2/persistent/public/default/parted/partitions", 2),
)
_WANTED: Final = ("force", "unload", "group")
"""Optional parameters that are given all the same."""
LACKING: Final = re.compile(
    r"not (supported|available)|ResourceGroup does not exist|can't be stopped|no place for copies"
    r"|Entry filter|Target URL is required|not issued|not enabled|has no such schema"
)
"""Why an operation is refused that nobody can succeed with in such a world."""
_PARTLY: Final = re.compile(r'"errorCode":-?[1-9]')
"""In the answer to messages of which some weren't stored."""
_BEGUN_S: Final = 5.0
"""Virtual seconds for what a round has begun and doesn't wait for."""
_SETTLE_S: Final = 40.0
"""Virtual seconds after the storage is well again: retries and reloads have ended."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: an HTTP request, a command, or a round of upkeep."""

    name: str
    method: str = ""
    path: str = ""
    query: Mapping[str, Any] = field(default_factory=dict)
    """Also the fields of a command."""
    body: Any = None
    round: str = ""
    is_alone: bool = False
    """The round finds a broker without clients."""
    command: int = 0
    before: Call | None = None
    """What makes the thing that this one deletes."""

    async def perform(self, world: World) -> int:
        """HTTP status; of a round ACCEPTED: it promises nothing."""
        if self.round:
            if self.is_alone:
                for each in world.clients.values():
                    each.client.lose()
                await asyncio.sleep(1)
            now_ms = world.broker.cluster.now_ms = world.broker.cluster.now_ms + 3_600_000
            await world.broker.service._sweeper.upkeep.rounds[self.round].work(now_ms)
            await asyncio.sleep(_BEGUN_S)
            return _ACCEPTED
        if self.command:
            return await self._send(world)
        try:
            answer = await asyncio.wait_for(
                world.http.request(self.method, self.path, params=dict(self.query), json=self.body),
                600,
            )
        except TimeoutError:
            return NO_ANSWER
        world.reason = answer.text
        if _PARTLY.search(answer.text):
            return _ACCEPTED
        return answer.status_code

    async def _send(self, world: World) -> int:
        """By the client that has the consumer of "shared", or by another if that has left."""
        sender = world.clients["shared"]
        if sender.client.transport.closed:
            sender = Consuming(world.broker, "shared", world.port())
            await sender.subscribe()
        request_id = next(sender.client.request_ids)
        sender.client.send(command_of(self.command, self.query, request_id))
        for _ in range(600):
            await sender.wait(1)
            for answer in sender.answers:
                if (status := status_of(answer, request_id)) is not None:
                    world.reason = str(answer)
                    return status
            if sender.client.transport.closed:
                return 503
        return NO_ANSWER


def _candidates(method: str, path: str, operation: dict[str, Any]) -> list[Call]:
    """Ways to ask for it; the first that succeeds is it."""
    query = {}
    for each in operation.get("parameters", ()):
        if each["in"] == "query" and (each.get("required") or each["name"] in _WANTED):
            known = {"force": "true", "unload": "true", "authoritative": "false"}
            query[each["name"]] = known.get(each["name"], _THERE.get(each["name"], "1"))
    body = None
    for content in operation.get("requestBody", {}).get("content", {}).values():
        body = content.get("example")
        if body is None and content.get("examples"):
            body = next(iter(content["examples"].values()))["value"]
    calls = []
    for variant in _VARIANTS:
        if not all(f"{{{name}}}" in path for name in variant):
            continue
        found = path
        for name, value in {**_THERE, **variant}.items():
            found = found.replace(f"{{{name}}}", quote(value, safe=""))
        calls.append(Call(f"{method.upper()} {path}", method.upper(), found, query, body))
    return calls


def calls_of(document: dict[str, Any], rounds: Iterable[str]) -> dict[str, list[Call]]:
    """Every operation by name, with the ways to ask for it."""
    found = {
        f"{method.upper()} {path}": _candidates(method, path, operation)
        for method, path, operation in operations(document)
        if method.lower() != "get"
    }
    for name, calls in found.items():
        method, path = name.split(" ")
        if "/revoke" in path:
            granted = found[name.replace("/revoke", "/grant")][0]
            calls += [replace(each, before=granted) for each in calls]
        if method == "DELETE":
            makers = found.get(f"PUT {path}", []) + found.get(f"POST {path}", [])
            by_path = {each.path: each for each in makers}
            makes = {x: y for x in (c.path for c in calls) if (y := by_path.get(x)) is not None}
            calls += [
                replace(each, before=makes[each.path]) for each in calls if each.path in makes
            ]
    for each in rounds:
        found[f"round: {each}"] = [Call(f"round: {each}", round=each)]
        alone = f"round: {each} without clients"
        found[alone] = [Call(alone, round=each, is_alone=True)]
    return found | {
        name: [Call(name, path=str(dict(each)), query=each, command=kind) for each in ways]
        for name, kind, ways in commands(NAME.full)
    }


@dataclass(slots=True)
class Fault:
    """What goes wrong, from the ``at``-th call on.

    Attributes:
        where: "metadata", or "bookies".
        is_lost: that call has its effect, and nobody is told.
        lasts: every later call fails too, until the operation has answered.
    """

    where: str
    is_lost: bool
    lasts: bool
    at: int = -1
    calls: int = 0
    on: bool = False
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


FAULTS: Final = tuple(
    (where, is_lost, lasts)
    for where in ("metadata", "bookies")
    for is_lost in (False, True)
    for lasts in (False, True)
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

    async def ack(self, *positions: tuple[int, int]) -> bool:
        """Whether all of it is confirmed."""
        command = pb.BaseCommand(type=pb.BaseCommand.ACK)
        command.ack.consumer_id, command.ack.ack_type = 1, pb.CommandAck.Individual
        for ledger_id, entry_id in positions:
            each = command.ack.message_id.add()
            each.ledgerId, each.entryId = ledger_id, entry_id
        command.ack.request_id = request_id = next(self.client.request_ids)
        self.client.send(command)
        await self.wait(5)
        return any(
            x.type == pb.BaseCommand.ACK_RESPONSE
            and x.ackResponse.request_id == request_id
            and not x.ackResponse.HasField("error")
            for x in self.answers
        )


_apps: list[FastAPI] = []


def app_of(service: BrokerService) -> FastAPI:
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


class World:
    """A broker with a topic, two subscriptions of which each has acknowledged some, and clients."""

    def __init__(self) -> None:
        self.broker = Broker(
            default_number_of_namespace_bundles=1,
            force_delete_namespace_allowed=True,
            force_delete_tenant_allowed=True,
            ttl_duration_default_in_seconds=60,
            subscription_expiration_time_minutes=1,
            backlog_quota_default_limit_second=60,
            backlog_quota_default_retention_policy="consumer_backlog_eviction",
            broker_deduplication_enabled=True,
        )
        commit_inline(self.broker.cluster.store, 1)
        self.http: httpx.AsyncClient
        self.clients: dict[str, Consuming] = {}
        self.fault = Fault("none", is_lost=False, lasts=False)
        self._port = 6000
        self._published = 0
        self.reason = ""
        """Of the last answer."""

    def port(self) -> int:
        self._port += 1
        return self._port

    async def start(self) -> None:
        await self.broker.start()
        self.broker.service._sweeper.close()  # rounds begin when they are what is tried
        self._break()
        transport = httpx.ASGITransport(app_of(self.broker.service), raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        for method, path, body in _SETUP:
            answer = await self.http.request(method, path, json=body)
            assert answer.status_code < 300, (path, answer.text)
        topic = await self.broker.service.get_topic(NAME, create=True)
        for name in SUBSCRIPTIONS:
            await topic.create_subscription(name, EARLIEST)
        assert await self.publish("0", "1", "2", "3")
        for name in SUBSCRIPTIONS:
            consuming = self.clients[name] = Consuming(self.broker, name, self.port())
            assert await consuming.subscribe()
            assert len(consuming.got) == 4, consuming.got
            assert await consuming.ack(consuming.got[0][0], consuming.got[2][0])
        self.broker.cluster.now_ms += 3_600_000

    async def publish(self, *payloads: str) -> bool:
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
            client.feed(message(self._published, payload.encode()))
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
        await self.broker.close()

    # --- faults

    def _break(self) -> None:
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

        async def read_or_not(ledger_id: int, first: int, *more: Any, **named: Any) -> ReadReply:
            fate = self._meets("bookies")
            if fate != "fails":
                reply = await read(ledger_id, first, *more, **named)
            return ReadReply(codes.UNAVAILABLE, first, []) if fate else reply

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
                raise MetadataError(f"{path}: connection loss")
            return await real(path, *more, **named)

        return call


# --- what is there


async def _values(store: MetadataStore) -> dict[str, object]:
    """Policies and settings by path, and the names of what is stored of topics."""
    found: dict[str, object] = {}
    stack = ["/admin", "/schemas", "/managed-ledgers"]
    while stack:
        path = stack.pop()
        stack += [f"{path}/{child}" for child in await store.children(path)]
        if path.startswith("/admin/local-policies"):
            continue  # written by whoever asks first, with what holds anyway
        value = await store.get(path)
        is_whole = path.startswith("/admin") and value is not None
        found[path] = value.value if is_whole and value is not None else value is not None
    return found


async def _exclusive(world: World, wrong: list[str]) -> None:
    """The consumer of "alone" was told to go, or is the only one and is served."""
    old = world.clients["alone"]
    await old.wait(1)
    rival = Consuming(world.broker, "alone", world.port())
    is_in = await rival.subscribe()
    if is_in and not old.is_closed:
        await old.wait(1)
        if not old.is_closed:
            wrong.append("two Exclusive consumers")
    if not is_in and old.is_closed:
        wrong.append(f"nobody gets the Exclusive subscription: {rival.answers[-1:]}")
    rival.client.lose()
    await asyncio.sleep(1)


async def _load(service: BrokerService, wrong: list[str]) -> PersistentTopic | None:
    """All topics; the result is the one that clients use, if it is there."""
    for full in await service.list_topics("public/default"):
        with contextlib.suppress(BrokerError):  # a load finishes a deletion
            await service.get_topic(TopicName.parse(full), create=False)
    # What a change of policies asks of topics is made up for by a load, or the next round.
    await service._sweeper.upkeep.rounds["de-duplication"].work(service.clock())
    await asyncio.sleep(1)
    if await service.topic_exists(NAME):
        try:
            found = await service.get_topic(NAME, create=False)
            assert isinstance(found, PersistentTopic)
            return found
        except BrokerError as error:
            if type(error).__name__ != "TopicNotFoundError":
                wrong.append(f"the topic can't be loaded: {error}")
    return None


async def observe(world: World) -> tuple[dict[str, object], list[str]]:
    """What is there by part, and what is wrong whatever was asked for."""
    wrong: list[str] = []
    world.fault.on = False
    await asyncio.sleep(_SETTLE_S)
    service = world.broker.service
    _look_at_logs(service, wrong)
    topic = await _load(service, wrong)
    parts = await _values(service.store)
    parts["topic"] = topic is not None
    if topic is None:
        return parts, wrong
    stored, known = await service.policies.of(NAME), topic.policies
    if (known.document, known.topic_document) != (stored.document, stored.topic_document):
        wrong.append(f"the topic goes by other policies than what is stored: {known.document}")
    parts["terminated"] = topic.terminated
    names = sorted(SUBSCRIPTIONS.keys() & topic.subscriptions.keys())
    parts |= {f"subscription {each}": True for each in topic.subscriptions}
    if "alone" in names:
        await _exclusive(world, wrong)
    for each in world.clients.values():
        each.client.lose()
    await asyncio.sleep(1)
    for name in names:
        await _use(world, name, parts, wrong)
    await service.unload_topic(NAME)
    for name in names:
        again = Consuming(world.broker, name, world.port())
        if not await again.subscribe():
            wrong.append(f"{name}: no consumer after an unload: {again.answers[-1:]}")
        if again.got:
            wrong.append(f"{name}: acknowledged and delivered again: {again.got}")
        again.client.lose()
    await asyncio.sleep(1)
    if not topic.terminated:
        await _go_on(world, names, wrong)
    _look_at_logs(service, wrong)
    base = "/admin/v2/persistent/public/default/t"
    for page in ("stats", "internalStats"):
        answer = await world.http.get(f"{base}/{page}")
        if answer.status_code != 200:
            wrong.append(f"{page}: {answer.status_code} {answer.text}")
    return parts, wrong


def _look_at_logs(service: BrokerService, wrong: list[str]) -> None:
    topics = {each.name.ml_name for each in service.topics.values()}
    if alone := service.ledgers.open_ledgers.keys() - topics:
        wrong.append(f"logs are open without a topic: {sorted(alone)}")


async def _use(world: World, name: str, parts: dict[str, object], wrong: list[str]) -> None:
    """What a subscription delivers; all of it is acknowledged."""
    consuming = Consuming(world.broker, name, world.port())
    if not await consuming.subscribe():
        wrong.append(f"{name}: no consumer is let in: {consuming.answers[-1:]}")
        return
    payloads = [payload for _, payload in consuming.got]
    parts[f"backlog of {name}"] = payloads
    if consuming.got and not await consuming.ack(*(position for position, _ in consuming.got)):
        wrong.append(f"{name}: acknowledgements aren't confirmed: {consuming.answers[-1:]}")
    consuming.client.lose()
    await asyncio.sleep(1)


async def _go_on(world: World, names: list[str], wrong: list[str]) -> None:
    """A message is stored, and every subscription gets it, once."""
    if not await world.publish("after"):
        wrong.append("no message is stored")
        return
    for name in names:
        consuming = Consuming(world.broker, name, world.port())
        await consuming.subscribe()
        counts = Counter(payload for _, payload in consuming.got)
        if counts != {"after": 1}:
            wrong.append(f"{name}: delivers {counts}")
        consuming.client.lose()


def differences(
    status: int, seen: dict[str, object], was: dict[str, object], asked: dict[str, object]
) -> list[str]:
    """Parts that are neither what was nor what was asked for."""
    wrong = []
    for part in sorted(seen.keys() | was.keys() | asked.keys()):
        allowed = [asked.get(part)] if status in (200, 204) else [was.get(part), asked.get(part)]
        if seen.get(part) not in allowed:
            wrong.append(f"{part}: {seen.get(part)!r:.300}, allowed are {allowed!r:.600}")
    return wrong


@dataclass(slots=True)
class Outcome:
    """Of one world."""

    status: int
    reason: str
    parts: dict[str, object]
    wrong: list[str]
    calls: int
    """To what may fail, while the operation ran."""
    again: int = 0
    """The status of the same operation once more."""


def run(call: Call | None, fault: Fault, *, looks: bool = True) -> Outcome:
    """One life of a world: the operation under a fault, and what is there afterwards."""

    async def scenario(_: Simulator) -> Outcome:
        world = World()
        await world.start()
        status = 0
        if call is not None:
            if call.before is not None:
                await call.before.perform(world)
            world.fault, fault.on = fault, True
            status = await call.perform(world)
            fault.on = False
        found = Outcome(status, world.reason, {}, [], fault.calls)
        if looks:
            found.parts, found.wrong = await observe(world)
            if call is not None:
                found.again = await call.perform(world)
        await world.close()
        return found

    return _simulate(scenario)


def _simulate(scenario: Callable[[Simulator], Coroutine[Any, Any, T]]) -> T:
    logging.disable(logging.CRITICAL)
    try:
        outcome = simulate(0, scenario, None, InlineLoop)
    finally:
        logging.disable(logging.NOTSET)
    assert not outcome.violations, outcome.violations
    result: T = outcome.result
    return result


def no_fault(where: str = "none") -> Fault:
    """Only counts."""
    return Fault(where, is_lost=False, lasts=False)


def way_of(calls: list[Call]) -> tuple[Call | None, str]:
    """The first way that succeeds, or why none does."""
    reasons = []
    for call in calls:
        found = run(call, no_fault(), looks=False)
        if found.status < 300:
            return call, ""
        reasons.append(f"{call.path}: {found.status} {found.reason}")
    return None, next((x for x in reasons if LACKING.search(x)), "; ".join(reasons))


class Judge:
    """Of one operation: knows what was, and what was asked for."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._was: Outcome | None = None
        self._asked: Outcome | None = None

    def calls(self, where: str) -> int:
        """How many calls of that kind the operation needs."""
        return run(self.call, no_fault(where), looks=False).calls

    def judge(self, fault: Fault) -> list[str]:
        """What is wrong after the operation met a fault."""
        if self._was is None or self._asked is None:
            self._was = run(self.call.before, no_fault())
            self._asked = run(self.call, no_fault())
        wrong = []
        found = run(self.call, fault)
        if found.status == NO_ANSWER:
            wrong.append("no answer")
        # Too few bookies, say, may be what was asked for.
        wrong += [x for x in found.wrong if x not in self._asked.wrong]
        wrong += differences(found.status, found.parts, self._was.parts, self._asked.parts)
        if found.again >= 500:
            wrong.append(f"once more: {found.again}")
        return wrong


def document() -> tuple[dict[str, Any], list[str]]:
    """The HTTP document, and the names of the rounds."""

    async def scenario(_: Simulator) -> tuple[dict[str, Any], list[str]]:
        world = World()
        await world.start()
        rounds = list(world.broker.service._sweeper.upkeep.rounds)
        await world.close()
        return _apps[0].openapi(), rounds

    return _simulate(scenario)
