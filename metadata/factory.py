"""A metadata store by URL, for the start of a process."""

import re
from pathlib import Path

from magnetar.metadata.store import MetadataStore

UNIX_SCHEME = "unix:"
_SCHEME = re.compile(r"([a-z]+):(?!\d)")


async def connect_store(
    url: str,
    config_path: Path | None = None,
    *,
    session_timeout_s: float = 30.0,
    operation_timeout_s: float = 30.0,
    start_timeout_s: float | None = None,
) -> MetadataStore:
    """A session on the store that ``url`` names.

    "zk:host:port,host:port/chroot", or "unix:/path" of a process of this machine.

    Args:
        config_path: properties for TLS and login, see docs/operate/metadata.md.
        start_timeout_s: how long to try again while no server answers, also because a server's
            name can't be resolved yet; None: as long as for an answer to an operation.
    Raises:
        ValueError: the URL or the properties can't be used.
        OSError: the properties can't be read.
        MetadataError: the store can't be reached, or refuses.
    """
    start_s = operation_timeout_s if start_timeout_s is None else start_timeout_s
    # Imported when needed: an embedded store shall not pay for another backend's library.
    if url.startswith(UNIX_SCHEME):
        from magnetar.metadata.unix_socket.store import UnixSocketStore

        path = Path(url.removeprefix(UNIX_SCHEME))
        return await UnixSocketStore.connect(path, session_timeout_s, start_s)
    from magnetar.metadata.zookeeper.settings import SCHEME, ZooKeeperSettings
    from magnetar.metadata.zookeeper.store import ZooKeeperStore

    if not url.startswith(SCHEME) and (found := _SCHEME.match(url)):
        raise ValueError(
            f"{url!r}: a {found[1]} store is not supported; {SCHEME} and {UNIX_SCHEME} are"
        )
    settings = ZooKeeperSettings.parse(
        url,
        config_path,
        session_timeout_s=session_timeout_s,
        operation_timeout_s=operation_timeout_s,
        start_timeout_s=start_s,
    )
    return await ZooKeeperStore.connect(settings)
