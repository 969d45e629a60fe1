"""Random histories of topics that are compacted: what readers of the view get.

The expectation is a model's. It holds for Apache Pulsar, too, where these tests are given its URL.
Replay one seed with MAGNETAR_SEED=41 MAGNETAR_SEEDS=1.
"""

import random
import uuid
from collections.abc import Iterator

import pytest

import magnetar
from tests.compacted_topic import CompactedTopic
from tests.compaction_histories import Model, history
from tests.interop.conftest import Admin
from tests.nightly import NIGHTLY
from tests.simulation.simulator import seeds

_TENANT = f"compaction-{uuid.uuid4().hex[:8]}"
_RETAINS = "topicCompactionRetainNullKey"

Server = tuple[str, Admin, bool]
"""Service URL, administration, whether it is Magnetar; with two namespaces for these tests."""


@pytest.fixture(scope="module", params=[False, True], ids=["drops", "retains"])
def server(
    request: pytest.FixtureRequest, external_server: tuple[str, str] | None
) -> Iterator[Server]:
    if external_server is not None:
        admin = Admin(external_server[1])
        if _retains_keyless(admin) is not request.param:
            pytest.skip(f"{_RETAINS} is otherwise there")
        yield external_server[0], _prepared(admin), False
        return
    settings = {_RETAINS: request.param, "transactionCoordinatorEnabled": True}
    with magnetar.embedded(mode="process", **settings) as broker:
        yield broker.service_url, _prepared(Admin(broker.web_url)), True


def _retains_keyless(admin: Admin) -> bool:
    settings = admin.call("GET", "/admin/v2/brokers/configuration/runtime")[1]
    return bool(settings[_RETAINS] == "true")


def _prepared(admin: Admin) -> Admin:
    clusters = admin.call("GET", "/admin/v2/clusters")[1]
    admin.call("PUT", f"/admin/v2/tenants/{_TENANT}", {"allowedClusters": clusters})
    for name in ("plain", "deduplicated"):
        admin.call("PUT", f"/admin/v2/namespaces/{_TENANT}/{name}", {})
    path = f"/admin/v2/namespaces/{_TENANT}/deduplicated/deduplication"
    assert admin.call("POST", path, True)[0] == 204
    return admin


@pytest.mark.parametrize("seed", seeds(100 if NIGHTLY else 3))
def test_random_histories(server: Server, seed: int) -> None:
    service_url, admin, is_magnetar = server
    deduplicates = seed % 3 == 2
    namespace = f"{_TENANT}/{'deduplicated' if deduplicates else 'plain'}"
    name = f"persistent://{namespace}/history-{seed}-{uuid.uuid4().hex[:8]}"
    model = Model(_retains_keyless(admin), as_pulsar=not is_magnetar)
    topic = CompactedTopic(service_url, admin, name, model, random.Random(seed))
    try:
        topic.run(history(seed, deduplicates=deduplicates))
    finally:
        admin.call("DELETE", f"{admin.topic_path(name)}?force=true")
