"""The error tree and the wire."""

from __future__ import annotations

import broker.errors
from broker.errors import BrokerError
from broker.protocol import pulsar_api_pb2 as pb
from broker.protocol.server_error import NAMES


def classes() -> list[type[BrokerError]]:
    return [getattr(broker.errors, name) for name in broker.errors.__all__]


def test_every_error_has_a_code_of_the_protocol_and_a_status() -> None:
    for error in classes():
        assert issubclass(error, BrokerError)
        assert error.wire_code in NAMES
        assert 400 <= error.http_status < 600


def test_every_code_that_a_client_without_transactions_can_meet_has_an_error() -> None:
    transactions = {
        pb.TransactionCoordinatorNotFound,
        pb.InvalidTxnStatus,
        pb.TransactionConflict,
        pb.TransactionNotFound,
    }
    assert {error.wire_code for error in classes()} == set(NAMES) - transactions


def test_names_and_subscriptions_use_pulsar_s_codes() -> None:
    assert broker.errors.NamingError.wire_code == pb.ProducerBusy
    assert broker.errors.SubscriptionBusyError.wire_code == pb.ConsumerBusy
    assert broker.errors.TopicFencedError.wire_code == pb.ServiceNotReady
    assert broker.errors.SubscriptionFencedError.wire_code == pb.ServiceNotReady
