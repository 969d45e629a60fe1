"""A release that is installed, as the API server shows it."""

import json

from tests.charts.control_plane import ControlPlane, until
from tests.charts.renderings import Object


class Installed:
    """One release in one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str, name: str) -> None:
        self.plane, self.namespace, self.name = plane, namespace, name
        self.label = f"app.kubernetes.io/instance={name}"

    def pods(self) -> list[Object]:
        """Also those that end, by name."""
        found = self.plane.listed("pods", self.namespace, self.label)
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    def workloads(self) -> list[Object]:
        return [*self.sets(), *self.plane.listed("apps/v1/deployments", self.namespace, self.label)]

    def sets(self) -> list[Object]:
        return self.plane.listed("apps/v1/statefulsets", self.namespace, self.label)

    def objects(self) -> dict[str, Object]:
        """What the server has of each object of the chart, without what controllers write."""
        manifest = self.plane.helm("get", "manifest", self.name, "--namespace", self.namespace)
        words = ("get", "-o", "json", "--namespace", self.namespace, "-f", "-")
        found = json.loads(self.plane.kubectl(*words, stdin=manifest))["items"]
        for each in found:
            each.pop("status", None)
            if each["kind"] == "Service":  # numbers that nobody chose
                each["spec"].pop("healthCheckNodePort", None)
                for port in each["spec"]["ports"]:
                    port.pop("nodePort", None)
            metadata = each["metadata"]
            each["metadata"] = {"name": metadata["name"], "labels": metadata.get("labels")}
        return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}

    def check_ready(self) -> None:
        workloads = self.workloads()
        assert workloads
        for each in workloads:
            ready = each["status"]["readyReplicas"]
            assert ready == each["spec"]["replicas"], each["metadata"]["name"]

    def until_settled(self) -> None:
        """As many pods as there should be, all of them ready and none about to end."""

        def is_settled() -> bool:
            count = sum(each["spec"]["replicas"] for each in self.workloads())
            pods = self.pods()
            return len(pods) == count and all(map(_is_ready, pods))

        until("each pod is ready", is_settled)

    def until_served(self) -> None:
        """Each Service leads to somebody."""
        until("each Service has endpoints", lambda: not self._lost())

    def _lost(self) -> set[str]:
        slices = self.plane.listed("discovery.k8s.io/v1/endpointslices", self.namespace)
        served = {
            each["metadata"]["labels"]["kubernetes.io/service-name"]
            for each in slices
            if each.get("endpoints") and each.get("ports")
        }
        services = self.plane.listed("services", self.namespace)
        wanted = {each["metadata"]["name"] for each in services}
        # One for each broker that there may be; no metrics are there to make more of them.
        unborn = {name for name in wanted if name.endswith(("-3-external", "-4-external"))}
        return wanted - served - unborn


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
