"""A real Kubernetes control plane for the time of a test, and helm and kubectl that talk to it.

It is started by a program that the environment names, MAGNETAR_KUBE, with three calls::

    kube.sh up DIR      start one whose state is in DIR; prints the path of a KUBECONFIG
    kube.sh down DIR    end it

KUBE_PORT is the first of three ports it may take, KUBE_NODES how many nodes it has, each in a zone
of its own: zone-1 and so on. Nodes may be simulated (kwok): pods are ready at once and run nothing.
"""

import json
import os
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.charts.live.api import ApiServer
from tests.charts.renderings import CHART, Object

WAIT_S: Final = 180.0  # for what takes seconds on a quiet machine
_HELM_WAIT: Final = "5m"


def missing_tools() -> str:
    """Why no control plane can be had here; "": it can."""
    if not os.environ.get("MAGNETAR_KUBE"):
        return "no control plane: make test-chart KUBE=kube.sh (docs/internals/chart-tests.md)"
    for name, path in (("helm", _helm()), ("kubectl", "kubectl")):
        if shutil.which(path) is None:
            return f"{name} is missing: make test-chart [HELM=path]"
    return ""


def until(what: str, is_true: Callable[[], object], seconds: float = WAIT_S) -> None:
    """Ask until it is true."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {seconds:.0f} s: {what}")
        time.sleep(0.2)


def options(name: str) -> tuple[str, ...]:
    """Helm's, for a file of values. Simulated volumes are of one class only, whatever it says."""
    options = ("--values", str(CHART / "ci" / f"{name}-values.yaml"))
    if name != "zones":
        return options
    where = "bookkeeper.volumes.ledgers.multiVolumes"
    sets = ",".join(f"{where}[{index}].storageClassName=kwok-volume" for index in range(3))
    return (*options, "--set", sets)


def uids(objects: Iterable[Object]) -> list[str]:
    return [each["metadata"]["uid"] for each in objects]


class ControlPlane:
    """One cluster; ``up`` and ``down``."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder, self.nodes = folder / "cluster", nodes
        self._home = folder / "home"
        self._home.mkdir(parents=True)
        self._kube = os.environ["MAGNETAR_KUBE"]
        self._config = ""
        self._api: ApiServer | None = None

    @property
    def config(self) -> Path:
        """The KUBECONFIG, once it is up."""
        return Path(self._config)

    def up(self) -> None:
        for _ in range(5):  # somebody may take a port between our look and its start
            variables = {**os.environ, "KUBE_PORT": str(_three_free_ports())}
            variables["KUBE_NODES"] = str(self.nodes)
            done = subprocess.run(
                [self._kube, "up", str(self._folder)],
                env=variables,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            if done.returncode == 0:
                self._config = done.stdout.strip().splitlines()[-1]
                return
            shutil.rmtree(self._folder, ignore_errors=True)
        raise AssertionError(f"no control plane:\n{done.stderr[-4000:]}")

    def down(self) -> None:
        command = [self._kube, "down", str(self._folder)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    def run(
        self, command: Sequence[str], stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The command with this cluster's configuration, whatever it ends with."""
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._home),
            "KUBECONFIG": self._config,
            "KUBECACHEDIR": str(self._home / "cache"),
        }
        return subprocess.run(
            command,
            env=variables,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Its output; an assertion fails with its error."""
        done = self.run(["kubectl", *words], stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}:\n{done.stderr[-4000:]}"
        return done.stdout

    def helm(self, *words: str) -> str:
        done = self.run([_helm(), *words])
        assert done.returncode == 0, f"helm {' '.join(words)}:\n{done.stderr[-4000:]}"
        return done.stdout

    def helm_refuses(self, *words: str) -> str:
        """The error of what must fail."""
        done = self.run([_helm(), *words])
        assert done.returncode != 0, f"helm {' '.join(words)} was not refused"
        return done.stderr

    def install(self, release: str, namespace: str, *words: str, chart: Path = CHART) -> None:
        words = ("--namespace", namespace, "--wait", "--timeout", _HELM_WAIT, *words)
        self.helm("install", release, str(chart), *words)

    def upgrade(self, release: str, namespace: str, *words: str) -> None:
        words = ("--namespace", namespace, "--wait", "--timeout", _HELM_WAIT, *words)
        self.helm("upgrade", release, str(CHART), *words)

    def rollback(self, release: str, namespace: str, revision: int) -> None:
        words = ("--namespace", namespace, "--wait", "--timeout", _HELM_WAIT)
        self.helm("rollback", release, str(revision), *words)

    def revision(self, release: str, namespace: str) -> int:
        """The release's newest, deployed or not."""
        found = json.loads(self.helm("history", release, "--namespace", namespace, "-o", "json"))
        return max(int(each["revision"]) for each in found)

    def uninstall(self, release: str, namespace: str) -> None:
        """Ends when what helm made is gone: what controllers made of it may go later."""
        words = ("--namespace", namespace, "--wait", "--timeout", _HELM_WAIT)
        self.helm("uninstall", release, *words)

    def apply(self, objects: Iterable[Object]) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", "--server-side", "-f", "-", stdin=text)

    def get(self, *words: str) -> Any:
        """One object, or the list of them."""
        found = json.loads(self.kubectl("get", "-o", "json", *words))
        return found["items"] if found["kind"].endswith("List") else found

    def listed(self, resource: str, namespace: str = "", selector: str = "") -> list[Object]:
        """As ``get`` without a process, for what is asked again and again; apps/v1/statefulsets."""
        group, _, kind = resource.rpartition("/")
        where = f"namespaces/{namespace}/" if namespace else ""
        path = f"/{'apis/' + group if group else 'api/v1'}/{where}{kind}"
        if self._api is None:
            self._api = ApiServer(self.config)
        found: list[Object] = self._api.get(path, labelSelector=selector)["items"]
        return found

    def names(self, kind: str, namespace: str) -> set[str]:
        return {each["metadata"]["name"] for each in self.get(kind, "--namespace", namespace)}

    def pods(self, namespace: str, component: str) -> list[Object]:
        """Those of a component that aren't ending, by name."""
        found = self.listed("pods", namespace, f"app.kubernetes.io/component={component}")
        alive = [each for each in found if "deletionTimestamp" not in each["metadata"]]
        return sorted(alive, key=lambda each: str(each["metadata"]["name"]))

    def set_ready(self, namespace: str, pod: str, is_ready: bool) -> None:
        """What a kubelet says after a probe; the simulated one never looks at a pod again."""
        condition = {"type": "Ready", "status": str(is_ready)}
        patch = json.dumps({"status": {"conditions": [condition]}})
        words = ("pod", pod, "--namespace", namespace, "--subresource", "status", "--patch", patch)
        self.kubectl("patch", *words)

    def rights(self, account: str, namespace: str) -> set[str]:
        """Each rule that the API server applies to an account in its namespace, as a JSON text."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        user = f"system:serviceaccount:{namespace}:{account}"
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        words = ("create", "--raw", path, "-f", "-", "--as", user)
        status = json.loads(self.kubectl(*words, stdin=json.dumps(review)))["status"]
        rules = [*status["resourceRules"], *status["nonResourceRules"]]
        return {json.dumps(each, sort_keys=True) for each in rules}

    def story(self, namespace: str) -> str:
        """Nodes, and what is and happened in a namespace."""
        ways = (
            ("get", "nodes"),
            ("get", "all,pdb,pvc", "-o", "wide", "-n", namespace),
            ("events", "-n", namespace),
        )
        return "\n".join(self.run(["kubectl", *words]).stdout[-6000:] for words in ways)

    def may(self, account: str, namespace: str, *words: str) -> bool:
        """What the API server says of an account's right."""
        user = f"system:serviceaccount:{namespace}:{account}"
        done = self.run(["kubectl", "auth", "can-i", *words, "-n", namespace, "--as", user])
        assert done.stdout.strip() in ("yes", "no"), done.stderr
        return done.stdout.strip() == "yes"

    def evict(self, namespace: str, pod: str) -> str:
        """As a drain of its node does it; "": it was taken away, else why not."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
        done = self.run(["kubectl", "create", "--raw", path, "-f", "-"], json.dumps(body))
        return done.stderr if done.returncode else ""


class LoadBalancers:
    """Gives each Service of that type an address, as a cloud would; helm waits for it."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        status = json.dumps({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.10"}]}}})
        while not self._end.wait(1.0):
            for each in self._plane.listed("services"):
                if each["spec"]["type"] == "LoadBalancer" and not each["status"]["loadBalancer"]:
                    name, namespace = each["metadata"]["name"], each["metadata"]["namespace"]
                    # The release may be gone meanwhile.
                    command = ["kubectl", "patch", "service", name, "-n", namespace]
                    self._plane.run([*command, "--subresource", "status", "-p", status])


def _helm() -> str:
    return os.environ.get("MAGNETAR_HELM") or "helm"


def _three_free_ports() -> int:
    while True:
        first = random.randrange(20_000, 30_000)
        if all(_is_free(port) for port in range(first, first + 3)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
