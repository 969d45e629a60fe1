"""What a page shows of a topic with partitions where the cluster's sums leave it out."""

from typing import Any

from magnetar.broker.console.subject import topic_stats
from magnetar.broker.console.topic_path import TopicPath


class Partitioned:
    """Statistics as Apache Pulsar 4.2.4 has them: those of all partitions have no addresses."""

    async def call(self, method: str, path: str, query: Any) -> Any:
        if path.endswith("/partitions"):
            return {"partitions": 2}

        def part(acked_ms: int) -> dict[str, Any]:
            consumer = {
                "consumerName": "c",
                "address": "/10.0.0.7:5",
                "clientVersion": "v",
                "lastAckedTimestamp": acked_ms,
            }
            return {
                "subscriptions": {"s": {"consumers": [consumer], "lastAckedTimestamp": acked_ms}}
            }

        whole = {"consumerName": "c", "availablePermits": 7, "lastAckedTimestamp": 0}
        return {
            "subscriptions": {"s": {"consumers": [whole], "lastAckedTimestamp": 0}},
            "partitions": {"t-partition-0": part(3), "t-partition-1": part(8)},
        }


async def test_clients_of_partitions_have_their_addresses() -> None:
    api: Any = Partitioned()
    _, stats = await topic_stats(api, TopicPath.parse("persistent://a/b/t"))
    subscription = stats["subscriptions"]["s"]
    assert subscription["lastAckedTimestamp"] == 8
    (consumer,) = subscription["consumers"]
    assert (consumer["address"], consumer["clientVersion"]) == ("/10.0.0.7:5", "v")
    assert (consumer["availablePermits"], consumer["lastAckedTimestamp"]) == (7, 8)
