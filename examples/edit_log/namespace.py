"""The state that the edit log makes durable: a tree of folders and files. Pure.

Every node that applies the same edits in the same order has the same tree.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Edit: TypeAlias = dict[str, Any]


class NamespaceError(Exception):
    """The edit can't be done; nothing was changed."""


@dataclass
class Namespace:
    """Folders and files by absolute path.

    Attributes:
        paths: path -> True for a folder.
        last_edit: number of the last edit applied; edits are numbered from 1 on, without gaps.
    """

    paths: dict[str, bool] = field(default_factory=lambda: {"/": True})
    last_edit: int = 0

    def prepare(self, operation: str, *paths: str) -> Edit:
        """The next edit, checked against the state as it is now.

        Raises:
            NamespaceError: it can't be done.
        """
        for path in paths:
            if not path.startswith("/") or path != "/" + path.strip("/") or "//" in path:
                raise NamespaceError(f"{path}: not an absolute path")
        match operation, paths:
            case (("mkdir" | "create"), (path,)):
                self._check_free(path)
            case "delete", (path,):
                self._check_deletable(path)
            case "rename", (source, target):
                self._check_deletable(source)
                self._check_free(target)
            case _:
                raise NamespaceError(f"no such operation: {' '.join((operation, *paths))}")
        return {"number": self.last_edit + 1, "operation": operation, "paths": list(paths)}

    def apply(self, edit: Edit) -> None:
        """Do an edit that was prepared here or elsewhere.

        Raises:
            ValueError: it isn't the next one: the log and this state don't belong together.
        """
        if edit["number"] != self.last_edit + 1:
            raise ValueError(f"edit {edit['number']} can't follow {self.last_edit}")
        match edit["operation"], edit["paths"]:
            case ("mkdir" | "create") as operation, (path,):
                self.paths[path] = operation == "mkdir"
            case "delete", (path,):
                del self.paths[path]
            case "rename", (source, target):
                self.paths[target] = self.paths.pop(source)
            case "nothing", ():
                pass
            case _:
                raise ValueError(f"unknown edit: {edit}")
        self.last_edit += 1

    def children(self, folder: str) -> list[str]:
        """Names in a folder. Raises: NamespaceError: it isn't one."""
        if not self.paths.get(folder):
            raise NamespaceError(f"{folder}: no such folder")
        prefix = folder.rstrip("/") + "/"
        return sorted(
            path.removeprefix(prefix)
            for path in self.paths
            if path.startswith(prefix) and path != folder and "/" not in path[len(prefix) :]
        )

    def encode(self) -> bytes:
        return json.dumps({"last_edit": self.last_edit, "paths": self.paths}).encode()

    @classmethod
    def decode(cls, image: bytes) -> Namespace:
        return cls(**json.loads(image))

    def _check_free(self, path: str) -> None:
        if path in self.paths:
            raise NamespaceError(f"{path}: exists")
        parent = path.rpartition("/")[0] or "/"
        if not self.paths.get(parent):
            raise NamespaceError(f"{parent}: no such folder")

    def _check_deletable(self, path: str) -> None:
        if path not in self.paths or path == "/":
            raise NamespaceError(f"{path}: no such file or folder")
        if self.paths[path] and self.children(path):
            raise NamespaceError(f"{path}: not empty")
