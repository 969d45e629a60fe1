"""Schemas of Apache Pulsar: each topic is asked once a minute, and nobody waits long."""

import asyncio
from typing import Any

from magnetar.broker.console.admin_api import AdminApi, AdminError
from magnetar.broker.console.pulsar_schemas import PulsarSchemas

TOPIC = "persistent://public/default/"


class Cluster(AdminApi):
    """Every topic but ``plain`` has a schema; it is told when it is let."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.let = asyncio.Event()
        self.at_once = self.most_at_once = 0

    async def call(self, method: str, path: str, query: Any = None, body: Any = None) -> Any:
        self.asked.append(path.removeprefix("/admin/v2/"))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.let.wait()
        self.at_once -= 1
        if "plain" in path:
            raise AdminError(404, "Schema not found")
        return {"type": "INT32", "version": len(self.asked)}


async def test_partitions_are_asked_as_one_topic_and_answers_are_kept() -> None:
    cluster, now_s = Cluster(), [100.0]
    cluster.let.set()
    schemas = PulsarSchemas(cluster, lambda: now_s[0])
    names = [TOPIC + each for each in ("a-partition-0", "a-partition-1", "plain")]
    first = await schemas.of(names)
    assert sorted(cluster.asked) == [
        "schemas/public/default/a/schema",
        "schemas/public/default/plain/schema",
    ]
    assert first[0] == first[1]
    assert first[2] is None
    now_s[0] += 59
    assert await schemas.of(names) == first
    assert len(cluster.asked) == 2
    now_s[0] += 2
    assert await schemas.of(names) != first
    assert len(cluster.asked) == 4


async def test_few_are_asked_at_once_and_a_page_does_not_wait_for_all() -> None:
    cluster = Cluster()
    schemas = PulsarSchemas(cluster, lambda: 1.0)
    names = [f"{TOPIC}{number}" for number in range(50)]
    assert await schemas.of(names) == [None] * 50
    assert cluster.most_at_once == 8
    cluster.let.set()
    assert None not in await schemas.of(names)
    assert len(cluster.asked) == 50
    for number in range(3_000):
        await schemas.of([f"{TOPIC}more-{number}"])
    assert len(schemas._kept) == 1_000
