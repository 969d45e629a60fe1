"""When the certificates and the token end that a process of auto-recovery uses: it says so itself.

No broker can read its files, and nobody connects to it by TLS. So it keeps an ephemeral node in the
metadata store, which `magnetar doctor` reads. A process without such files has none.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from magnetar.bookkeeper.auth.certificates import certificate_end_ms
from magnetar.bookkeeper.auth.token_source import TokenSource
from magnetar.bookkeeper.process_settings import key_of
from magnetar.bookkeeper.replication.settings import AutoRecoverySettings
from magnetar.bookkeeper.service_info import UNDER_REPLICATION_ROOT
from magnetar.metadata.coordination import ResourceLock
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.paths import decode_name, encode_name
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.zookeeper.settings import ZooKeeperSettings

CREDENTIALS_PATH: Final = f"{UNDER_REPLICATION_ROOT}/credentials"
AGAIN_S: Final = 600.0
"""The files are read as often: they may be renewed."""
_PROCESSES_MAX: Final = 100
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CredentialFile:
    """What is read from time to time.

    Attributes:
        setting: that names it.
        path: of a certificate; of a token, where it is, as the setting tells it.
        latest: whether it has authorities, of which the last to end counts.
    """

    setting: str
    path: str
    is_token: bool = False
    latest: bool = False


def files_of(settings: AutoRecoverySettings) -> list[CredentialFile]:
    """What a process shows to bookies and to ZooKeeper, and whom it trusts.

    Raises:
        OSError, ValueError: the file about ZooKeeper can't be read.
    """
    found = [
        CredentialFile(key_of(name), path, latest=latest)
        for name, path, latest in (
            ("client_certificate_path", settings.client_certificate_path, False),
            ("client_trust_path", settings.client_trust_path, True),
        )
        if path
    ]
    if token := settings.client_token():
        name = "bookkeeper_client_authentication_parameters"
        found.append(CredentialFile(key_of(name), token, is_token=True))
    if path := settings.metadata_store_config_path:
        # Any address: it is the file's own lines that name certificates.
        tls = ZooKeeperSettings.parse("localhost", Path(path)).tls
        name = key_of("metadata_store_config_path")
        for file, latest in () if tls is None else ((tls.certificate, False), (tls.trusted, True)):
            if file is not None:
                found.append(CredentialFile(f"{name}: {file.name}", str(file), latest=latest))
    return found


@dataclass(frozen=True, slots=True)
class StatedEnd:
    """A credential of a process of auto-recovery.

    Attributes:
        path: of its file; "": a token.
        ends_ms: since 1970; None: never, or not known.
        problem: why it can't be read; "": it can.
    """

    process: str
    setting: str
    path: str
    is_token: bool
    ends_ms: int | None
    problem: str


class EndsStatement:
    """The node of one process; ``start()``, ``await close()``."""

    def __init__(
        self, store: MetadataStore, name: str, files: Callable[[], list[CredentialFile]]
    ) -> None:
        """
        Args:
            name: of the process, which no other one has.
            files: see ``files_of``; called in a thread.
        """
        self._store, self._name, self._files = store, name, files
        self._lock: ResourceLock | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Failures are tried again: nothing depends on it."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._lock is not None:
            with suppress(MetadataError):
                await self._lock.release()

    async def _run(self) -> None:
        while True:
            try:
                if found := await asyncio.to_thread(self._ends):
                    await self._state(orjson.dumps({"credentials": found}))
            except (MetadataError, OSError, ValueError) as error:
                _log.info("ends of certificates can't be told to the doctor now: %s", error)
            await asyncio.sleep(AGAIN_S)

    async def _state(self, value: bytes) -> None:
        if self._lock is not None and self._lock.held:
            await self._lock.change(value)
            return
        path = f"{CREDENTIALS_PATH}/{encode_name(self._name)}"
        # After a restart it may still be that of the process before.
        self._lock = await ResourceLock.acquire(
            self._store, path, value, lambda _: None, is_own=lambda _: True
        )

    def _ends(self) -> list[dict[str, Any]]:
        return [_end_of(each) for each in self._files()]


def _end_of(file: CredentialFile) -> dict[str, Any]:
    ends_ms, problem = None, ""
    try:
        if not file.is_token:
            ends_ms = certificate_end_ms(file.path, latest=file.latest)
        elif (ends_s := TokenSource(file.path).expires_at_s()) is not None:
            ends_ms = int(ends_s * 1000)
    except (OSError, ValueError) as error:
        problem = str(error)
    return {
        "setting": file.setting,
        "path": "" if file.is_token else file.path,
        "isToken": file.is_token,
        "endsMs": ends_ms,
        "problem": problem,
    }


async def stated_ends(store: MetadataStore) -> list[StatedEnd]:
    """Those of all processes that are there, a hundred at most. Raises MetadataError."""
    names = (await store.children(CREDENTIALS_PATH))[:_PROCESSES_MAX]
    nodes = await asyncio.gather(*(store.get(f"{CREDENTIALS_PATH}/{name}") for name in names))
    found = []
    for name, node in zip(names, nodes, strict=True):
        with suppress(ValueError, KeyError, TypeError):  # of a newer release
            stated = [] if node is None else orjson.loads(node.value)["credentials"]
            found += [_stated(decode_name(name), each) for each in stated]
    return found


def _stated(process: str, found: Mapping[str, Any]) -> StatedEnd:
    ends_ms = found["endsMs"]
    return StatedEnd(
        process,
        str(found["setting"]),
        str(found["path"]),
        bool(found["isToken"]),
        None if ends_ms is None else int(ends_ms),
        str(found["problem"]),
    )
