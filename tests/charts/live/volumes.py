"""Files and folders of pods: what a kubelet mounts, and what a provisioner makes for claims."""

import base64
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Final

from tests.charts.live.api import ApiServer, Gone
from tests.charts.renderings import Object

_DATA: Final = "..data"


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
        NotThereYet: a claim isn't bound, a ConfigMap or Secret, or a key of it, doesn't exist.
    """
    return {
        volume["name"]: _make_volume(api, pod, volume, folder / volume["name"])
        for volume in pod["spec"].get("volumes") or ()
    }


def _make_volume(api: ApiServer, pod: Object, volume: Object, folder: Path) -> Path:
    group = _group(pod)
    if claim := volume.get("persistentVolumeClaim"):
        folder = _claimed(api, pod["metadata"]["namespace"], claim["claimName"])
        _give(folder, group, 0o2775)
        return folder
    if "emptyDir" in volume:
        folder.mkdir(parents=True, exist_ok=True)
        _give(folder, group, 0o2777)
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    _publish(folder, _content(api, pod, volume), _mode(volume), group)
    _give(folder, group, 0o2755)
    return folder


def refresh_volumes(api: ApiServer, pod: Object, folder: Path, kind: str, name: str) -> bool:
    """Give a running pod what a ConfigMap or Secret has become; whether any file has changed.

    As a kubelet does it: all files of a volume change at once, under names that stay. Not what is
    mounted by ``subPath``, nor variables: those are of the pod's begin.

    Args:
        kind: ``configMap`` or ``secret``.
        folder: that of ``make_volumes``.
    """
    group = _group(pod)
    is_changed = False
    for volume in pod["spec"].get("volumes") or ():
        if any(_name(each) == name for each in _sources(volume) if kind in each):
            content = _content(api, pod, volume)
            is_changed |= _publish(folder / volume["name"], content, _mode(volume), group)
    return is_changed


def _sources(volume: Object) -> list[Object]:
    """What a volume of files is made of; []: it is of another kind."""
    if "projected" in volume:
        return list(volume["projected"]["sources"])
    return [
        {kind: volume[kind]} for kind in ("configMap", "secret", "downwardAPI") if kind in volume
    ]


def _name(source: Object) -> str:
    ((_, what),) = source.items()
    return str(what.get("secretName") or what.get("name"))


def _mode(volume: Object) -> int:
    kind = next(key for key in volume if key != "name")
    mode = volume[kind].get("defaultMode")
    return 0o644 if mode is None else int(mode)


def _group(pod: Object) -> int:
    return int(pod["spec"].get("securityContext", {}).get("fsGroup", 0))


def _content(api: ApiServer, pod: Object, volume: Object) -> dict[str, bytes]:
    sources = _sources(volume)
    assert sources, f"a volume that this kubelet doesn't know: {volume}"
    return {path: content for each in sources for path, content in _files(api, pod, each).items()}


def _publish(folder: Path, files: Mapping[str, bytes], mode: int, group: int) -> bool:
    """Make these the files of a volume; False: they are already.

    Each name is a link into ``..data``, which is a link to a folder that never changes: whoever
    reads several files in the moment of the change may get some old and some new ones, but never
    half a file.
    """
    data = folder / _DATA
    old = data.resolve() if data.exists() else None
    if old is not None and _read(old) == files:
        return False
    new = Path(tempfile.mkdtemp(prefix="..", dir=folder))
    for path, content in files.items():
        target = new / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        _give(target, group, mode)
    for each in (new, *(path for path in new.rglob("*") if path.is_dir())):
        _give(each, group, 0o2755)
    fresh = folder / "..data_tmp"
    fresh.symlink_to(new.name)
    fresh.rename(data)
    names = {PurePath(path).parts[0] for path in files}
    for name in names:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"{_DATA}/{name}")
    for link in folder.iterdir():
        if not link.name.startswith("..") and link.name not in names:
            link.unlink()
    if old is not None:
        shutil.rmtree(old)
    return True


def _read(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


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
    data = content_of(api, namespace, kind, _name(source))
    if items := what.get("items"):
        if missing := [item["key"] for item in items if item["key"] not in data]:
            raise NotThereYet(f"{kind} {_name(source)}: {missing[0]}")
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
