"""A pod on a node of ours, from the moment it is scheduled until its object is deleted."""

import copy
import logging
import os
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.charts.live.api import ApiError, ApiServer, Gone
from tests.charts.live.container import Container, now_text
from tests.charts.live.network import PodNetwork
from tests.charts.live.sandbox import IMAGE_VARIABLES, Sandbox
from tests.charts.live.settings import command_of, variables_of
from tests.charts.live.volumes import NotThereYet, make_volumes, refresh_volumes
from tests.charts.renderings import Object
from tests.child_process import suspend

_logger = logging.getLogger(__name__)
_RETRY_S: Final = 0.5
_TOLD_S: Final = 5.0  # a status that couldn't be reported is tried again


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What pods share."""

    api: ApiServer
    network: PodNetwork
    image: Path
    pods: Path  # a folder for each pod below it, removed at its end
    logs: Path  # of all containers; they stay
    host_address: str


class Pod(threading.Thread):
    """Keeps what runs and what the API server knows in agreement."""

    def __init__(self, surroundings: Surroundings, pod: Object) -> None:
        super().__init__(daemon=True)
        self._around = surroundings
        self._pod = pod
        metadata = pod["metadata"]
        self.uid = str(metadata["uid"])
        self._path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self._folder = surroundings.pods / self.uid
        self._network = ""
        self._containers: list[Container] = []
        self._news = threading.Event()
        self._renewed: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._grace_s: float | None = None  # None: it is to live
        self._applied: Object = {}
        self._conditions: dict[str, Object] = {}
        self._begun = now_text()
        self._is_gone = False
        self._is_cut = False  # nothing is reported
        self._volumes: dict[str, Path] = {}  # as the containers see them, also those to come

    def on_change(self, pod: Object) -> None:
        """The object has changed."""
        if "deletionTimestamp" in pod["metadata"]:
            self._end(float(pod["metadata"].get("deletionGracePeriodSeconds", 0)))

    def on_deleted(self) -> None:
        """The object is gone, so nobody waits for it: by force, or because it has ended."""
        self._is_gone = True
        self._end(0.0)

    def on_content(self, kind: str, namespace: str, name: str) -> None:
        """A ``configMap`` or ``secret`` is new or has changed."""
        if namespace == self._pod["metadata"]["namespace"]:
            self._renewed.put((kind, name))

    def on_missed(self) -> None:
        """The object went while nobody could tell this node: end as every pod does."""
        self._is_gone = True
        self._end(float(self._pod["spec"]["terminationGracePeriodSeconds"]))

    @property
    def node(self) -> str:
        return str(self._pod["spec"]["nodeName"])

    @property
    def network(self) -> str:
        """Name of its network namespace; "": it has none yet."""
        return self._network

    @property
    def restarts(self) -> int:
        """How often its containers have ended by themselves and were started anew."""
        return sum(each.status()["restartCount"] for each in self._containers)

    def cut(self) -> None:
        """Its node can't be reached: report nothing. Its claims go on without it.

        As a volume on the network that is taken from a lost node: what comes next finds what was
        written until now, and sees nothing of what is written here from now on.
        """
        self._is_cut = True
        pids = self.pids()
        for pid in pids:
            suspend(pid)  # else the copy would be of many moments
        try:
            for volume in self._pod["spec"].get("volumes") or ():
                if "persistentVolumeClaim" in volume:
                    path = self._volumes[volume["name"]]
                    # Mounts stay with the folder that is moved away.
                    old = path.rename(path.with_name(f"{path.name}.{self.uid}"))
                    subprocess.run(["cp", "-a", "--sparse=always", str(old), str(path)], check=True)
                    self._volumes[volume["name"]] = old
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def join_again(self) -> None:
        """After ``cut``: report again."""
        self._is_cut = False
        self._news.set()

    def pids(self) -> list[int]:
        """First processes of its containers."""
        return [each.pid for each in self._containers if each.pid]

    def execute(self, command: Sequence[str], timeout_s: float) -> str | None:
        """In its first container, as ``kubectl exec`` does; None: it failed."""
        return self._containers[0].execute(command, timeout_s) if self._containers else None

    def _end(self, grace_s: float) -> None:
        self._grace_s = grace_s if self._grace_s is None else min(grace_s, self._grace_s)
        for each in self._containers:
            each.end(grace_s)
        self._news.set()

    def run(self) -> None:
        self.on_change(self._pod)
        try:
            if self._prepare():
                self._watch_over()
            self._finish()
        except Gone:
            _logger.info("%s is gone", self._path)
        finally:
            for each in self._containers:
                each.end(0.0)
                each.join()
            if self._network:
                self._around.network.remove(self._network)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _prepare(self) -> bool:
        """Make what its containers need, and start them; False: it is to end before."""
        assert not self._pod["spec"].get("initContainers"), "this kubelet has no init containers"
        while self._grace_s is None:
            try:
                folder = self._folder / "volumes"
                self._volumes = make_volumes(self._around.api, self._pod, folder)
                self._start_containers()
                return True
            except NotThereYet as error:
                _logger.info("%s waits for %s", self._path, error)
                self._news.wait(_RETRY_S)
        return False

    def _start_containers(self) -> None:
        if not self._network:
            self._network, address = self._around.network.add()
            pod = self._pod = copy.deepcopy(self._pod)
            pod.setdefault("status", {})
            pod["status"] |= {
                "podIP": address,
                "podIPs": [{"ip": address}],
                "hostIP": self._around.host_address,
                "startTime": self._begun,
            }
        pod, containers = self._pod, []
        for spec in pod["spec"]["containers"]:
            variables = variables_of(self._around.api, pod, spec, IMAGE_VARIABLES)
            sandbox = Sandbox(
                pod,
                spec,
                self._network,
                pod["status"]["podIP"],
                self._folder / spec["name"],
                self._around.image,
                self._volumes,
                variables,
                command_of(spec, variables),
            )
            name = f"{pod['metadata']['namespace']}.{pod['metadata']['name']}.{self.uid[:8]}"
            log = self._around.logs / f"{name}.{spec['name']}.log"
            containers.append(Container(sandbox, log, self._news.set))
        for each in containers:
            each.start()
        self._containers = containers
        if self._grace_s is not None:  # since the loop looked
            self._end(self._grace_s)

    def _watch_over(self) -> None:
        """Report until all containers have ended for good."""
        while True:
            self._refresh()
            is_over = not any(each.is_alive() for each in self._containers)
            is_told = self._tell()
            if is_over:
                return
            # The last change of a container is its thread's end, of which there is no event.
            self._news.wait(0.2 if is_told else _TOLD_S)
            self._news.clear()

    def _refresh(self) -> None:
        while not self._renewed.empty():
            kind, name = self._renewed.get()
            folder = self._folder / "volumes"
            try:
                if refresh_volumes(self._around.api, self._pod, folder, kind, name):
                    _logger.info("%s: new files of %s %s", self._path, kind, name)
            except (NotThereYet, ApiError, OSError) as error:
                # What is gone, or lacks a key, changes nothing: the pod goes on with what it has.
                _logger.warning("%s: %s %s: %s", self._path, kind, name, error)

    def _tell(self) -> bool:
        """Report the status if it has changed; whether the API server knows it."""
        status = self._status()
        if status == self._applied or self._is_gone or self._is_cut:
            return True
        try:
            self._around.api.patch(f"{self._path}/status", self._with_uid({"status": status}))
        except Gone:
            raise
        except (ApiError, OSError) as error:
            _logger.warning("%s: status not reported: %s", self._path, error)
            return False
        self._applied = status
        return True

    def _with_uid(self, change: Object) -> Object:
        """A change that a successor of the same name refuses."""
        return {"metadata": {"uid": self.uid}, **change}

    def _status(self) -> Object:
        is_ready = all(each.is_ready for each in self._containers)
        codes = [each.state.get("terminated", {}).get("exitCode") for each in self._containers]
        phase = "Running"
        if self._containers and not any(each.is_alive() for each in self._containers):
            phase = "Failed" if any(codes) else "Succeeded"
        for kind in ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"):
            is_true = is_ready or kind not in ("ContainersReady", "Ready")
            value = str(is_true)
            if self._conditions.get(kind, {}).get("status") != value:
                self._conditions[kind] = {
                    "type": kind,
                    "status": value,
                    "lastTransitionTime": now_text(),
                }
        known = ("podIP", "podIPs", "hostIP", "startTime")
        return {
            **{key: self._pod["status"][key] for key in known},
            "phase": phase,
            "conditions": [dict(each) for each in self._conditions.values()],
            "containerStatuses": [each.status() for each in self._containers],
        }

    def _finish(self) -> None:
        """What was to end has ended: the object goes. What ended by itself stays as it is."""
        while self._grace_s is None:
            self._news.wait()
            self._news.clear()
        if not self._is_gone:
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}
            self._around.api.delete(self._path, options)
