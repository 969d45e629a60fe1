"""``magnetar admin`` over a real standalone broker, word by word."""

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import magnetar
from magnetar.broker.cli.completion_names import print_names
from magnetar.broker.cli.main import main
from magnetar.embedding import EmbeddedBroker

Admin = Callable[..., list[str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with magnetar.embedded(
        mode="process", forceDeleteNamespaceAllowed=True, forceDeleteTenantAllowed=True
    ) as broker:
        yield broker


@pytest.fixture
def admin(broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]) -> Admin:
    """Runs a line; its output's lines. ``fails``: exit code 1, and standard error's lines."""

    def admin(line: str, *, fails: bool = False) -> list[str]:
        words = ["admin", "--admin-url", broker.web_url, *line.split(" ")]
        code = main(words)
        output = capsys.readouterr()
        assert code == (1 if fails else 0), output.err
        return (output.err if fails else output.out).splitlines()

    return admin


@pytest.fixture
def namespace(admin: Admin) -> str:
    tenant = f"cli-{uuid.uuid4().hex[:8]}"
    admin(f"tenants create {tenant}")
    admin(f"namespaces create {tenant}/ns -b 4")
    return f"{tenant}/ns"


def value(lines: list[str]) -> Any:
    return json.loads("\n".join(lines))


def test_tenants(admin: Admin) -> None:
    name = f"cli-{uuid.uuid4().hex[:8]}"
    assert admin(f"tenants create {name} -r a") == []
    assert name in admin("tenants list")
    assert name in value(admin("--json tenants list"))
    assert name in value(admin("tenants list --json"))
    admin(f"tenants update {name} -r b,c")
    assert value(admin(f"tenants get {name}")) == {
        "adminRoles": ["b", "c"],
        "allowedClusters": ["standalone"],
    }
    assert admin(f"tenants create {name}", fails=True)[0] == "magnetar: HTTP 409"
    admin(f"tenants delete {name}")
    first, reason, hint = admin(f"tenants get {name}", fails=True)
    assert (first, reason) == ("magnetar: HTTP 404", "Reason: Tenant does not exist")
    assert hint.startswith(f"There is no tenant {name}")


def test_names_like_one_that_is_not_there(admin: Admin, namespace: str) -> None:
    admin(f"topics create {namespace}/orders")
    admin(f"topics create-partitioned-topic {namespace}/parcels -p 2")
    admin(f"topics create-subscription {namespace}/orders -s billing")
    for line, like in (
        (f"topics stats {namespace}/oders", "orders"),
        (f"topics partitioned-stats {namespace}/parcel", "parcels"),
        (f"topics clear-backlog {namespace}/orders -s biling", "billing"),
        (f"namespaces policies {namespace}-", namespace.partition("/")[2]),
    ):
        assert admin(line, fails=True)[-1].endswith(f"Names like it: {like}")


def test_clients_are_told_of_topics_like_one_that_is_not_there(
    broker: EmbeddedBroker, admin: Admin, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin(f"topics create-partitioned-topic {namespace}/parcels -p 2")
    admin(f"namespaces set-auto-topic-creation {namespace} -d")
    for words in (["produce", "-m", "a"], ["consume", "-s", "s"]):
        assert main([*words, "--url", broker.service_url, f"{namespace}/parcel"]) == 1
        told = capsys.readouterr().err
        assert told.endswith(
            f"There is no topic parcel in {namespace}. Names like it: parcels\n"
        ), told


def test_the_two_ports_are_told_apart(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = broker.service_url.replace("pulsar:", "http:")
    assert main(["admin", "--admin-url", binary, "tenants", "list"]) == 1
    assert "speaks Pulsar's binary protocol" in capsys.readouterr().err
    http = broker.web_url.replace("http:", "pulsar:")
    assert main(["produce", "--url", http, "t", "-m", "a"]) == 1
    assert "is an HTTP port" in capsys.readouterr().err
    assert main(["produce", "--url", http.replace("pulsar:", "wss:"), "t", "-m", "a"]) == 1
    assert "speaks no TLS: --url ws://" in capsys.readouterr().err


def test_several_deletions_tell_what_failed(admin: Admin, namespace: str) -> None:
    for name in ("a", "b"):
        admin(f"topics create {namespace}/{name}")
    said = admin(f"topics delete {namespace}/a {namespace}/none {namespace}/b", fails=True)
    assert said[0] == "magnetar: 1 of 3 failed"
    assert said[1].startswith(f"{namespace}/none: HTTP 404")
    assert admin(f"topics list {namespace}") == []


def test_namespaces(admin: Admin, namespace: str) -> None:
    tenant = namespace.split("/")[0]
    assert admin(f"namespaces list {tenant}") == [namespace]
    assert value(admin(f"namespaces policies {namespace}"))["bundles"]["numBundles"] == 4
    assert admin(f"namespaces get-message-ttl {namespace}") == ["null"]
    admin(f"namespaces set-message-ttl {namespace} -ttl 2h")
    assert admin(f"namespaces get-message-ttl {namespace}") == ["7200"]
    admin(f"namespaces remove-message-ttl {namespace}")
    assert value(admin(f"namespaces get-message-ttl {namespace} --json")) is None
    admin(f"namespaces unload {namespace}")
    admin(f"topics create {namespace}/x")
    assert admin(f"namespaces topics {namespace}") == [f"persistent://{namespace}/x"]
    assert admin(f"namespaces delete {namespace}", fails=True)[0] == "magnetar: HTTP 409"
    admin(f"namespaces delete {namespace} -f")
    assert admin(f"namespaces list {tenant}") == []


def test_topics_and_subscriptions(admin: Admin, namespace: str) -> None:
    topic = f"{namespace}/p"
    admin(f"topics create-partitioned-topic {topic} -p 3")
    assert value(admin(f"topics get-partitioned-topic-metadata {topic}"))["partitions"] == 3
    admin(f"topics create-subscription {topic} -s one -m earliest")
    admin(f"subscriptions create {topic} -s two")
    assert sorted(admin(f"topics subscriptions {topic}")) == ["one", "two"]
    assert len(admin(f"topics list {namespace}")) == 3
    assert admin(f"topics list-partitioned-topics {namespace}") == [f"persistent://{topic}"]
    owners = value(admin(f"topics partitioned-lookup {topic}"))
    assert set(owners) == {f"persistent://{topic}-partition-{index}" for index in range(3)}
    by_broker = value(admin(f"topics partitioned-lookup {topic} -s"))
    assert list(by_broker.values()) == [list(owners)]
    admin(f"topics clear-backlog {topic} -s one")
    said = admin(f"topics clear-backlog {topic} -s none", fails=True)
    assert said[0] == "magnetar: 3 of 3 partitions failed"
    admin(f"topics reset-cursor {topic} -s one -t 1h")
    admin(f"topics reset-cursor {topic}-partition-0 -s one -m earliest")
    assert "either -t or -p" in admin(f"topics expire-messages {topic} -s one", fails=True)[0]
    admin(f"topics unsubscribe {topic} -s one")
    admin(f"topics update-partitioned-topic {topic} -p 4")
    stats = value(admin(f"topics partitioned-stats {topic} --per-partition"))
    assert len(stats["partitions"]) == 4
    admin(f"topics delete-partitioned-topic {topic} -f")
    assert admin(f"topics list {namespace}") == []


def test_brokers_and_clusters(admin: Admin) -> None:
    assert admin("clusters list") == ["standalone"]
    assert admin("clusters list -c") == ["standalone(*)"]
    assert admin("brokers list") == admin("brokers list standalone")
    assert admin("brokers healthcheck") == ["ok"]
    assert value(admin("brokers get-runtime-config"))["clusterName"] == "standalone"


def test_top_prints_what_the_index_knows(
    broker: EmbeddedBroker, admin: Admin, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin(f"topics create-subscription {namespace}/orders -s billing")
    for view in ("subscriptions", "topics", "brokers", "bookies", "connections"):
        words = ["--admin-url", broker.web_url, "--json", "top", "--once", "--view", view]
        assert main(words) == 0
        assert view in json.loads(capsys.readouterr().out)
        assert main(words[:2] + words[3:]) == 0
        assert "1 broker  1/1 bookies" in capsys.readouterr().out


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["admin", "--admin-url", "http://127.0.0.1:9", "tenants", "list"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_names_for_completion(
    broker: EmbeddedBroker, admin: Admin, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin(f"topics create-partitioned-topic {namespace}/parcels -p 2")
    admin(f"topics create-subscription {namespace}/parcels -s billing")
    before = ["--admin-url", broker.web_url, "topics", "unsubscribe"]
    for kind, words, shown in (
        ("topic", [f"{namespace}/p"], f"{namespace}/parcels\n"),
        ("subscription", [f"{namespace}/parcels", "-s", ""], "billing\n"),
        ("namespace", [namespace[:-1]], f"{namespace}\n"),
        ("tenant", [namespace.partition("/")[0]], f"{namespace.partition('/')[0]}\n"),
    ):
        assert print_names(kind, [*before, *words]) == 0
        assert capsys.readouterr() == (shown, "")
