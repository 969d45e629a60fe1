"""Files and folders of pods: what a kubelet mounts, and what a provisioner makes for claims."""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path
from typing import Any

from tests.charts.live.api import ApiServer, Gone
from tests.charts.renderings import Object

__all__ = ["NotThereYet", "Provisioner", "make_volumes", "value_of_field"]


class NotThereYet(Exception):
    """What a pod needs is missing: try again later, as a kubelet does."""


def value_of_field(pod: Object, path: str) -> str:
    """The downward API: ``metadata.name``, ``metadata.labels['key']``, ``status.podIP``, ..."""
    if path.endswith("']"):
        field, _, key = path.removesuffix("']").partition("['")
        return str(_walk(pod, field, {}).get(key, ""))
    return str(_walk(pod, path, ""))


def _walk(pod: Object, path: str, default: Any) -> Any:
    found: Any = pod
    for word in path.split("."):
        found = found.get(word, default) if isinstance(found, dict) else default
    return found


def make_volumes(api: ApiServer, pod: Object, folder: Path) -> dict[str, Path]:
    """Each volume of a pod and where it is; those that aren't claims are made below ``folder``.

    Raises:
        NotThereYet: a claim isn't bound, a ConfigMap or Secret doesn't exist.
    """
    return {
        volume["name"]: _make_volume(api, pod, volume, folder / volume["name"])
        for volume in pod["spec"].get("volumes") or ()
    }


def _make_volume(api: ApiServer, pod: Object, volume: Object, folder: Path) -> Path:
    group = pod["spec"].get("securityContext", {}).get("fsGroup", 0)
    if claim := volume.get("persistentVolumeClaim"):
        folder = _claimed(api, pod["metadata"]["namespace"], claim["claimName"])
        _give(folder, group, 0o2775)
        return folder
    if "emptyDir" in volume:
        folder.mkdir(parents=True, exist_ok=True)
        _give(folder, group, 0o2777)
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    if "projected" in volume:
        sources, mode = volume["projected"]["sources"], volume["projected"].get("defaultMode")
    else:
        kinds = ("configMap", "secret", "downwardAPI")
        sources = [{kind: volume[kind]} for kind in kinds if kind in volume]
        assert sources, f"a volume that this kubelet doesn't know: {volume}"
        mode = next(iter(sources[0].values())).get("defaultMode")
    for source in sources:
        for path, content in _files(api, pod, source).items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            _give(target, group, 0o644 if mode is None else mode)
    _give(folder, group, 0o2755)
    return folder


def _give(path: Path, group: int, mode: int) -> None:
    os.chown(path, -1, group)
    path.chmod(mode)


def _claimed(api: ApiServer, namespace: str, name: str) -> Path:
    claim = api.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
    if claim.get("status", {}).get("phase") != "Bound":
        raise NotThereYet(f"claim {name}")
    volume = api.get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
    return Path(volume["spec"]["hostPath"]["path"])


def _files(api: ApiServer, pod: Object, source: Object) -> dict[str, bytes]:
    """What one source of a volume consists of."""
    namespace = pod["metadata"]["namespace"]
    ((kind, what),) = source.items()
    if kind == "downwardAPI":
        return {
            item["path"]: value_of_field(pod, item["fieldRef"]["fieldPath"]).encode()
            for item in what["items"]
        }
    if kind == "serviceAccountToken":
        spec = {"expirationSeconds": what.get("expirationSeconds", 3600)}
        if audience := what.get("audience"):
            spec["audiences"] = [audience]
        account = f"serviceaccounts/{pod['spec']['serviceAccountName']}"
        path = f"/api/v1/namespaces/{namespace}/{account}/token"
        token = api.create(path, {"spec": spec})["status"]["token"]
        return {what["path"]: token.encode()}
    name = what.get("secretName") or what.get("name")
    data = content_of(api, namespace, kind, name)
    if items := what.get("items"):
        return {item["path"]: data[item["key"]] for item in items}
    return data


def content_of(api: ApiServer, namespace: str, kind: str, name: str) -> dict[str, bytes]:
    """Keys and values of a ConfigMap or Secret.

    Raises:
        NotThereYet: there is none of that name.
    """
    plural = {"configMap": "configmaps", "secret": "secrets"}[kind]
    try:
        found = api.get(f"/api/v1/namespaces/{namespace}/{plural}/{name}")
    except Gone as error:
        raise NotThereYet(f"{kind} {name}") from error
    if kind == "secret":
        return {key: base64.b64decode(text) for key, text in (found.get("data") or {}).items()}
    binary = found.get("binaryData") or {}
    texts = {key: text.encode() for key, text in (found.get("data") or {}).items()}
    return texts | {key: base64.b64decode(text) for key, text in binary.items()}


class Provisioner:
    """Makes a folder for each claim of the default class, and removes what nobody claims."""

    def __init__(self, api: ApiServer, folder: Path) -> None:
        self._api, self._folder = api, folder

    def look(self) -> None:
        """Called again and again."""
        volumes = {
            each["metadata"]["name"]: each
            for each in self._api.get("/api/v1/persistentvolumes")["items"]
        }
        for claim in self._api.get("/api/v1/persistentvolumeclaims")["items"]:
            name = f"pvc-{claim['metadata']['uid']}"
            if claim["status"]["phase"] == "Pending" and name not in volumes:
                self._provide(name, claim)
        for name, each in volumes.items():
            if each["status"].get("phase") == "Released":
                self._api.delete(f"/api/v1/persistentvolumes/{name}")
                shutil.rmtree(each["spec"]["hostPath"]["path"], ignore_errors=True)

    def _provide(self, name: str, claim: Object) -> None:
        folder = self._folder / name
        folder.mkdir(parents=True)
        metadata, spec = claim["metadata"], claim["spec"]
        reference = {key: metadata[key] for key in ("name", "namespace", "uid")}
        self._api.create(
            "/api/v1/persistentvolumes",
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name},
                "spec": {
                    "accessModes": spec["accessModes"],
                    "capacity": {"storage": spec["resources"]["requests"]["storage"]},
                    "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
                    "hostPath": {"path": str(folder)},
                    # The controller would remove the folder itself, if it were below /tmp.
                    "persistentVolumeReclaimPolicy": "Retain",
                    "storageClassName": spec["storageClassName"],
                },
            },
        )
