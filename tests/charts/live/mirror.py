"""A copy of a kind's objects that follows the API server."""

import http.client
import logging
import threading
from collections.abc import Callable

from tests.charts.live.api import ApiError, ApiServer
from tests.charts.renderings import Object

_logger = logging.getLogger(__name__)


class Mirror(threading.Thread):
    """``objects`` by uid, and a call for each change; lists anew whenever a watch breaks."""

    def __init__(
        self, api: ApiServer, path: str, on_change: Callable[[str, Object], None], **query: str
    ) -> None:
        """
        Args:
            on_change: called in this thread with ADDED, MODIFIED or DELETED, and the object.
        """
        super().__init__(daemon=True)
        self.objects: dict[str, Object] = {}
        self._api, self._path, self._query = api, path, query
        self._on_change = on_change
        self._end = threading.Event()

    def close(self) -> None:
        """Soon: the thread ends with its request."""
        self._end.set()

    def run(self) -> None:
        while not self._end.is_set():
            try:
                version = self._list()
                while not self._end.is_set():
                    version = self._follow(version)
            except (ApiError, OSError, http.client.HTTPException, ValueError) as error:
                if not self._end.wait(0.5):
                    _logger.warning("%s is listed anew: %r", self._path, error)

    def _list(self) -> str:
        found = self._api.get(self._path, **self._query)
        there = {each["metadata"]["uid"]: each for each in found["items"]}
        for uid in self.objects.keys() - there.keys():
            self._take("DELETED", self.objects[uid])
        for each in there.values():
            self._take("MODIFIED", each)
        return str(found["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> str:
        for event in self._api.watch(
            self._path, version, allowWatchBookmarks="true", **self._query
        ):
            if self._end.is_set():
                break
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._take(event["type"], event["object"])
        return version

    def _take(self, kind: str, found: Object) -> None:
        uid = found["metadata"]["uid"]
        if kind == "DELETED":
            self.objects = {key: each for key, each in self.objects.items() if key != uid}
        else:
            self.objects = {**self.objects, uid: found}
        self._on_change(kind, found)
