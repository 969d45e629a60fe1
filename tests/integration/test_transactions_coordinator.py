"""Commands to a coordinator of transactions, over the wire, and a broker that is killed."""

from pathlib import Path

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.raw_client import RawClient
from tests.standalone_process import StandaloneProcess

C = pb.BaseCommand


def _connected(url: str) -> RawClient:
    client = RawClient(url)
    client.look_up("persistent://pulsar/system/transaction_coordinator_assign-partition-0")
    command = C(type=C.TC_CLIENT_CONNECT_REQUEST)
    command.tcClientConnectRequest.request_id = 1
    command.tcClientConnectRequest.tc_id = 0
    client.send(command)
    answer = client.expect(C.TC_CLIENT_CONNECT_RESPONSE)[0].tcClientConnectResponse
    assert not answer.HasField("error")
    return client


def _new(client: RawClient) -> int:
    command = C(type=C.NEW_TXN)
    command.newTxn.request_id, command.newTxn.txn_ttl_millis = 2, 60_000
    client.send(command)
    return client.expect(C.NEW_TXN_RESPONSE)[0].newTxnResponse.txnid_least_bits


def _end(client: RawClient, sequence: int) -> pb.CommandEndTxnResponse:
    command = C(type=C.END_TXN)
    command.endTxn.request_id, command.endTxn.txnid_least_bits = 3, sequence
    command.endTxn.txnid_most_bits, command.endTxn.txn_action = 0, pb.COMMIT
    client.send(command)
    return client.expect(C.END_TXN_RESPONSE)[0].endTxnResponse


def test_transactions_outlive_their_broker(tmp_path: Path) -> None:
    options = ("--set", "transactionCoordinatorEnabled=true")
    with StandaloneProcess(tmp_path / "data", *options) as broker:
        with _connected(broker.service_url) as client:
            assert [_new(client), _new(client)] == [0, 1]
            assert not _end(client, 0).HasField("error")
            again = _end(client, 0)
            assert (again.error, again.txnid_least_bits) == (pb.TransactionNotFound, 0)
        broker.kill()
        broker.start()
        with _connected(broker.service_url) as client:
            assert _new(client) == 2
            assert not _end(client, 1).HasField("error")
