"""Nodes, a zone each, whose pods really run here; with the cluster's DNS and its provisioner.

Everything lives in this process's namespaces and ends with them, whatever happens to it.
"""

import http.client
import logging
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.charts.live.api import ApiError, ApiServer
from tests.charts.live.api_forwarder import ApiForwarder
from tests.charts.live.mirror import Mirror
from tests.charts.live.names import NameServer
from tests.charts.live.network import BRIDGE_ADDRESS, PodNetwork
from tests.charts.live.pod import Pod, Surroundings
from tests.charts.live.sandbox import prepare_image
from tests.charts.live.volumes import Provisioner
from tests.charts.renderings import Object

_logger = logging.getLogger(__name__)
_CAPACITY: Final = {"cpu": "32", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"}
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_HEARTBEAT_S: Final = 10.0
_LEASE_S: Final = 40


class Kubelet:
    """As many nodes as zones; ``with`` it, pods run."""

    def __init__(self, api: ApiServer, zones: int, folder: Path) -> None:
        self._api, self._zones = api, zones
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True)
        prepare_image(folder / "image")
        self._around = Surroundings(
            api, PodNetwork(), folder / "image", folder / "pods", self.logs, BRIDGE_ADDRESS
        )
        self._names = NameServer()
        self._forwarder = ApiForwarder(api.host, api.port)
        self._provisioner = Provisioner(api, folder / "volumes")
        self._pods: dict[str, Pod] = {}
        self._lost: set[str] = set()  # nodes
        self._end = threading.Event()
        slices = "/apis/discovery.k8s.io/v1/endpointslices"
        self._services = Mirror(api, "/api/v1/services", self._learn_names)
        self._slices = Mirror(api, slices, self._learn_names)
        self._scheduled = Mirror(api, "/api/v1/pods", self._on_pod, fieldSelector="spec.nodeName!=")
        self._contents = [
            Mirror(api, "/api/v1/configmaps", partial(self._on_content, "configMap")),
            Mirror(
                *(api, "/api/v1/secrets", partial(self._on_content, "secret")),
                fieldSelector="type!=helm.sh/release.v1",  # large, and no pod has them
            ),
        ]
        self._chores = [
            threading.Thread(target=self._repeat, args=chore, daemon=True)
            for chore in ((self._beat, _HEARTBEAT_S), (self._provisioner.look, 1.0))
        ]

    @property
    def nodes(self) -> list[str]:
        return [f"node-{number}" for number in range(1, self._zones + 1)]

    def __enter__(self) -> "Kubelet":
        for number, name in enumerate(self.nodes, 1):
            self._register(name, f"zone-{number}")
        for each in (*self._mirrors(), *self._chores):
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Ends all that runs, at once; to be called while the API server is there."""
        self._end.set()
        for mirror in self._mirrors():
            mirror.close()
        pods = list(self._pods.values())
        for each in pods:
            each.on_deleted()
        for each in pods:
            each.join()
        for thread in (*self._mirrors(), *self._chores):
            thread.join()
        self._names.close()
        self._forwarder.close()
        self._around.network.close()

    def _mirrors(self) -> list[Mirror]:
        return [self._services, self._slices, self._scheduled, *self._contents]

    def pods(self) -> list[Object]:
        """All that have a node, as the API server knows them."""
        return list(self._scheduled.objects.values())

    def pids(self, uid: str) -> list[int]:
        """The first processes of a pod's containers."""
        return self._pods[uid].pids()

    def execute(self, uid: str, command: Sequence[str], timeout_s: float) -> str | None:
        """What a command in a pod prints; None: it failed."""
        return self._pods[uid].execute(command, timeout_s)

    def lose(self, node: str) -> dict[str, Object]:
        """A node that nobody reaches any more, without a word. Its pods live on, and reach each
        other alone; their claims are taken from them.

        Returns:
            Its pods by uid, as they were.
        """
        self._lost.add(node)
        found = {uid: pod for uid, pod in self._scheduled.objects.items() if _is_on(pod, node)}
        cut = [self._pods[uid] for uid in found]
        self._around.network.cut(each.network for each in cut)
        for each in cut:
            each.cut()
        return found

    def join(self, uids: Iterable[str]) -> None:
        """Pods of a lost node reach everybody again; the node is still unheard of."""
        self._around.network.join(self._pods[uid].network for uid in uids)

    def find(self, node: str) -> None:
        """The lost node is heard of again, and hears what was decided meanwhile."""
        self._lost.discard(node)
        self._beat_of(node)
        for uid, pod in list(self._pods.items()):
            if pod.node == node and pod.is_alive():
                pod.join_again()
                if found := self._scheduled.objects.get(uid):
                    pod.on_change(found)
                else:
                    pod.on_missed()

    def restarts(self, uid: str) -> int:
        """Of a pod's containers, whether the API server knows or not."""
        return self._pods[uid].restarts

    def is_running(self, uid: str) -> bool:
        """Whether anything of a pod is left here."""
        return self._pods[uid].is_alive()

    def _register(self, name: str, zone: str) -> None:
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "topology.kubernetes.io/zone": zone,
            "topology.kubernetes.io/region": "local",
        }
        metadata = {"name": name, "labels": labels}
        self._api.create(
            "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        )
        self._api.create(
            _LEASES,
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name},
                "spec": {"holderIdentity": name, "leaseDurationSeconds": _LEASE_S},
            },
        )
        self._beat_of(name)

    def _beat(self) -> None:
        for name in self.nodes:
            if name not in self._lost:
                self._beat_of(name)

    def _beat_of(self, name: str) -> None:
        """The node is ready, and its lease goes on."""
        now = datetime.now(UTC)
        seconds = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [
            {"type": "Ready", "status": "True", "reason": "KubeletReady"},
            *(
                {"type": f"{kind}Pressure", "status": "False", "reason": "Sufficient"}
                for kind in ("Memory", "Disk", "PID")
            ),
        ]
        status = {
            "capacity": _CAPACITY,
            "allocatable": _CAPACITY,
            "addresses": [
                {"type": "InternalIP", "address": BRIDGE_ADDRESS},
                {"type": "Hostname", "address": name},
            ],
            "conditions": [
                {**each, "message": "", "lastHeartbeatTime": seconds} for each in conditions
            ],
        }
        self._api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        renewed = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self._api.patch(f"{_LEASES}/{name}", {"spec": {"renewTime": renewed}})

    def _repeat(self, chore: Any, period_s: float) -> None:
        while not self._end.is_set():
            try:
                chore()
            except (ApiError, OSError, http.client.HTTPException) as error:
                _logger.warning("tried again: %r", error)
            self._end.wait(period_s)

    def _learn_names(self, _: str, __: Object) -> None:
        services, slices = self._services.objects, self._slices.objects
        self._names.learn(list(services.values()), list(slices.values()))

    def _on_content(self, what: str, kind: str, found: Object) -> None:
        if kind != "DELETED":
            metadata = found["metadata"]
            for pod in list(self._pods.values()):
                pod.on_content(what, metadata["namespace"], metadata["name"])

    def _on_pod(self, kind: str, found: Object) -> None:
        uid = found["metadata"]["uid"]
        pod = self._pods.get(uid)
        if found["spec"]["nodeName"] in self._lost:
            return  # it hears nothing
        if kind == "DELETED":
            if pod is not None:
                pod.on_deleted()
        elif pod is not None:
            pod.on_change(found)
        elif not self._end.is_set():
            self._pods[uid] = pod = Pod(self._around, found)
            pod.start()


def _is_on(pod: Object, node: str) -> bool:
    return bool(pod["spec"]["nodeName"] == node)
