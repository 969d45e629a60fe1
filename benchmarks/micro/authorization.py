"""What authorization costs a command: `python -m benchmarks.micro.authorization`.

Best of a few rounds, in microseconds: the rules alone, with the cached documents, and the gate in
front of a handler, for namespaces with few and with many grants; then a message on its way from
SEND to receipt, on connections that differ in nothing but the gate, in turns.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import orjson

from magnetar.broker.auth.authorization import Caller, Permission, Resource
from magnetar.broker.config import BrokerConfig
from magnetar.broker.connection.command_authorizer import CommandAuthorizer
from magnetar.broker.connection.handlers import HANDLERS
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.resources.resources import POLICIES, Resources
from magnetar.broker.service.access_control import AccessControl
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.unit.broker.doubles import Broker, message

ROUNDS, CALLS = 5, 30_000
MESSAGES, TURNS = 500, 60


class Service:
    """As much of a broker as is asked for documents."""

    def __init__(self, store: Any) -> None:
        self.config = BrokerConfig(
            authentication_enabled=True, authorization_enabled=True, super_user_roles="admin"
        )
        self.store, self.resources = store, Resources(store, self.config)
        self.loop = asyncio.get_running_loop()


class Connection:
    role, original_role, remote, closed = "joe", None, "192.0.2.7:4711", False


def best_us(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - began)
    return best / CALLS * 1e6


async def measure(service: Any, name: str, count: int) -> None:
    roles = {f"role-{index}": ["produce"] for index in range(count)} | {"joe": ["consume"]}
    document = {"auth_policies": {"namespace_auth": roles}}
    await service.store.put(f"{POLICIES}/t/{name}", orjson.dumps(document))
    access = AccessControl(service.config, service.store, service.resources, service.connections)
    command_authorizer = CommandAuthorizer(access)
    resource = Resource.of_topic(TopicName.parse(f"t/{name}/topic"), "s")
    joe, consume = Caller("joe"), Permission.CONSUME
    assert await access.may(joe, consume, resource)
    asked = best_us(lambda: access.may_nowait(joe, consume, resource))
    kind = pb.BaseCommand.LOOKUP
    command = pb.CommandLookupTopic(topic=f"persistent://t/{name}/topic", request_id=1)
    connection: Any = Connection()
    HANDLERS[kind] = lambda connection, command: None
    passed = best_us(lambda: command_authorizer.take(connection, kind, command))
    print(f"{count:5} grants: {asked:.2f} a question, {passed:.2f} a LOOKUP through the gate")
    access.close()


async def messages() -> None:
    """From the bytes of SEND to the receipt, over a ledger in memory."""
    broker = await Broker().start()
    service = broker.service
    access = AccessControl(service.config, service.store, service.resources, service.connections)
    gates = {"without": None, "with": CommandAuthorizer(access)}
    best = dict.fromkeys(gates, float("inf"))
    clients = {}
    for name in gates:
        clients[name] = broker.client()
        await clients[name].receive_one()  # CONNECTED
        await clients[name].produce(f"public/default/{name}")
    sequence = 0
    for _ in range(TURNS):
        for name, command_authorizer in gates.items():
            service.command_authorizer = command_authorizer
            frames = b"".join(message(sequence + each) for each in range(MESSAGES))
            sequence += MESSAGES
            client = clients[name]
            began = time.perf_counter()
            client.feed(frames)
            await client.receive(MESSAGES)
            best[name] = min(best[name], time.perf_counter() - began)
    shown = ", ".join(f"{took / MESSAGES * 1e6:.2f} {name}" for name, took in best.items())
    print(f"a message: {shown} the gate")
    access.close()
    await broker.close()


async def main() -> None:
    store = EmbeddedMetadataStore.open(None)
    service: Any = Service(store)
    await store.put(f"{POLICIES}/t", b'{"adminRoles": ["ten"]}')
    await measure(service, "few", 3)
    await measure(service, "many", 5_000)
    service.resources.close()
    await store.close()
    await messages()


if __name__ == "__main__":
    asyncio.run(main())
