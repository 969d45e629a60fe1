"""Groups of bookies of a namespace, which no call tells together with its policies."""

from typing import Any

from magnetar.broker.console.admin_api import AdminApi, AdminError, get
from magnetar.broker.policies.bookie_affinity import AFFINITY_PATH


async def affinity_rows(api: AdminApi, namespace: str) -> list[tuple[str, Any, str]]:
    """Name, value and who sets it; none: the visitor may not know, only superusers may.

    Args:
        namespace: its path below ``/admin/v2``.
    Raises:
        AdminError.
    """
    try:
        value = await get(api, f"{namespace}/{AFFINITY_PATH}")
    except AdminError as error:
        if error.status in (401, 403):
            return []
        if error.status != 404:
            raise
        value = None  # the namespace was never used
    return [(AFFINITY_PATH, value, "broker" if value is None else "namespace")]
