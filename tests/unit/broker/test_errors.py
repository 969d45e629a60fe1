"""The error tree and the wire."""

import magnetar.broker.errors
from magnetar.broker.client.async_client_connection import error_of
from magnetar.broker.errors import BrokerError
from magnetar.broker.protocol import pulsar_api_pb2 as pb


def classes() -> list[type[BrokerError]]:
    found = vars(magnetar.broker.errors).values()
    return [each for each in found if isinstance(each, type) and issubclass(each, BrokerError)]


def test_every_error_has_a_code_of_the_protocol_and_a_status() -> None:
    for error in classes():
        assert issubclass(error, BrokerError)
        assert error.wire_code in pb.ServerError.values()
        assert 400 <= error.http_status < 600


def test_every_code_that_a_client_can_meet_has_an_error() -> None:
    assert {error.wire_code for error in classes()} == set(pb.ServerError.values())


def test_names_and_subscriptions_use_pulsar_s_codes() -> None:
    assert magnetar.broker.errors.NamingError.wire_code == pb.ProducerBusy
    assert magnetar.broker.errors.SubscriptionBusyError.wire_code == pb.ConsumerBusy
    assert magnetar.broker.errors.TopicFencedError.wire_code == pb.ServiceNotReady
    assert magnetar.broker.errors.SubscriptionFencedError.wire_code == pb.ServiceNotReady


def test_an_error_of_another_broker_is_the_general_one_of_its_code() -> None:
    assert (
        type(error_of(pb.MetadataError, "no store")) is magnetar.broker.errors.BrokerMetadataError
    )
    assert type(error_of(pb.ServiceNotReady, "")) is magnetar.broker.errors.ServiceNotReadyError
    assert type(error_of(-1, "")) is BrokerError
