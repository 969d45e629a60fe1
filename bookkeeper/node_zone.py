"""The zone of the Kubernetes node that a process runs on.

Kubernetes knows the zone of a node, not of a pod: by default since 1.35 it copies the node's labels
``topology.kubernetes.io/...`` to its pods, whence a variable can have them. Elsewhere the process
asks the API server for its node, with the pod's service account, which must be allowed to ``get``
nodes: no other program has to run before it.
"""

import http.client
import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from magnetar.bookkeeper.network_location import check_place

_log = logging.getLogger(__name__)

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_ASK_S_MAX: Final = 20.0
"""Less than probes give a start that doesn't answer."""
_ANSWER_S_MAX: Final = 5.0
_AGAIN_S: Final = 1.0
_BODY_MAX: Final = 4 << 20


class ZoneUnknownError(ValueError):
    """The node's zone couldn't be found out; the text says what was tried."""


def zone_of(
    zone: str,
    node_name: str,
    label: str,
    variables: Mapping[str, str],
    *,
    account: Path = ACCOUNT,
    seconds_max: float = _ASK_S_MAX,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """The zone that is set, else that of the node; "": neither is known, or the node has none.

    Blocks: to be called before a process begins to serve.

    Args:
        node_name: "": Kubernetes isn't asked.
        label: of nodes.
        variables: the environment, which names the API server.
        account: folder with the service account's token and the authority of the API server.
    Raises:
        ZoneUnknownError: there should be an answer, and isn't. To go on without it would put the
            copies of an entry into one zone.
    """
    if zone or not node_name:
        return zone
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            labels = _labels_of_node(node_name, variables, account)
            break
        except (OSError, ValueError, http.client.HTTPException, _RefusedError) as error:
            if isinstance(error, _RefusedError) or time.monotonic() + _AGAIN_S > deadline:
                raise ZoneUnknownError(f"zone of node {node_name}: {error}") from error
            _log.warning("zone of node %s: %s; asking again", node_name, error)
            pause(_AGAIN_S)
    found = labels.get(label, "")
    if not isinstance(found, str) or not found:
        _log.warning("node %s has no label %s: its zone isn't known", node_name, label)
        return ""
    check_place(found, "")
    return found


class _RefusedError(Exception):
    """An answer that asking again doesn't change."""


def _labels_of_node(node: str, variables: Mapping[str, str], account: Path) -> Mapping[str, Any]:
    host, port = (variables.get(f"KUBERNETES_SERVICE_{name}", "") for name in ("HOST", "PORT"))
    if not host:
        raise _RefusedError("nodeName is set, but there is no API server: KUBERNETES_SERVICE_HOST")
    token = (account / "token").read_text().strip()
    context = ssl.create_default_context(cafile=str(account / "ca.crt"))
    connection = http.client.HTTPSConnection(
        host, int(port or 443), timeout=_ANSWER_S_MAX, context=context
    )
    try:
        connection.request(
            "GET",
            f"/api/v1/nodes/{quote(node, safe='')}",
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
        )
        answer = connection.getresponse()
        body = answer.read(_BODY_MAX)
    finally:
        connection.close()
    if answer.status in (401, 403, 404):
        raise _RefusedError(f"{answer.status} {answer.reason}: may the service account get nodes?")
    if answer.status != 200:
        raise OSError(f"{answer.status} {answer.reason}")
    found = json.loads(body)["metadata"].get("labels") or {}
    if not isinstance(found, dict):
        raise ValueError("labels that are none")
    return found
