"""What transactions leave behind is freed at once: collections of garbage are turns of the loop."""

import gc
from typing import Any, Final

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.unit.broker.doubles import Broker, Client, message

C = pb.BaseCommand
IN, OUT = "persistent://public/default/in", "persistent://public/default/out"
TRANSACTIONS: Final = 10


async def _connected(broker: Broker) -> Client:
    """With a producer (1) and a subscription (1) of ``IN``, and a producer (2) of ``OUT``."""
    client = broker.client()
    await client.receive_one()
    connect = C(type=C.TC_CLIENT_CONNECT_REQUEST)
    connect.tcClientConnectRequest.tc_id = 0
    await _ask(client, connect, connect.tcClientConnectRequest)
    await client.produce(IN, 1)
    await client.produce(OUT, 2)
    subscribe = C(type=C.SUBSCRIBE)
    asked = subscribe.subscribe
    asked.topic, asked.subscription, asked.subType, asked.consumer_id = IN, "s", asked.Shared, 1
    await _ask(client, subscribe, asked)
    flow = C(type=C.FLOW)
    flow.flow.consumer_id, flow.flow.messagePermits = 1, 1000
    client.send(flow)
    return client


async def _ask(client: Client, command: C, asked: Any) -> pb.BaseCommand:
    asked.request_id = next(client.request_ids)
    client.send(command)
    return await client.receive_one()


async def _transform(client: Client, number: int) -> None:
    """A message of ``IN`` is acknowledged, and one sent to ``OUT``, in a transaction."""
    client.feed(message(number))
    kinds = {x.type: x for x in await client.receive(2)}
    position = kinds[C.MESSAGE].message.message_id
    new = C(type=C.NEW_TXN)
    new.newTxn.tc_id, new.newTxn.txn_ttl_millis = 0, 60_000
    name = (await _ask(client, new, new.newTxn)).newTxnResponse.txnid_least_bits
    bits: dict[str, Any] = {"txnid_most_bits": 0, "txnid_least_bits": name}
    partition, subscription = C(type=C.ADD_PARTITION_TO_TXN), C(type=C.ADD_SUBSCRIPTION_TO_TXN)
    partition.addPartitionToTxn.MergeFrom(
        pb.CommandAddPartitionToTxn(request_id=0, partitions=[OUT], **bits)
    )
    subscription.addSubscriptionToTxn.MergeFrom(
        pb.CommandAddSubscriptionToTxn(
            request_id=0, subscription=[pb.Subscription(topic=IN, subscription="s")], **bits
        )
    )
    await _ask(client, partition, partition.addPartitionToTxn)
    await _ask(client, subscription, subscription.addSubscriptionToTxn)
    client.feed(message(number, producer_id=2, **bits))
    ack = C(type=C.ACK)
    ack.ack.MergeFrom(
        pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, request_id=1, **bits)
    )
    ack.ack.message_id.add().CopyFrom(position)
    client.send(ack)
    assert {x.type for x in await client.receive(2)} == {C.SEND_RECEIPT, C.ACK_RESPONSE}
    end = C(type=C.END_TXN)
    end.endTxn.MergeFrom(pb.CommandEndTxn(request_id=0, txn_action=pb.COMMIT, **bits))
    assert not (await _ask(client, end, end.endTxn)).endTxnResponse.HasField("error")


async def test_no_cycle_is_left_to_the_collector() -> None:
    broker = await Broker(transaction_coordinator_enabled=True).start()
    client = await _connected(broker)
    await _transform(client, 0)
    gc.collect()
    gc.disable()
    try:
        for number in range(1, TRANSACTIONS + 1):
            await _transform(client, number)
        assert gc.collect() < TRANSACTIONS
    finally:
        gc.enable()
        await broker.close()
