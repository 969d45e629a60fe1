"""One release in a namespace: its pods, and commands in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.charts.control_plane import ControlPlane
from tests.charts.live.kubelet import Kubelet
from tests.charts.renderings import Object

PATIENCE: Final = ("--timeout", "9m")
_COMMAND_S: Final = 120.0


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


@dataclass(frozen=True, slots=True)
class Release:
    """``replicas``: how many pods each component is to have, by the component's label."""

    plane: ControlPlane
    kubelet: Kubelet
    name: str
    namespace: str
    replicas: dict[str, int]

    def make_namespace(self) -> None:
        enforce = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": self.namespace, "labels": enforce}
        self.plane.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}])

    def install(self, *values: Path, words: Sequence[str] = ()) -> None:
        files = (word for path in values for word in ("--values", str(path)))
        self.plane.install(self.name, self.namespace, *PATIENCE, *files, *words)

    def upgrade(self, *words: str) -> None:
        """With the values of before, and what these words change."""
        self.plane.upgrade(
            self.name, self.namespace, *PATIENCE, "--reset-then-reuse-values", *words
        )

    def pods(self) -> dict[str, Object]:
        """Those that aren't ending, by name."""
        return {
            pod["metadata"]["name"]: pod
            for component in self.replicas
            for pod in self.plane.pods(self.namespace, component)
        }

    def is_whole(self) -> bool:
        pods = self.pods().values()
        return len(pods) == sum(self.replicas.values()) and all(map(is_ready, pods))

    def lives(self) -> dict[str, tuple[str, int]]:
        """Of each pod what changes with a new one, and with a restart in it."""
        return {
            name: (
                str(pod["metadata"]["uid"]),
                int(pod["status"]["containerStatuses"][0]["restartCount"]),
            )
            for name, pod in self.pods().items()
        }

    def host(self, component: str, ordinal: int | None = None) -> str:
        """Of a component's Service, or of one of its pods."""
        service = f"{self.name}-magnetar-{component}"
        domain = f"{self.namespace}.svc.cluster.local"
        if ordinal is None:
            return f"{service}.{domain}"
        return f"{service}-{ordinal}.{service}-headless.{domain}"

    def tool(self, *command: str) -> str:
        """What a command in the toolset's pod prints."""
        (pod,) = self.plane.pods(self.namespace, "toolset")
        said = self.kubelet.execute(pod["metadata"]["uid"], command, _COMMAND_S)
        assert said is not None, f"{' '.join(command)} failed"
        return said
