"""Cluster-wide admin calls against a server of their own: settings, shutdown, racks, domains."""

from collections.abc import Iterator

import httpx
import pulsar
import pytest

from tests.official_client import open_client
from tests.standalone_process import StandaloneProcess

POLICY = {
    "namespaces": ["t/.*"],
    "primary": ["b.*"],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
}


@pytest.fixture
def admin(fresh_standalone: StandaloneProcess) -> Iterator[httpx.Client]:
    with connect(fresh_standalone) as client:
        yield client


def connect(process: StandaloneProcess) -> httpx.Client:
    return httpx.Client(base_url=f"{process.admin_url}/admin/v2", timeout=60)


def refusal(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["reason"])


def test_a_setting_holds_at_once_survives_a_restart_and_goes_back(
    fresh_standalone: StandaloneProcess, admin: httpx.Client
) -> None:
    configuration = "/brokers/configuration"
    names = admin.get(configuration).json()
    assert {"allowAutoTopicCreation", "maxTopicsPerNamespace"} <= set(names)
    assert admin.get(f"{configuration}/values").json() == {}
    assert admin.get(f"{configuration}/runtime").json()["allowAutoTopicCreation"] == "true"
    client = open_client(fresh_standalone.service_url)
    client.create_producer("made-by-use").close()

    assert admin.post(f"{configuration}/allowAutoTopicCreation/false").status_code == 200
    assert admin.get(f"{configuration}/values").json() == {"allowAutoTopicCreation": "false"}
    assert admin.get(f"{configuration}/runtime").json()["allowAutoTopicCreation"] == "false"
    with pytest.raises(pulsar.PulsarException):
        client.create_producer("not-made-by-use")
    client.create_producer("made-by-use").close()

    admin.post(f"{configuration}/maxTopicsPerNamespace/1")
    assert "maximum number of topics" in refusal(
        admin.put("/persistent/public/default/second"), 412
    )
    client.close()

    fresh_standalone.stop()
    fresh_standalone.start()
    with connect(fresh_standalone) as again:
        runtime = again.get(f"{configuration}/runtime").json()
        assert runtime["allowAutoTopicCreation"] == "false"
        assert again.delete(f"{configuration}/allowAutoTopicCreation").status_code == 200
        assert again.delete(f"{configuration}/maxTopicsPerNamespace").status_code == 200
        assert again.get(f"{configuration}/values").json() == {}
        assert again.get(f"{configuration}/runtime").json()["allowAutoTopicCreation"] == "true"
        assert again.put("/persistent/public/default/second").status_code == 204


def test_settings_that_are_refused(admin: httpx.Client) -> None:
    configuration = "/brokers/configuration"
    for path in ("clusterName/x", "nope/1", "maxTenants/many", "allowAutoTopicCreationType/weird"):
        assert refusal(admin.post(f"{configuration}/{path}"), 412)
    assert refusal(admin.delete(f"{configuration}/clusterName"), 412)
    assert admin.get(f"{configuration}/values").json() == {}


def test_shutdown_answers_first_then_stops_in_an_orderly_way(
    fresh_standalone: StandaloneProcess, admin: httpx.Client
) -> None:
    client = open_client(fresh_standalone.service_url)
    consumer = client.subscribe("kept", "s")
    client.create_producer("kept").send(b"acknowledged")
    consumer.close()
    client.close()
    assert "forcedTerminateTopic" in refusal(
        admin.post("/brokers/shutdown?forcedTerminateTopic=false"), 412
    )
    assert admin.post("/brokers/shutdown?maxConcurrentUnloadPerSec=5").status_code == 204
    assert fresh_standalone.wait_for_end(60) == 0, fresh_standalone.log
    assert "Traceback" not in fresh_standalone.log

    fresh_standalone.start()
    client = pulsar.Client(fresh_standalone.service_url)
    assert client.subscribe("kept", "s").receive(30_000).data() == b"acknowledged"
    client.close()


def test_racks_domains_and_quotas_are_kept(
    fresh_standalone: StandaloneProcess, admin: httpx.Client
) -> None:
    [own] = admin.get("/bookies/state").json()["bookies"]
    assert {"bookieId": own["bookieId"]} in admin.get("/bookies/all").json()["bookies"]
    assert (own["state"], own["error"]) == ("writable", None)
    assert 0 < own["freeBytes"] < own["totalBytes"]
    rack = {"rack": "/r1", "hostname": "b1"}
    assert admin.post("/bookies/racks-info/b1:3181?group=g1", json=rack).status_code == 204
    assert admin.post("/bookies/racks-info/b1:3181?group=g2", json=rack).status_code == 204
    domains = "/clusters/standalone/failureDomains"
    assert admin.post(f"{domains}/d1", json={"brokers": ["b:1", "a:1"]}).status_code == 204
    assert "already exists in d1" in refusal(
        admin.post(f"{domains}/d2", json={"brokers": ["a:1"]}), 409
    )
    bundle = "/resource-quotas/public/default/0x00000000_0x08000000"
    quota = {"msgRateIn": 1.0, "msgRateOut": 2.0, "bandwidthIn": 3.0, "bandwidthOut": 4.0}
    stored = {**quota, "memory": 5.0, "dynamic": False}
    assert admin.post(bundle, json=stored).status_code == 204
    assert admin.post("/resource-quotas", json={**stored, "memory": 6.0}).status_code == 204

    fresh_standalone.kill()
    fresh_standalone.start()
    with connect(fresh_standalone) as again:
        assert again.get("/bookies/racks-info").json() == {"g2": {"b1:3181": rack}}, "one group"
        assert again.get(domains).json() == {"d1": {"brokers": ["a:1", "b:1"]}}
        assert again.get(bundle).json() == stored
        assert again.delete(bundle).status_code == 204
        assert again.get(bundle).json()["memory"] == 6.0, "the default one"
        assert again.delete("/bookies/racks-info/b1:3181").status_code == 204
        assert again.get("/bookies/racks-info").json() == {}
        assert again.delete(f"{domains}/d1").status_code == 204


def test_a_split_and_what_was_acknowledged_survive_kill_nine(
    fresh_standalone: StandaloneProcess, admin: httpx.Client
) -> None:
    client = pulsar.Client(fresh_standalone.service_url)
    consumer = client.subscribe("kept", "s")
    producer = client.create_producer("kept")
    for number in range(10):
        producer.send(b"%d" % number)
        if number == 4:
            split = "/namespaces/public/default/LARGEST/split?unload=true"
            assert admin.put(split).status_code == 204
    bundles = admin.get("/namespaces/public/default/bundles").json()
    assert bundles["numBundles"] == 33
    fresh_standalone.kill()
    fresh_standalone.start(same_ports=True)
    with connect(fresh_standalone) as again:
        assert again.get("/namespaces/public/default/bundles").json() == bundles
        policies = again.get("/namespaces/public/default").json()
        assert policies["bundles"] == bundles
    for number in range(10):
        message = consumer.receive(30_000)
        assert message.data() == b"%d" % number
        consumer.acknowledge(message)
    client.close()


def test_what_would_have_no_effect_is_refused(admin: httpx.Client) -> None:
    policies = "/clusters/standalone/namespaceIsolationPolicies"
    assert "several brokers" in refusal(admin.post(f"{policies}/p", json=POLICY), 501)
    assert refusal(admin.get(policies), 404)
    assert admin.put("/clusters/other", json={"serviceUrl": "http://h:1"}).status_code == 200
    elsewhere = "/clusters/other/namespaceIsolationPolicies/p"
    assert admin.post(elsewhere, json=POLICY).status_code == 204
    assert "isolation" in refusal(admin.delete("/clusters/other"), 412)
    assert admin.delete(elsewhere).status_code == 204
    assert admin.delete("/clusters/other").status_code == 204
    assert "not supported" in refusal(admin.put("/resourcegroups/g", json={}), 501)
    assert admin.get("/resourcegroups").json() == []
    assert "migration" in refusal(admin.post("/clusters/standalone/migrate?isMigrated=true"), 501)
    assert "this broker" in refusal(admin.delete("/clusters/standalone"), 412)


def test_the_load_report_tells_what_there_is(
    fresh_standalone: StandaloneProcess, admin: httpx.Client
) -> None:
    client = pulsar.Client(fresh_standalone.service_url)
    consumers = [client.subscribe(f"t{number}", "s") for number in range(3)]
    producer = client.create_producer("t0")
    report = admin.get("/broker-stats/load-report").json()
    assert report["numTopics"] == 3
    assert (report["numProducers"], report["numConsumers"]) == (1, len(consumers))
    assert report["numBundles"] == len(report["bundles"]) >= len(report["lastStats"]) >= 1
    assert sum(each["topics"] for each in report["lastStats"].values()) == 3
    assert report["pulsarServiceUrl"] == fresh_standalone.service_url
    for resource in ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut"):
        assert report[resource].keys() == {"usage", "limit"}
    assert 0 < report["memory"]["usage"] < report["memory"]["limit"]
    broker = admin.get("/brokers").json()[0]
    owned = admin.get(f"/brokers/standalone/{broker}/ownedNamespaces").json()
    assert sorted(owned) == report["bundles"]
    topics = admin.get("/broker-stats/topics").json()["public/default"]
    assert sum(len(bundle["persistent"]) for bundle in topics.values()) == 3
    producer.close()
    client.close()
