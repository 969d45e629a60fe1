"""Asks the processes of the cluster how they are, and ZooKeeper which ones it knows."""

import asyncio
import json
import logging
import socket
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Final

from magnetar.bookkeeper.service_info import AVAILABLE_PATH, READ_ONLY_NAME, READ_ONLY_PATH
from magnetar.broker.local_cluster.apache_bookkeeper import INSTANCE_ID_PATH
from magnetar.broker.local_cluster.plan import PlannedProcess, ProcessKind
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore

_log = logging.getLogger(__name__)
_ANSWER_S_MAX: Final = 3.0
_LEADER_PATH: Final = "/loadbalance/leader"
_SESSION_S: Final = 6.0
# Not by way of a proxy: they are on this machine.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class ObservedState:
    """The nodes that ZooKeeper holds.

    Attributes:
        leader: value of the brokers' leader node; empty: there is none.
    """

    writable: frozenset[str] = frozenset()
    read_only: frozenset[str] = frozenset()
    leader: Mapping[str, Any] = field(default_factory=dict)


class ClusterRegistry:
    """A session on the cluster's metadata, made when it is needed.

    Args:
        ledgers_url: below it is ``/ledgers``.
        brokers_path: below ``ledgers_url``, where brokers have theirs; "": there itself.
    """

    def __init__(self, ledgers_url: str, brokers_path: str) -> None:
        self._url = ledgers_url
        self._leader_path = f"{brokers_path}{_LEADER_PATH}"
        self._store: MetadataStore | None = None

    async def look(self) -> ObservedState | None:
        """None: ZooKeeper doesn't answer now."""
        try:
            async with asyncio.timeout(_ANSWER_S_MAX + _SESSION_S):
                return await self._look()
        except (MetadataError, OSError, ValueError, TimeoutError) as error:
            _log.debug("metadata: %s", error)
            await self.close()  # the next look has a new session
            return None

    async def has_ledgers(self) -> bool:
        """Whether ``/ledgers`` was made. Raises MetadataError, OSError."""
        return await (await self._connected()).exists(INSTANCE_ID_PATH)

    async def _connected(self) -> MetadataStore:
        if self._store is None:
            self._store = await connect_store(
                self._url, session_timeout_s=_SESSION_S, operation_timeout_s=_ANSWER_S_MAX
            )
        return self._store

    async def _look(self) -> ObservedState:
        store = await self._connected()
        writable = await store.children(AVAILABLE_PATH)
        read_only = await store.children(READ_ONLY_PATH)
        node = await store.get(self._leader_path)
        leader = {} if node is None else json.loads(node.value)
        return ObservedState(
            frozenset(writable) - {READ_ONLY_NAME},
            frozenset(read_only),
            leader if isinstance(leader, dict) else {},
        )

    async def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.close()


async def health_of(process: PlannedProcess, seen: ObservedState | None) -> str:
    """A word or two for the table, out of facts only."""
    match process.kind:
        case ProcessKind.ZOOKEEPER:
            answers = await asyncio.to_thread(zookeeper_answers, process.host, process.port)
            return "answers" if answers else "no answer"
        case ProcessKind.BOOKIE:
            return bookie_health(process.name, seen)
        case ProcessKind.AUTORECOVERY:
            url = f"{process.web_url}/api/v1/autorecovery/status"
            return autorecovery_health(await asyncio.to_thread(_page, url))
        case ProcessKind.BROKER:
            broker = process.web_url.removeprefix("http://")
            url = f"{process.web_url}/admin/v2/brokers/standalone/{broker}/ownedNamespaces"
            owned = await asyncio.to_thread(_page, url)
            if owned is None:
                ready = await asyncio.to_thread(_answer, f"{process.web_url}/ready")
                if ready is not None:
                    return "serves"  # under another name: somebody has set advertisedAddress
            return broker_health(process, owned, seen)
        case ProcessKind.STORAGE:
            return ""  # no cluster has one


def bookie_health(name: str, seen: ObservedState | None) -> str:
    if seen is None:
        return "unknown: no ZooKeeper"
    if name in seen.writable:
        return "registered"
    return "read-only" if name in seen.read_only else "not registered"


def autorecovery_health(status: Any) -> str:
    if not isinstance(status, dict):
        return "no answer"
    role = "auditor" if status.get("isAuditor") else "no auditor"
    return role if status.get("enabled", True) else f"{role}, switched off"


def broker_health(process: PlannedProcess, owned: Any, seen: ObservedState | None) -> str:
    if not isinstance(owned, dict):
        return "no answer"
    leads = seen is not None and (
        seen.leader.get("brokerId") == process.web_url.removeprefix("http://")
        or seen.leader.get("serviceUrl") in (process.web_url, f"pulsar://{process.address}")
    )
    bundles = f"{len(owned)} bundle{'' if len(owned) == 1 else 's'}"
    return f"leader, {bundles}" if leads else bundles


def zookeeper_answers(host: str, port: int) -> bool:
    """Whether a server says there that it serves."""
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_S_MAX) as connection:
            connection.sendall(b"srvr")
            return connection.recv(64).startswith(b"Zookeeper version")
    except OSError:
        return False


def _answer(url: str) -> bytes | None:
    """None: no good answer."""
    try:
        with _OPENER.open(url, timeout=_ANSWER_S_MAX) as answer:
            content: bytes = answer.read()
            return content
    except (HTTPException, OSError):
        return None


def _page(url: str) -> Any:
    """The JSON at a URL; None: no good answer."""
    try:
        return json.loads(_answer(url) or b"null")
    except ValueError:
        return None
