"""Commands to a coordinator of transactions, over the wire, and a broker that is killed."""

from pathlib import Path

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.raw_client import RawClient
from tests.raw_transactions import assigned, begin, connect_to_coordinator, end
from tests.standalone_process import StandaloneProcess


def _connected(url: str) -> RawClient:
    client = RawClient(url)
    client.look_up(assigned(0))
    assert not connect_to_coordinator(client).HasField("error")
    return client


def test_transactions_outlive_their_broker(tmp_path: Path) -> None:
    options = ("--set", "transactionCoordinatorEnabled=true")
    with StandaloneProcess(tmp_path / "data", *options) as broker:
        with _connected(broker.service_url) as client:
            assert [begin(client), begin(client)] == [(0, 0), (0, 1)]
            assert not end(client, (0, 0)).HasField("error")
            again = end(client, (0, 0))
            assert (again.error, again.txnid_least_bits) == (pb.TransactionNotFound, 0)
        broker.kill()
        broker.start()
        with _connected(broker.service_url) as client:
            assert begin(client) > (0, 1)  # no sequence is given twice, some are left out
            assert not end(client, (0, 1)).HasField("error")
