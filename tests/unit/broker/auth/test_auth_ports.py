"""Which ports are open: plain, TLS, or both."""

import pytest

from magnetar.broker.config import BrokerConfig, ConfigError


def test_an_empty_port_is_switched_off_as_in_pulsar() -> None:
    config = BrokerConfig.load(
        environment={}, overrides={"brokerServicePort": "", "brokerServicePortTls": "6651"}
    )
    assert (config.broker_service_port, config.broker_service_port_tls) == (-1, 6651)
    stock = BrokerConfig.load(
        environment={}, overrides={"brokerServicePortTls": "", "webServicePortTls": ""}
    )
    assert (stock.broker_service_port, stock.broker_service_port_tls) == (6650, -1)
    assert (stock.web_service_port, stock.web_service_port_tls) == (8080, -1)


@pytest.mark.parametrize("key", ["brokerServicePort", "webServicePort"])
def test_a_protocol_needs_one_port(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} and {key}Tls"):
        BrokerConfig.load(environment={}, overrides={key: ""})
    with pytest.raises(ConfigError, match="not a port number"):
        BrokerConfig.load(environment={}, overrides={f"{key}Tls": "-2"})
