"""What auto-recovery shows over HTTP, and its metrics page."""

import json
import random

from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.replication.admin_pages import AutoRecoveryPages
from magnetar.bookkeeper.replication.auto_recovery import AutoRecovery, AutoRecoveryConfig
from magnetar.bookkeeper.replication.under_replication import UnderReplicationStore
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, ServiceInfo
from magnetar.broker.http.metrics.prometheus_page import PrometheusPage
from magnetar.broker.http.metrics.replication_metrics import add_replication_metrics
from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.autorecovery_process import parse_metrics
from tests.integration.bookkeeper_network import eventually


async def _metrics(recovery: AutoRecovery) -> bytes:
    page = PrometheusPage("c1")
    add_replication_metrics(page, recovery, 60.0)
    return b"".join(page.pieces())


def _recovery(store: EmbeddedMetadataStore, name: str, *, workers: int) -> AutoRecovery:
    rng = random.Random(1)
    return AutoRecovery(
        store,
        BookiePool(),
        RandomPlacement(rng),
        name,
        clock=lambda: 5000,
        rng=rng,
        config=AutoRecoveryConfig(workers=workers),
    )


async def test_pages() -> None:
    store = EmbeddedMetadataStore.open(None)
    pages = AutoRecoveryPages(_metrics)
    by_path = pages.by_path()
    assert (await by_path["/heartbeat"]()).status == 200
    for path in ("is_ready", "status", "who_is_auditor", "lost_bookie_recovery_delay"):
        assert (await by_path[f"/api/v1/autorecovery/{path}"]()).status == 503
    assert (await by_path["/metrics"]()).status == 503
    recovery = _recovery(store, "one", workers=2)
    pages.marks = marks = UnderReplicationStore(store, lambda: 5000)
    assert recovery.elector is not None
    info = ServiceInfo("b1", "/a/ud0").encode()
    await store.put(f"{AVAILABLE_PATH}/b1", info, -1, ephemeral=True)
    await recovery.start()
    pages.recovery = recovery
    await eventually(lambda: bool(recovery.metrics.zones))

    async def read(path: str) -> object:
        answer = await by_path[f"/api/v1/autorecovery/{path}"]()
        assert answer.status == 200
        return json.loads(answer.body)

    status = {
        "enabled": True,
        "isAuditor": True,
        "workers": 2,
        "zones": {"a": {"state": "up", "available": 1, "registered": 1}},
    }
    assert await read("status") == status
    await marks.disable("maintenance")
    assert await read("status") == status | {
        "enabled": False,
        "reason": "maintenance",
        "sinceMs": 5000,
    }
    assert await read("who_is_auditor") == {"Auditor": "one"}
    assert await read("lost_bookie_recovery_delay") == {"lostBookieRecoveryDelay": 0}
    await marks.set_lost_bookie_delay_s(7)
    assert await read("lost_bookie_recovery_delay") == {"lostBookieRecoveryDelay": 7}
    assert (await by_path["/api/v1/autorecovery/is_ready"]()).status == 200
    await recovery.close()
    assert (await by_path["/api/v1/autorecovery/who_is_auditor"]()).status == 404
    await store.close()


async def test_metrics_of_an_auditor_and_its_workers() -> None:
    store = EmbeddedMetadataStore.open(None)
    recovery = _recovery(store, "one", workers=2)
    metrics = recovery.metrics
    metrics.zones = {'a"b': ("held", 1, 3), "c": ("up", 3, 3), "d": ("released", 0, 3)}
    metrics.marked_over_grace = 4
    metrics.audits.record(120.0)
    metrics.disabled = True
    recovery.workers[1].metrics.entries_copied = 9
    found = parse_metrics((await _metrics(recovery)).decode())
    alerts = {k: v for k, v in found.items() if k.startswith("auditor_zone_down")}
    assert list(alerts.values()) == [1, 0, 1]
    assert found['auditor_zone_suspended{zone="d"}'] == 0
    assert found['auditor_zone_bookies_registered{zone="c"}'] == 3
    assert found["auditor_replication_disabled"] == 1
    name = "auditor_NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD"
    assert found[name] == 4
    assert found['auditor_AUDIT_BOOKIES_TIME_sum{success="true"}'] == 120
    assert found['replication_worker_NUM_ENTRIES_WRITTEN{worker="1"}'] == 9
    assert found['replication_worker_NUM_ENTRIES_WRITTEN{worker="0"}'] == 0
    await recovery.close()
    await store.close()
