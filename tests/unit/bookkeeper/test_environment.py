"""Settings among environment variables, and what Kubernetes puts among them."""

import pytest

from magnetar.bookkeeper.bookie.settings import BookieSettings
from magnetar.bookkeeper.environment import service_links
from magnetar.bookkeeper.replication.settings import ENVIRONMENT_PREFIXES, KEYS
from magnetar.broker.config import BrokerConfig

LINKS = {
    "MAGNETAR_BROKER_SERVICE_HOST": "10.96.0.7",
    "MAGNETAR_BROKER_SERVICE_PORT": "8080",
    "MAGNETAR_BROKER_SERVICE_PORT_HTTP": "8080",
    "MAGNETAR_BROKER_PORT": "tcp://10.96.0.7:8080",
    "MAGNETAR_BROKER_PORT_8080_TCP": "tcp://10.96.0.7:8080",
    "MAGNETAR_BROKER_PORT_8080_TCP_PROTO": "tcp",
    "MAGNETAR_BOOKIE_SERVICE_HOST": "10.96.0.8",
    "MAGNETAR_BOOKIE_SERVICE_PORT": "3181",
    "MAGNETAR_BOOKIE_PORT": "tcp://10.96.0.8:3181",
}
"""What a pod beside the services magnetar-broker and magnetar-bookie gets."""


def bookie(variables: dict[str, str]) -> BookieSettings:
    return BookieSettings.load(BookieSettings.environment(variables))


def test_one_rule_for_all_processes() -> None:
    variables = {
        "MAGNETAR_logFormat": "json",
        "MAGNETAR_CLUSTER_NAME": "east",
        "MAGNETAR_HOME": "/",
    }
    broker = BrokerConfig.load(environment=variables)
    assert (broker.log_format, broker.cluster_name) == ("json", "east")
    assert (bookie(variables).log_format, bookie(variables).cluster_name) == ("json", "east")
    repair = KEYS.environment(variables, ENVIRONMENT_PREFIXES)
    assert repair == {"logFormat": "json", "CLUSTER_NAME": "east"}


def test_a_name_of_ours_beats_pulsar_s_and_one_of_the_role_beats_both() -> None:
    variables = {"PULSAR_PREFIX_logLevel": "ERROR", "MAGNETAR_logLevel": "WARNING"}
    assert BrokerConfig.load(environment=variables).log_level == "WARNING"
    assert bookie(variables).log_level == "WARNING"
    assert bookie(variables | {"BOOKIE_logLevel": "DEBUG"}).log_level == "DEBUG"
    assert bookie({"PULSAR_PREFIX_logLevel": "ERROR"}).log_level == "ERROR"


@pytest.mark.parametrize("turned", [False, True], ids=["one order", "the other"])
def test_the_order_of_variables_does_not_count(turned: bool) -> None:
    def ordered(variables: dict[str, str]) -> dict[str, str]:
        return dict(reversed(variables.items())) if turned else variables

    two = ordered({"MAGNETAR_logLevel": "ERROR", "MAGNETAR_LOG_LEVEL": "DEBUG"})
    for load in (lambda: BrokerConfig.load(environment=two), lambda: bookie(two)):
        with pytest.raises(ValueError, match="MAGNETAR_LOG_LEVEL and MAGNETAR_logLevel: two val"):
            load()
    with pytest.raises(ValueError, match="two values of one setting"):
        KEYS.environment(two, ENVIRONMENT_PREFIXES)
    # One that is there and empty, as a label that a pod lacks, says nothing beside another.
    empty = ordered({"MAGNETAR_ZONE": "", "MAGNETAR_zone": "a"})
    assert bookie(empty).zone == BrokerConfig.load(environment=empty).zone == "a"
    spelled = ordered({"PULSAR_PREFIX_LOG_LEVEL": "ERROR", "MAGNETAR_logLevel": "DEBUG"})
    assert bookie(spelled).log_level == "DEBUG"
    # Three names of one thing, the last of the prefix that wins.
    urls = {
        "PULSAR_PREFIX_metadataStoreUrl": "zk:a",
        "MAGNETAR_metadataServiceUri": "zk:b",
        "BOOKIE_metadataStoreUrl": "zk:c",
    }
    assert bookie(ordered(urls)).metadata_url == "zk:c"


def test_services_of_kubernetes_are_no_settings() -> None:
    assert service_links(LINKS) == frozenset(LINKS)
    broker = BrokerConfig.load(environment=LINKS)
    assert (broker.broker_service_port, broker.bookie_port) == (6650, 0)
    assert bookie(LINKS).bookie_port == 3181


@pytest.mark.parametrize("missing", ["MAGNETAR_BROKER_SERVICE_HOST", "MAGNETAR_BROKER_PORT"])
def test_a_setting_that_looks_like_a_service_s_counts(missing: str) -> None:
    variables = {name: value for name, value in LINKS.items() if name != missing}
    assert BrokerConfig.load(environment=variables).broker_service_port == 8080
    alone = {"MAGNETAR_BROKER_SERVICE_PORT": "7650"}
    assert BrokerConfig.load(environment=alone).broker_service_port == 7650
