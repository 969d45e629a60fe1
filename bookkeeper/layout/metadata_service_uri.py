"""BookKeeper's URIs of a cluster's metadata: ``zk+hierarchical://host:port;host:port/ledgers``.

Pulsar's driver has ``metadata-store:zk:host:port,host:port/ledgers`` for the same.
"""

import re
from typing import Final

from magnetar.bookkeeper.service_info import LEDGERS_ROOT

_URI: Final = re.compile(r"zk(?:\+(?P<manager>[a-z]+))?://(?P<servers>[^/]+)(?P<path>/.*)?")
_PULSAR: Final = "metadata-store:"
_MANAGERS: Final = (None, "null", "hierarchical")
"""``null``: whatever the cluster's LAYOUT says, which is ``hierarchical`` in all of today's."""


def store_url_of(uri: str) -> str | None:
    """URL of the metadata store below which ``/ledgers`` is; None: not such a URI.

    Raises:
        ValueError: such a URI, but of a ledger manager or root that isn't supported.
    """
    text = uri.removeprefix(_PULSAR)
    if text != uri:
        text = text.replace("zk:", "zk://", 1)
    found = _URI.fullmatch(text)
    if found is None:
        return None
    if found["manager"] not in _MANAGERS:
        raise ValueError(
            f"{uri!r}: ledger manager {found['manager']} is not supported, hierarchical is"
        )
    path = (found["path"] or "").rstrip("/")
    if not path.endswith(LEDGERS_ROOT):
        raise ValueError(f"{uri!r}: ledgers must be at a node named {LEDGERS_ROOT[1:]}")
    servers = found["servers"].replace(";", ",")
    return f"zk:{servers}{path.removesuffix(LEDGERS_ROOT)}"
