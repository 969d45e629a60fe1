"""What must hold for every object that the chart renders. Each rule names what breaks it.

A rule takes all objects of a release and yields one sentence for each fault: none is good.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from tests.charts.renderings import Object

_WORKLOADS: Final = ("StatefulSet", "Deployment")
_CLUSTER_WIDE: Final = ("ClusterRole", "ClusterRoleBinding")
# A Service is a label of DNS, a workload's name with what Kubernetes adds is a label of its pods.
_NAMES: Final = {
    "Service": r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
    "StatefulSet": r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?",
    "Deployment": r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?",
}
_OTHER_NAMES: Final = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
# In that pod nothing listens: there is nothing to probe.
_WITHOUT_PROBES: Final = frozenset({"toolset"})
_RIGHTS: Final = {("", "nodes", "get")}  # all that any service account may have
_PEERS: Final = ("podSelector", "namespaceSelector", "ipBlock")
_UNITS: Final = {"": 1, "m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

Rule = Callable[[list[Object]], Iterator[str]]


def faults(objects: list[Object]) -> list[str]:
    """All faults by all rules."""
    return [f"{rule.__name__}: {fault}" for rule in RULES for fault in rule(objects)]


def workloads(objects: Iterable[Object]) -> list[Object]:
    return [each for each in objects if each["kind"] in _WORKLOADS]


def pods_of(objects: Iterable[Object]) -> Iterator[tuple[str, Object]]:
    """Names of the workloads and the specs of their pods."""
    for each in workloads(objects):
        yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def containers_of(objects: Iterable[Object]) -> Iterator[tuple[str, Object]]:
    for name, pod in pods_of(objects):
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            yield f"{name}/{container['name']}", container


def amount(text: str | int | float) -> float:
    """A quantity of Kubernetes: ``100m``, ``1Gi``, ``2``."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text))
    assert match is not None, text
    return float(match[1]) * _UNITS[match[2]]


def pods_run_without_rights(objects: list[Object]) -> Iterator[str]:
    for name, pod in pods_of(objects):
        rights = pod.get("securityContext", {})
        if rights.get("runAsNonRoot") is not True or not rights.get("runAsUser"):
            yield f"{name} may run as root"
        if not rights.get("fsGroup"):
            yield f"{name} could not write its volumes"
        if rights.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{name} has no seccomp profile"
        if any(pod.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{name} shares a namespace of its node"
        if any("hostPath" in volume for volume in pod.get("volumes", ())):
            yield f"{name} mounts a directory of its node"


def containers_run_without_rights(objects: list[Object]) -> Iterator[str]:
    for name, container in containers_of(objects):
        rights = container.get("securityContext", {})
        if rights.get("allowPrivilegeEscalation") is not False or rights.get("privileged"):
            yield f"{name} may get more rights"
        if rights.get("readOnlyRootFilesystem") is not True:
            yield f"{name} may change its image"
        capabilities = rights.get("capabilities", {})
        if capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
            yield f"{name} has capabilities"
        if not rights.get("runAsNonRoot", True) or rights.get("runAsUser") == 0:
            yield f"{name} runs as root"


def resources_are_bounded(objects: list[Object]) -> Iterator[str]:
    for name, container in containers_of(objects):
        resources = container.get("resources", {})
        for kind in ("cpu", "memory"):
            wanted, most = (resources.get(key, {}).get(kind) for key in ("requests", "limits"))
            if wanted is None or most is None:
                yield f"{name} has no request or no limit of {kind}"
            elif amount(wanted) > amount(most):
                yield f"{name} requests more {kind} than its limit"
    for name, pod in pods_of(objects):
        for volume in pod.get("volumes", ()):
            if volume["name"] == "tmp" and "sizeLimit" not in volume.get("emptyDir", {}):
                yield f"{name} may fill its node's disk"


def images_have_versions(objects: list[Object]) -> Iterator[str]:
    for name, container in containers_of(objects):
        _, colon, tag = container["image"].rpartition("/")[2].partition(":")
        if not colon or tag in ("", "latest"):
            yield f"{name} runs {container['image']}, whatever that is"


def servers_are_probed(objects: list[Object]) -> Iterator[str]:
    for name, container in containers_of(objects):
        if container["name"] in _WITHOUT_PROBES:
            continue
        ports = {port["name"] for port in container.get("ports", ())}
        for kind in ("livenessProbe", "readinessProbe"):
            probe = container.get(kind)
            if probe is None:
                yield f"{name} has no {kind}"
            elif "httpGet" in probe and probe["httpGet"]["port"] not in ports:
                yield f"{name}: {kind} asks a port that it hasn't"
            elif not {"httpGet", "exec"} & set(probe):
                yield f"{name}: {kind} doesn't ask the server"
        get = container.get("livenessProbe", {}).get("httpGet", {})
        startup = container.get("startupProbe", {"failureThreshold": 0, "periodSeconds": 0})
        # metadataStoreStartTimeoutSeconds; no page is there meanwhile (docs/guides/containers.md).
        patience_s = startup["failureThreshold"] * startup["periodSeconds"]
        if get.get("scheme") == "HTTPS" and patience_s < 300:
            yield f"{name} is killed while it waits for ZooKeeper"
        if container.get("livenessProbe") == container.get("readinessProbe"):
            yield f"{name} is killed when it isn't ready"


def servers_end_in_good_order(objects: list[Object]) -> Iterator[str]:
    for name, pod in pods_of(objects):
        grace_s = pod["terminationGracePeriodSeconds"]
        for container in pod["containers"]:
            stop = container.get("lifecycle", {}).get("preStop", {})
            before_s = stop.get("sleep", {}).get("seconds", 0)
            if "exec" in stop:
                before_s = int(stop["exec"]["command"][-1])
            # What a broker may take to hand its topics over, a bookie to flush.
            end_s = 70 if container["name"] in ("broker", "bookie", "standalone") else 10
            if grace_s < before_s + end_s:
                yield f"{name} is killed after {grace_s} s, {before_s} of which pass before"
            if container["name"] in ("broker", "standalone") and not before_s:
                yield f"{name} ends before Services know of it"


def updates_are_ordered(objects: list[Object]) -> Iterator[str]:
    names = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    for each in objects:
        if each["kind"] != "StatefulSet":
            continue
        name, spec = each["metadata"]["name"], each["spec"]
        if spec["updateStrategy"]["type"] != "RollingUpdate":
            yield f"{name} is not updated pod by pod"
        service = names.get(("Service", spec["serviceName"]))
        if service is None or service["spec"].get("clusterIP") != "None":
            yield f"{name}: its pods have no names"
        selector = spec["selector"]["matchLabels"]
        for claim in spec.get("volumeClaimTemplates", ()):
            # Templates of claims can't be changed: an upgrade would be refused.
            if claim["metadata"].get("labels", selector) != selector:
                yield f"{name}: labels of claims that may change"


def nothing_runs_once(objects: list[Object]) -> Iterator[str]:
    for each in objects:
        if each["kind"] in ("Job", "CronJob", "Pod"):
            yield f"{each['kind']} {each['metadata']['name']}"
        if "helm.sh/hook" in (each["metadata"].get("annotations") or {}):
            yield f"{each['metadata']['name']} is a hook"
    for name, pod in pods_of(objects):
        if pod.get("initContainers"):
            yield f"{name} has init containers"


def variables_are_clean(objects: list[Object]) -> Iterator[str]:
    for name, pod in pods_of(objects):
        if pod.get("enableServiceLinks") is not False:
            yield f"{name}: a Service may set MAGNETAR_..._PORT"
    for name, container in containers_of(objects):
        known: list[str] = []
        for variable in container.get("env", ()):
            for used in re.findall(r"\$\(([^)]+)\)", str(variable.get("value", ""))):
                if used not in known:
                    yield f"{name}: {variable['name']} needs {used} before it"
            known.append(variable["name"])
        for used in re.findall(r"\$\(([^)]+)\)", " ".join(container.get("args", ()))):
            if used not in known:
                yield f"{name}: its arguments need {used}"
        yield from (f"{name} has {key} twice" for key, n in Counter(known).items() if n > 1)
        if container.get("command") and container["command"][0] in ("sh", "bash", "/bin/sh"):
            yield f"{name} needs a shell"


def accounts_have_least_rights(objects: list[Object]) -> Iterator[str]:
    accounts = {
        each["metadata"]["name"]: each for each in objects if each["kind"] == "ServiceAccount"
    }
    bound = set()
    for each in objects:
        if each["kind"] in ("Role", "ClusterRole"):
            for rule in each["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        for verb in rule["verbs"]:
                            if (group, resource, verb) not in _RIGHTS:
                                yield f"{each['metadata']['name']}: {verb} {group}/{resource}"
        if each["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            bound |= {subject["name"] for subject in each["subjects"]}
            if not any(
                other["kind"] == each["roleRef"]["kind"]
                and other["metadata"]["name"] == each["roleRef"]["name"]
                for other in objects
            ):
                yield f"{each['metadata']['name']} binds a role that isn't ours"
    yield from (f"{name} is bound, but isn't ours" for name in bound - accounts.keys())
    for name, pod in pods_of(objects):
        account = pod.get("serviceAccountName")
        if account not in accounts:
            yield f"{name} has the account {account}, which isn't ours"
        if pod.get("automountServiceAccountToken") is not (account in bound):
            yield f"{name} has a token of the API and no use for it, or the reverse"
    for name, account_object in accounts.items():
        if account_object.get("automountServiceAccountToken") is not False:
            yield f"{name} gives its token to every pod"


def selectors_find_their_pods(objects: list[Object]) -> Iterator[str]:
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in workloads(objects)
    }

    def found(selector: Mapping[str, str]) -> list[str]:
        wanted = {k: v for k, v in selector.items() if not k.startswith("statefulset.kubernetes")}
        return [name for name, labels in pods.items() if wanted.items() <= labels.items()]

    for each in objects:
        name, kind, spec = each["metadata"]["name"], each["kind"], each.get("spec", {})
        if kind in _WORKLOADS and found(spec["selector"]["matchLabels"]) != [name]:
            yield f"{kind} {name} selects {found(spec['selector']['matchLabels'])}"
        if kind == "Service" and len(found(spec["selector"])) != 1:
            yield f"Service {name} selects {found(spec['selector'])}"
        if kind == "PodDisruptionBudget" and len(found(spec["selector"]["matchLabels"])) != 1:
            yield f"PodDisruptionBudget {name} selects {found(spec['selector']['matchLabels'])}"
        if kind == "NetworkPolicy" and len(found(spec["podSelector"]["matchLabels"])) != 1:
            yield f"NetworkPolicy {name} selects {found(spec['podSelector']['matchLabels'])}"
        if kind == "PodMonitor" and len(found(spec["selector"]["matchLabels"])) != 1:
            yield f"PodMonitor {name} selects {found(spec['selector']['matchLabels'])}"
        if kind == "HorizontalPodAutoscaler" and spec["scaleTargetRef"]["name"] not in pods:
            yield f"HorizontalPodAutoscaler {name} scales nothing"
    yield from _spread(objects, found)


def _spread(
    objects: list[Object], found: Callable[[Mapping[str, str]], list[str]]
) -> Iterator[str]:
    for name, pod in pods_of(objects):
        anti = pod.get("affinity", {}).get("podAntiAffinity", {})
        terms = list(anti.get("requiredDuringSchedulingIgnoredDuringExecution", ()))
        preferred = anti.get("preferredDuringSchedulingIgnoredDuringExecution", ())
        terms += [each["podAffinityTerm"] for each in preferred]
        for term in [*terms, *pod.get("topologySpreadConstraints", ())]:
            if found(term["labelSelector"]["matchLabels"]) != [name]:
                yield f"{name} is spread away from others' pods"


def ports_fit(objects: list[Object]) -> Iterator[str]:
    """Every port that something names is one of the pods it selects."""
    pods = [each["spec"]["template"] for each in workloads(objects)]

    def ports(selector: Mapping[str, str]) -> dict[str, int]:
        wanted = {k: v for k, v in selector.items() if not k.startswith("statefulset.kubernetes")}
        return {
            port["name"]: port["containerPort"]
            for pod in pods
            if wanted.items() <= pod["metadata"]["labels"].items()
            for container in pod["spec"]["containers"]
            for port in container.get("ports", ())
        }

    services = {
        (each["metadata"]["name"], port["name"])
        for each in objects
        if each["kind"] == "Service"
        for port in each["spec"]["ports"]
    }
    for each in objects:
        name, kind, spec = each["metadata"]["name"], each["kind"], each.get("spec", {})
        if kind == "Service":
            known = ports(spec["selector"])
            for port in spec["ports"]:
                if port["targetPort"] != port["name"] or known.get(port["name"]) != port["port"]:
                    yield f"Service {name}: no port {port} in {known}"
        if kind == "NetworkPolicy":
            known = ports(spec["podSelector"]["matchLabels"])
            opened = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
            if opened != known.keys():
                yield f"NetworkPolicy {name} opens {sorted(opened)} of {sorted(known)}"
        if kind == "Ingress":
            for back in (
                path["backend"]["service"]
                for rule in spec["rules"]
                for path in rule["http"]["paths"]
            ):
                if (back["name"], back["port"]["name"]) not in services:
                    yield f"Ingress {name} leads to a port that isn't there: {back}"
        if kind == "PodMonitor":
            known = ports(spec["selector"]["matchLabels"])
            if any(end["port"] not in known for end in spec["podMetricsEndpoints"]):
                yield f"PodMonitor {name} reads a port that isn't there"
        if kind == "ServiceMonitor":
            labels = spec["selector"]["matchLabels"].items()
            found = [
                other
                for other in objects
                if other["kind"] == "Service" and labels <= other["metadata"]["labels"].items()
            ]
            known_names = {port["name"] for other in found for port in other["spec"]["ports"]}
            if len(found) != 1 or any(e["port"] not in known_names for e in spec["endpoints"]):
                yield f"ServiceMonitor {name} finds {len(found)} Services with {known_names}"


def stores_are_closed(objects: list[Object]) -> Iterator[str]:
    """Who reaches a bookie or ZooKeeper is trusted, where neither TLS nor tokens are asked for."""
    for each in objects:
        if each["kind"] != "NetworkPolicy":
            continue
        name, spec = each["metadata"]["name"], each["spec"]
        component = spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        if component not in ("zookeeper", "bookie"):
            continue
        for rule in spec["ingress"]:
            peers = rule.get("from") or [{}]
            if any(not any(peer.get(kind) for kind in _PEERS) for peer in peers):
                yield f"{name} lets pods of all namespaces in"


def files_are_there(objects: list[Object]) -> Iterator[str]:
    """ConfigMaps that pods name are ours, mounts have volumes. Secrets: ``test_renderings``."""
    maps = {each["metadata"]["name"]: each for each in objects if each["kind"] == "ConfigMap"}
    for each in workloads(objects):
        name, pod = each["metadata"]["name"], each["spec"]["template"]["spec"]
        claims = [c["metadata"]["name"] for c in each["spec"].get("volumeClaimTemplates", ())]
        volumes = [volume["name"] for volume in pod.get("volumes", ())]
        if len({*claims, *volumes}) != len(claims) + len(volumes):
            yield f"{name} has a volume twice"
        for volume in pod.get("volumes", ()):
            if (source := volume.get("configMap")) is not None and source["name"] not in maps:
                yield f"{name} mounts the ConfigMap {source['name']}, which isn't there"
        for container in pod["containers"]:
            yield from _mounts(name, container, {*claims, *volumes}, maps)


def _mounts(
    name: str, container: Object, volumes: set[str], maps: Mapping[str, Object]
) -> Iterator[str]:
    paths = Counter(mount["mountPath"] for mount in container.get("volumeMounts", ()))
    yield from (f"{name} mounts {path} twice" for path, n in paths.items() if n > 1)
    if missing := {mount["name"] for mount in container.get("volumeMounts", ())} - volumes:
        yield f"{name} mounts {missing}, which it hasn't"
    if unused := volumes - {mount["name"] for mount in container.get("volumeMounts", ())}:
        yield f"{name} has {unused}, and doesn't mount it"
    for source in container.get("envFrom", ()):
        if source["configMapRef"]["name"] not in maps:
            yield f"{name} takes settings of {source['configMapRef']['name']}, which isn't there"
    texts = [str(v.get("value", "")) for v in container.get("env", ())]
    texts += container.get("args", ())
    for text in texts:
        for path in re.findall(r"(?:/etc/magnetar|/var/lib/magnetar)/[\w./-]+", text):
            if not any(path == root or path.startswith(f"{root}/") for root in paths):
                yield f"{name} is told of {path}, where nothing is mounted"


def names_and_labels_are_good(objects: list[Object]) -> Iterator[str]:
    seen: Counter[tuple[str, str]] = Counter()
    namespaces = [each["metadata"].get("namespace") for each in objects]
    home = max(namespaces, key=namespaces.count, default=None)
    for each in objects:
        metadata: dict[str, Any] = each["metadata"]
        name, kind = metadata["name"], each["kind"]
        seen[kind, name] += 1
        # What is made of it must fit into the 63 of a label's value: <name>-<ten letters>.
        pattern = _NAMES.get(kind, _OTHER_NAMES)
        if not re.fullmatch(pattern, name):
            yield f"{kind} {name}: no good name"
        if kind not in _CLUSTER_WIDE and metadata.get("namespace", home) != home:
            yield f"{kind} {name} is in {metadata['namespace']}"
    yield from (f"{kind} {name} twice" for (kind, name), n in seen.items() if n > 1)
    for each in workloads(objects):
        labels = each["metadata"]["labels"]
        for key in ("name", "instance", "component", "version", "managed-by"):
            if f"app.kubernetes.io/{key}" not in labels:
                yield f"{each['metadata']['name']} has no label {key}"


def addresses_are_names_of_pods(objects: list[Object]) -> Iterator[str]:
    """What a server tells others resolves: the headless Service is its StatefulSet's own."""
    services = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Service"}
    for each in objects:
        if each["kind"] != "StatefulSet":
            continue
        name, spec = each["metadata"]["name"], each["spec"]
        for container in spec["template"]["spec"]["containers"]:
            for variable in container.get("env", ()):
                if variable["name"] == "MAGNETAR_advertisedAddress":
                    pod, service = variable["value"].split(".")[:2]
                    ours = (pod, service) == ("$(POD_NAME)", spec["serviceName"])
                    if not ours and pod not in services:
                        yield f"{name} is advertised as {variable['value']}"
        service_object = services.get(spec["serviceName"], {"spec": {}})
        is_found = service_object["spec"].get("publishNotReadyAddresses") is True
        if container["name"] != "standalone" and not is_found:
            yield f"{name}: pods that aren't ready have no address"


def autoscaled_replicas_begin_with_the_least(objects: list[Object]) -> Iterator[str]:
    """Without a number there would be one until the autoscaler has looked."""
    least = {
        each["spec"]["scaleTargetRef"]["name"]: each["spec"]["minReplicas"]
        for each in objects
        if each["kind"] == "HorizontalPodAutoscaler"
    }
    for each in workloads(objects):
        name, count = each["metadata"]["name"], each["spec"].get("replicas")
        if count is None or count < least.get(name, count):
            yield f"{name}: begins with {count} pods"


RULES: Final[tuple[Rule, ...]] = (
    pods_run_without_rights,
    containers_run_without_rights,
    resources_are_bounded,
    images_have_versions,
    servers_are_probed,
    servers_end_in_good_order,
    updates_are_ordered,
    nothing_runs_once,
    variables_are_clean,
    accounts_have_least_rights,
    selectors_find_their_pods,
    ports_fit,
    stores_are_closed,
    files_are_there,
    names_and_labels_are_good,
    addresses_are_names_of_pods,
    autoscaled_replicas_begin_with_the_least,
)
