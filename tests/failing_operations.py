"""Every operation on storage that fails at a chosen call: worlds, faults, observations.

A world is one broker in this process: metadata in memory, a model bookie, virtual time. Its
operations are those of the HTTP document that aren't GET, with parameters and bodies made from the
document; the commands of the binary protocol that are answered; and the rounds of the product's own
tables. Nothing lists them: one that is added is in.

The judge knows no operation either. It observes a world in which the operation wasn't asked for,
and one in which it met no fault: whatever is observed after a fault is, part by part, as in one of
the two, and as in the second if the operation said that it succeeded.
"""

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from urllib.parse import quote

from magnetar.broker.errors import BrokerError
from magnetar.broker.http.openapi import operations
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.transaction.async_coordinator import LOG_NAME
from magnetar.broker.transaction.pending_ack_log import pending_ack_log_name
from magnetar.bundles.ownership import Redirect
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import MetadataStore
from tests.failing_commands import TRANSACTION, commands
from tests.failing_world import (
    NAME,
    NO_ANSWER,
    SUBSCRIPTIONS,
    Consuming,
    Fault,
    InlineLoop,
    World,
)
from tests.failing_world import document as http_document
from tests.simulation.simulator import Simulator, simulate

T = TypeVar("T")

_READS: Final = ("get", "head")
_CHANGING_READS: Final = (
    "/topics/",
    "/admin/v2/brokers/backlog-quota-check",
    "/admin/v2/brokers/health",
)
"""They take messages, drop them, or produce one."""
_UNAVAILABLE: Final = (502, 503, 504)
_ACCEPTED: Final = 202
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
    "nth": "1",
    "timestamp": "1700000000000",
    "mostSigBits": "0",
    "leastSigBits": "0",
    "timeoutMs": "0",
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
_WANTED: Final = ("force", "unload", "group")
"""Optional parameters that are given all the same."""
LACKING: Final = re.compile(
    r"not (supported|available)|ResourceGroup does not exist|can't be stopped|no place for copies"
    r"|Entry filter|Target URL is required|not issued|not enabled|has no such schema"
)
"""Why an operation is refused that nobody can succeed with in such a world."""
SEND: Final = "send in a transaction"
FIRST_SEND: Final = f"{SEND}, the topic's first one"
_PARTLY: Final = re.compile(r'"errorCode":-?[1-9]')
"""In the answer to messages of which some weren't stored."""
_BEGUN_S: Final = 5.0
"""Virtual seconds for what an operation has begun and doesn't wait for."""
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
    decides: str = ""
    """What the leader's round decides: "move" or "split"."""
    is_alone: bool = False
    """The round finds a broker without clients."""
    command: int = 0
    is_send: bool = False
    """Of a message in the transaction."""
    before: "Call | None" = None
    """What makes the thing that this one deletes."""

    async def perform(self, world: World) -> int:
        """HTTP status; of a round ACCEPTED: it promises nothing."""
        if self.round:
            if self.is_alone:
                for each in world.clients.values():
                    each.client.lose()
                await asyncio.sleep(1)
            now_ms = world.broker.cluster.now_ms = world.broker.cluster.now_ms + 3_600_000
            with contextlib.suppress(MetadataError):  # whoever runs a round goes on
                await world.rounds(self.decides)[self.round](now_ms)
            await asyncio.sleep(_BEGUN_S)
            return _ACCEPTED
        if self.command:
            return await self._send(world)
        if self.is_send:
            return 200 if await world.publish("sent", transaction=TRANSACTION) else 503
        body = self.body
        if isinstance(body, dict) and "ledgerId" in body:
            body = {**body, "ledgerId": world.clients["shared"].got[-1][0][0], "entryId": 0}
        try:
            answer = await asyncio.wait_for(
                world.http.request(self.method, self.path, params=dict(self.query), json=body), 600
            )
            await asyncio.sleep(_BEGUN_S)
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
        is_ack = self.command == pb.BaseCommand.ACK
        positions = [world.clients["shared"].got[-1][0]] if is_ack else []
        answer, status = await sender.ask(self.command, self.query, positions)
        world.reason = str(answer)
        if status == NO_ANSWER and self.command == pb.BaseCommand.END_TXN:
            return 503  # it waits for topics and subscriptions, however long that takes
        return status


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


def calls_of(
    document: dict[str, Any], rounds: Iterable[str], shared: Collection[str]
) -> dict[str, list[Call]]:
    """Every operation by name, with the ways to ask for it.

    Args:
        shared: the rounds that only a broker of several has.
    """
    found = {
        f"{method.upper()} {path}": _candidates(method, path, operation)
        for method, path, operation in operations(document)
        if method.lower() not in _READS
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
        for name, call in (
            (f"round: {each}", Call("", round=each)),
            (f"round: {each} without clients", Call("", round=each, is_alone=True)),
            (f"round: {each} of a leader that moves", Call("", round=each, decides="move")),
            (f"round: {each} of a leader that splits", Call("", round=each, decides="split")),
        ):
            if bool(call.decides) is (each in shared):
                found[name] = [replace(call, name=name)]
    return (
        found
        | {name: [Call(name, is_send=True)] for name in (SEND, FIRST_SEND)}
        | {
            name: [Call(name, path=str(dict(each)), query=each, command=kind) for each in ways]
            for name, kind, ways in commands(NAME.full)
        }
    )


def reads_of(document: dict[str, Any]) -> dict[str, list[Call]]:
    """Every GET by name, with the ways to ask for it; not those that change something."""
    return {
        f"GET {path}": _candidates(method, path, operation)
        for method, path, operation in operations(document)
        if method.lower() == "get" and not path.startswith(_CHANGING_READS)
    }


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


async def _follow(world: World) -> BrokerService:
    """The broker that serves the topic, found as clients find it."""
    authoritative = False
    for _ in range(10 if world.is_shared else 0):
        bundles = world.broker.service.bundles
        bundle = await bundles.bundle_of(NAME.full)
        found = await bundles.lookup_bundle(bundle, authoritative=authoritative)
        if found is None or found.broker == bundles.broker:
            break
        world.use(next(x for x in world.services if x.bundles.broker == found.broker))
        authoritative = isinstance(found, Redirect) and found.authoritative
    return world.broker.service


async def _load(service: BrokerService, wrong: list[str]) -> PersistentTopic | None:
    """All topics; the result is the one that clients use, if it is there."""
    for full in await service.directory.names("public/default"):
        with contextlib.suppress(BrokerError):  # a load finishes a deletion
            await service.loader.load(TopicName.parse(full), create=False)
    # What a change of policies asks of topics is made up for by a load, or the next round.
    await service.background_tasks.rounds["de-duplication"].work(service.clock())
    await asyncio.sleep(1)
    if await service.directory.exists(NAME):
        try:
            found = await service.loader.load(NAME, create=False)
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
    for service in world.services:
        _look_at_logs(service, wrong)
    service = await _follow(world)
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
    if not world.is_shared:
        parts["the transaction is open"] = await _commit(world, wrong)
    for name in names:
        await _use(world, name, parts, wrong)
    await service.loader.unload(str(NAME))
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
    known = {LOG_NAME.format(0)}
    for topic in service.topics.values():
        name = topic.name.ml_name
        known |= {name, *(pending_ack_log_name(name, each) for each in topic.subscriptions)}
    if alone := service.ledgers.open_ledgers.keys() - known:
        wrong.append(f"logs are open without a topic: {sorted(alone)}")


async def _commit(world: World, wrong: list[str]) -> bool:
    """Whether the transaction was open until now."""
    client = Consuming(world.broker, "shared", world.port())
    ask, connect = client.ask, pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST
    for kind, values in ((connect, {}), (pb.BaseCommand.END_TXN, TRANSACTION)):
        answer, status = await ask(kind, values)
        if status >= 500 or (kind == connect and status != 200):
            wrong.append(f"the transaction can't be ended: {answer}")
    client.client.lose()
    await asyncio.sleep(1)
    return status == 200


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
    is_done: bool, seen: dict[str, object], was: dict[str, object], asked: dict[str, object]
) -> list[str]:
    """Parts that are neither what was nor what was asked for; ``is_done``: the latter only."""
    wrong = []
    for part in sorted(seen.keys() | was.keys() | asked.keys()):
        allowed = [asked.get(part)] if is_done else [was.get(part), asked.get(part)]
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


def _world_of(call: Call) -> World:
    return World(
        is_due=bool(call.round), is_shared=bool(call.decides), has_sent=call.name != FIRST_SEND
    )


def run(call: Call, fault: Fault, *, asks: bool = True, looks: bool = True) -> Outcome:
    """One life of a world: the operation under a fault, and what is there afterwards.

    Args:
        asks: else the world is only as it is before the operation.
    """

    async def scenario(_: Simulator) -> Outcome:
        world = _world_of(call)
        await world.start()
        status = 0
        if call.before is not None:
            await call.before.perform(world)
        if asks:
            world.fault, fault.on, fault.is_ready = fault, True, True
            status = await call.perform(world)
            fault.on = False
        found = Outcome(status, world.reason, {}, [], fault.calls)
        if looks:
            found.parts, found.wrong = await observe(world)
            if asks:
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


class FaultChecker:
    """Of one operation: knows what was, and what was asked for."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self._was: Outcome | None = None
        self._asked: Outcome | None = None

    def calls(self, where: str) -> int:
        """How many calls of that kind the operation needs."""
        return run(self.call, no_fault(where), looks=False).calls

    def check(self, fault: Fault) -> list[str]:
        """What is wrong after the operation met a fault."""
        if self._was is None or self._asked is None:
            self._was = run(self.call, no_fault(), asks=False)
            self._asked = run(self.call, no_fault())
        wrong = []
        found = run(self.call, fault)
        if found.status == NO_ANSWER:
            wrong.append("no answer")
        # Too few bookies, say, may be what was asked for.
        wrong += [x for x in found.wrong if x not in self._asked.wrong]
        # What is only begun may fail later: its status says so then.
        is_done = found.status in (200, 204) and not self.call.path.endswith("/compaction")
        wrong += differences(is_done, found.parts, self._was.parts, self._asked.parts)
        if found.again >= 500:
            wrong.append(f"once more: {found.again}")
        if self.call.method == "GET":
            wrong += self._wrong_answer(found)
        return wrong

    def _wrong_answer(self, found: Outcome) -> list[str]:
        """Of a read, which finds what it would have found, or can't tell now; and moves nothing."""
        assert self._was is not None
        assert self._asked is not None
        wrong = differences(False, found.parts, self._was.parts, self._was.parts)
        if found.status not in (self._asked.status, *_UNAVAILABLE):
            wrong.append(f"answers {found.status}: {found.reason:.300}")
        if found.again != self._asked.status:
            wrong.append(f"once more: {found.again}")
        return wrong


def document() -> tuple[dict[str, Any], list[str], set[str]]:
    """The HTTP document, and the names of the rounds; and of those that several brokers have."""

    def rounds(call: Call) -> list[str]:
        async def scenario(_: Simulator) -> list[str]:
            world = _world_of(call)
            await world.start()
            found = list(world.rounds(""))
            await world.close()
            return found

        return _simulate(scenario)

    alone, all_of_them = rounds(Call("")), rounds(Call("", round="any", decides="move"))
    return http_document(), all_of_them, set(all_of_them) - set(alone)
