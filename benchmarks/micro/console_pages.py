"""How long pages and REST hold the loop: `python -m benchmarks.micro.console_pages [PATH...]`.

A broker over a model bookie in this process has a topic of 500 subscriptions, 1,000 producers,
1,000 consumers of one subscription and a schema of 20 kB, one of 1,000 partitions, and 10,000
namespaces (SUBSCRIPTIONS, PRODUCERS, CONSUMERS, SCHEMA_BYTES, PARTITIONS, NAMESPACES). Each page is
asked for three times, as a whole and as the middle that it fetches again; calls of REST as they
are. Printed is the quickest of these: processor time of the longest turn and of all, turns, bytes,
and what the longest turn ran. The processor's time of the thread counts, so other work of the
machine doesn't.
"""

import asyncio
import gc
import os
import sys
import time
from asyncio import events
from typing import Any, Final
from urllib.parse import unquote

import orjson

from magnetar.broker.console import console
from magnetar.broker.http.server.app import create_app
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.definition import SchemaDefinition
from magnetar.broker.schema.registry import SchemaRules
from tests.unit.broker.doubles import Broker

SUBSCRIPTIONS = int(os.environ.get("SUBSCRIPTIONS", "500"))
PRODUCERS = int(os.environ.get("PRODUCERS", "1000"))
CONSUMERS = int(os.environ.get("CONSUMERS", "1000"))
SCHEMA_BYTES = int(os.environ.get("SCHEMA_BYTES", "20000"))
PARTITIONS = int(os.environ.get("PARTITIONS", "1000"))
NAMESPACES = int(os.environ.get("NAMESPACES", "10000"))
_TIMES: Final = int(os.environ.get("TIMES", "3"))
_LONG_MS: Final = 2.0
_WIDE: Final = "topic/persistent/public/default/wide"
_ADMIN: Final = "/admin/v2/persistent/public/default/wide"
_TABS: Final = ("subscriptions", "producers", "messages", "schema", "policies", "storage")
_PAGES: Final = (
    *(f"/console/{_WIDE}", *(f"/console/{_WIDE}/{tab}" for tab in _TABS)),
    *(f"/console/{_WIDE}/permissions", f"/console/{_WIDE}/produce"),
    *(f"/console/{_WIDE}-parted", f"/console/{_WIDE}-parted/storage"),
    *("/console/", "/console/topics", "/console/topics?sort=msgBacklog", "/console/subscriptions"),
    *("/console/namespaces", "/console/tenant/public", "/console/ns/public/default"),
    *("/console/ns/public/default/policies", "/console/brokers", "/console/bookies"),
    *("/console/roles", "/console/settings", "/console/schemas", "/console/find?q=service"),
    *("/console/audit", "/console/transactions", "/console/about", "/console/keys"),
    f"/console/{_WIDE}/subscriptions?open=subscription-of-a-service-0",
    f"/console/{_WIDE}/subscriptions?open=subscription-of-a-service-0&client=99",
    *(f"{_ADMIN}/{tail}" for tail in ("stats", "stats?getEarliestTimeInBacklog=true")),
    *(f"{_ADMIN}/{tail}" for tail in ("internalStats", "internal-info", "backlog", "explain")),
    *(f"{_ADMIN}/{tail}" for tail in ("explain/publishing", "subscriptions", "permissions")),
    *(f"{_ADMIN}-parted/{tail}" for tail in ("partitioned-stats", "partitioned-internalStats")),
    *(f"{_ADMIN}-parted/{tail}" for tail in ("internal-info", "explain", "explain/publishing")),
    *(f"{_ADMIN}-parted/{tail}" for tail in ("partitions", "subscriptions")),
    "/admin/v2/schemas/public/default/wide/schema",
    "/admin/v2/schemas/public/default/wide/schemas",
    "/admin/v2/persistent/public/default",
    "/admin/v2/persistent/public/default/partitioned",
    "/admin/v2/namespaces/public",
    "/metrics/",
)


class TurnLog:
    """Processor time of every turn of the loop, while it is on."""

    def __init__(self) -> None:
        self.turns: list[tuple[float, Any]] = []
        self.is_on = False
        self._run: Any = events.Handle._run
        setattr(events.Handle, "_run", lambda handle: self._timed(handle))  # noqa: B010

    def _timed(self, handle: events.Handle) -> None:
        if not self.is_on:
            self._run(handle)
            return
        callback = handle._callback  # type: ignore[attr-defined]
        began_s = time.thread_time()
        self._run(handle)
        self.turns.append(((time.thread_time() - began_s) * 1000, callback))


def name_of(callback: Any) -> str:
    task = getattr(callback, "__self__", None)
    what = task.get_coro() if isinstance(task, asyncio.Task) else callback
    return str(getattr(what, "__qualname__", what))


async def visit(app: Any, path: str, *headers: tuple[bytes, bytes]) -> tuple[int, int]:
    """Status and bytes of an answer."""
    status, size, was_asked = 0, 0, False

    async def receive() -> dict[str, Any]:
        nonlocal was_asked
        if was_asked:
            await asyncio.Event().wait()
        was_asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, size
        status = message.get("status", status)
        size += len(message.get("body", b""))

    plain, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": unquote(plain),
        "raw_path": plain.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost"), *headers],
        "client": ("127.0.0.1", 5000),
        "server": ("localhost", 8080),
        "state": {},
    }
    await asyncio.sleep(0)
    await app(scope, receive, send)
    return status, size


def definition() -> SchemaDefinition:
    doc = {"type": "long", "doc": "What the field means to whoever reads it. " * 3}
    fields = [{"name": f"field{number}", **doc} for number in range(SCHEMA_BYTES // 180)]
    return SchemaDefinition("AVRO", orjson.dumps({"type": "record", "name": "R", "fields": fields}))


async def fill(broker: Broker) -> None:
    service = broker.service
    topic = await service.loader.load(TopicName.parse("wide"), create=True)
    for number in range(SUBSCRIPTIONS):
        await topic.create_subscription(f"subscription-of-a-service-{number}")
    peer = broker.client()
    await peer.receive_one()
    for number in range(1, PRODUCERS + 1):
        name = f"producer-of-a-service-{number}"
        await peer.produce(topic.full_name, producer_name=name, producer_id=number)
    for number in range(1, CONSUMERS + 1):
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic, subscribe.subscription = topic.full_name, "subscription-of-a-service-0"
        subscribe.subType, subscribe.consumer_id = pb.CommandSubscribe.Shared, number
        subscribe.consumer_name, subscribe.request_id = f"consumer-of-a-service-{number}", number
        peer.send(command)
        await peer.receive_one()
    await service.schemas.register(TopicName.parse("wide"), definition(), SchemaRules())
    await service.resources.create_partitioned(TopicName.parse("wide-parted"), PARTITIONS)
    for number in range(PARTITIONS):
        await service.loader.load(TopicName.parse(f"wide-parted-partition-{number}"), create=True)
    for number in range(NAMESPACES):
        await service.resources.create_namespace(f"public/space-{number}", ["standalone"], 4, {})


async def main() -> None:
    broker = await Broker().start()
    await fill(broker)
    app, log = create_app(broker.service), TurnLog()
    console._SHARED_S = 0.0  # type: ignore[misc]  # each middle is made
    gc.collect()
    gc.freeze()
    print("longest ms     CPU ms  turns      bytes")
    for path in sys.argv[1:] or _PAGES:
        for kind, headers in (("page", ()), ("middle", ((b"magnetar-fragment", b"1"),))):
            found = []
            for _ in range(_TIMES):
                gc.disable()
                log.turns.clear()
                log.is_on = True
                status, size = await asyncio.create_task(visit(app, path, *headers))
                log.is_on = False
                gc.enable()
                # Turns of this function are no part of the answer.
                named = [(ms, name_of(each)) for ms, each in log.turns]
                turns = [(ms, name) for ms, name in named if name != "main"]
                longest_ms, name = max(turns)
                used_ms = sum(ms for ms, _ in turns)
                found.append((longest_ms, used_ms, len(turns), status, size, name))
            longest_ms, used_ms, count, status, size, name = min(found)
            mark = f"  {name}" if longest_ms > _LONG_MS else ""
            line = f"{longest_ms:10.1f} {used_ms:10.1f} {count:6} {size:10} {status} {kind:6}"
            print(f"{line} {path}{mark}", flush=True)
    await broker.close()


if __name__ == "__main__":
    asyncio.run(main())
