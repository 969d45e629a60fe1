"""Addresses for clients of several networks."""

import pytest

from magnetar.broker.advertised_listeners import address_of, parse_listeners
from magnetar.broker.config import BrokerConfig, ConfigError
from magnetar.bundles.lookup import BrokerLookup

TEXT = "inner:pulsar://10.0.0.1:6650, outer:pulsar://b.example:6650,outer:pulsar+ssl://[::1]:6651"


def test_listeners_have_an_address_for_each_scheme() -> None:
    assert parse_listeners("") == {}
    assert parse_listeners(TEXT) == {
        "inner": {"brokerServiceUrl": "pulsar://10.0.0.1:6650"},
        "outer": {
            "brokerServiceUrl": "pulsar://b.example:6650",
            "brokerServiceUrlTls": "pulsar+ssl://[::1]:6651",
        },
    }


@pytest.mark.parametrize(
    "text",
    [
        *("pulsar://h:1", "a:ftp://h:1", "a:pulsar://h", "a:pulsar://h:0", "a:pulsar://h:99999"),
        *("a:pulsar://h:1/x", "a:pulsar://h:1,a:pulsar://h:2", "a:pulsar://h:1,b:pulsar://h:1"),
    ],
)
def test_bad_settings_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="advertisedListeners"):
        BrokerConfig(advertised_listeners=text)


def test_who_names_no_listener_gets_the_internal_one() -> None:
    listeners = parse_listeners(TEXT)
    assert address_of(listeners, "", "pulsar") == "pulsar://10.0.0.1:6650"
    assert address_of(listeners, "", "pulsar+ssl") == "pulsar+ssl://[::1]:6651"
    assert address_of(listeners, "outer", "pulsar") == "pulsar://b.example:6650"
    assert address_of(listeners, "inner", "pulsar+ssl") is None
    with pytest.raises(ConfigError, match="internalListenerName=other"):
        BrokerConfig(advertised_listeners=TEXT, internal_listener_name="other")


def test_lookups_answer_the_addresses_of_the_listener() -> None:
    broker = BrokerLookup("pulsar://x:1", None, "http://x:2", None, parse_listeners(TEXT))
    assert BrokerLookup.decode(broker.encode()) == broker
    outer = broker.by_listener("outer")
    assert outer is not None
    assert outer.broker_url == "pulsar://b.example:6650"
    assert outer.broker_url_tls == "pulsar+ssl://[::1]:6651"
    assert outer.http_url == "http://x:2"
    assert broker.by_listener("nowhere") is None
