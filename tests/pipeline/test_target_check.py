"""The sink asks whether anything keeps what it will write: real brokers, real Spark."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pulsar
import pytest

import magnetar
from magnetar.embedding import EmbeddedBroker
from magnetar.pipeline.admin import parse_access
from magnetar.pipeline.errors import OptionsError, PipelineError
from magnetar.pipeline.sink_options import parse_sink_options
from magnetar.pipeline.target_check import TargetCheck
from tests.official_client import client_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
NOTHING = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
REFUSED = "nothing keeps what is written"


class Target:
    """A topic of a namespace of its own, which neither retains anything nor has subscriptions."""

    def __init__(self, service_url: str, admin_url: str, client: pulsar.Client) -> None:
        self.http = httpx.Client(base_url=f"{admin_url}/admin/v2/", timeout=60)
        self.client = client
        self.namespace = f"public/kept-{uuid.uuid4().hex[:8]}"
        self.topic = f"persistent://{self.namespace}/orders"
        self.put(f"namespaces/{self.namespace}")
        self.urls = {"serviceUrl": service_url, "adminUrl": admin_url}

    def put(self, path: str, body: object = None) -> None:
        answer = self.http.put(path, json=body)
        assert answer.is_success, answer.text

    def post(self, path: str, body: object) -> None:
        answer = self.http.post(path, json=body)
        assert answer.is_success, answer.text

    @property
    def path(self) -> str:
        return f"persistent/{self.namespace}/orders"

    @property
    def options(self) -> dict[str, str]:
        return {**self.urls, "topic": self.topic, "deliveryGuarantee": "at-least-once"}

    def ask(self, **options: str) -> None:
        """As the driver does."""
        given = self.options | options
        check = TargetCheck.of(parse_sink_options(given), parse_access(given))
        check.ask(self.topic, may_be_absent=True)


@pytest.fixture(scope="module")
def client(service_url: str) -> Iterator[pulsar.Client]:
    with client_of(service_url) as made:
        yield made


@pytest.fixture
def target(service_url: str, admin_url: str, client: pulsar.Client) -> Iterator[Target]:
    made = Target(service_url, admin_url, client)
    yield made
    made.http.close()


def _by_the_topic(target: Target) -> None:
    target.post(f"{target.path}/retention", KEPT)


def _by_the_namespace(target: Target) -> None:
    target.post(f"namespaces/{target.namespace}/retention", KEPT)


def _by_a_subscription(target: Target) -> None:
    target.put(f"{target.path}/subscription/s")


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("keep", [_by_the_topic, _by_the_namespace, _by_a_subscription])
def test_a_topic_is_written_to_once_something_keeps_it(
    target: Target, partitions: int, keep: Callable[[Target], None]
) -> None:
    target.put(f"{target.path}/partitions" if partitions else target.path, partitions or None)
    with pytest.raises(OptionsError, match=REFUSED):
        target.ask()
    keep(target)
    target.ask()


def test_a_topic_without_retention_of_its_own_in_a_namespace_that_has_some(target: Target) -> None:
    target.put(target.path)
    _by_the_namespace(target)
    target.post(f"{target.path}/retention", NOTHING)
    with pytest.raises(OptionsError, match=REFUSED):
        target.ask()


def test_each_partition_needs_a_subscription(target: Target) -> None:
    target.put(f"{target.path}/partitions", 2)
    target.client.subscribe(f"{target.topic}-partition-0", "s").close()
    with pytest.raises(OptionsError, match="its partition 1 has no durable subscription"):
        target.ask()
    target.client.subscribe(f"{target.topic}-partition-1", "s").close()
    target.ask()


def test_a_reader_keeps_nothing(target: Target) -> None:
    reader = target.client.create_reader(target.topic, pulsar.MessageId.earliest)
    with pytest.raises(OptionsError, match="it has no durable subscription"):
        target.ask()
    reader.close()


def test_a_topic_to_be_made_is_checked_by_its_namespace(target: Target) -> None:
    target.post(f"namespaces/{target.namespace}/retention", NOTHING)
    with pytest.raises(OptionsError, match="it doesn't exist yet"):
        target.ask()
    _by_the_namespace(target)
    target.ask()
    assert target.http.get(f"persistent/{target.namespace}").json() == []


def test_a_warning_is_enough_where_that_is_said(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    target.put(target.path)
    with caplog.at_level(logging.WARNING, "magnetar.pipeline.target_check"):
        target.ask(failOnDataLoss="false")
    assert f"{target.topic}: {REFUSED}" in caplog.text


def test_nobody_to_ask_is_told(target: Target) -> None:
    with pytest.raises(OptionsError, match=r"adminUrl is needed: .*failOnDataLoss=false"):
        TargetCheck.of(parse_sink_options(target.options), None)
    TargetCheck.of(parse_sink_options(target.options | {"failOnDataLoss": "false"}), None)
    volatile = target.options | {"topic": "non-persistent://public/default/t"}
    TargetCheck.of(parse_sink_options(volatile), None)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    key: Path = tmp_path_factory.mktemp("guarded") / "secret.key"
    key.write_bytes(bytes(range(32)))
    with magnetar.embedded(
        authenticationEnabled=True,
        authorizationEnabled=True,
        authenticationProviders="token",
        tokenSecretKey=key,
        superUserRoles="admin",
    ) as broker:
        yield broker


def test_a_role_that_may_not_ask_is_told_what_it_takes(
    guarded: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    admin = {"Authorization": f"Bearer {guarded.token('admin')}"}
    with httpx.Client(base_url=f"{guarded.web_url}/admin/v2/", headers=admin) as http:
        assert http.put("persistent/public/default/t").is_success
        grant = http.post("namespaces/public/default/permissions/joe", json=["produce"])
        assert grant.is_success, grant.text
    given = {
        "serviceUrl": guarded.service_url,
        "adminUrl": guarded.web_url,
        "topic": "t",
        "authPlugin": "token",
        "authParams": f"token:{guarded.token('joe')}",
        "deliveryGuarantee": "at-least-once",
    }
    topic = "persistent://public/default/t"
    check = TargetCheck.of(parse_sink_options(given), parse_access(given))
    with pytest.raises(PipelineError, match=r"an administrator of its tenant.*failOnDataLoss"):
        check.ask(topic)
    given["failOnDataLoss"] = "false"
    TargetCheck.of(parse_sink_options(given), parse_access(given)).ask(topic)
    assert "an administrator of its tenant" in caplog.text
    given |= {"deliveryGuarantee": "effectively-once"}
    with pytest.raises(PipelineError, match=r"drops repeated .*administrator.*at-least-once"):
        TargetCheck.of(parse_sink_options(given), parse_access(given)).ask(topic)


def test_spark_refuses_before_the_first_row(
    spark: SparkSession, target: Target, tmp_path: Path
) -> None:
    target.put(target.path)
    rows = spark.sql("select 'x' as value")
    with pytest.raises(Exception, match=REFUSED):
        rows.write.format("magnetar").mode("append").options(**target.options).save()
    stream = spark.readStream.format("rate").load().selectExpr("string(value) as value")
    query = (
        stream.writeStream.format("magnetar")
        .options(**target.options, checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
    )
    with pytest.raises(Exception, match=REFUSED):
        query.start().awaitTermination(120)
    # Of a column's topics the first task asks that comes to one.
    named = rows.selectExpr("value", f"'{target.topic}' as topic")
    given = {name: text for name, text in target.options.items() if name != "topic"}
    with pytest.raises(Exception, match=REFUSED):
        named.write.format("magnetar").mode("append").options(**given).save()
    statistics = target.http.get(f"{target.path}/stats").json()
    assert statistics["msgInCounter"] == 0
    _by_a_subscription(target)
    rows.write.format("magnetar").mode("append").options(**target.options).save()
    assert target.http.get(f"{target.path}/stats").json()["msgInCounter"] == 1
