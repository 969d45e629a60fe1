"""Where a process is: ``/zone/upgrade-domain``, put together of its settings. Pure."""

from typing import Final

DEFAULT_LOCATION: Final = "/default-zone/default-upgrade-domain"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
"""Of Kubernetes' nodes: see node_zone.py."""


def check_place(zone: str, upgrade_domain: str) -> None:
    """Raises ValueError: they can't be parts of a path."""
    for key, text in (("zone", zone), ("upgradeDomain", upgrade_domain)):
        if "/" in text or text != text.strip():
            raise ValueError(f"{key}={text!r}: a name without slashes")


def place(network_location: str, zone: str, upgrade_domain: str) -> str:
    """``network_location`` with its parts replaced by those that are set.

    Both "": as it is, be it that it is "" (unknown).
    """
    if not zone and not upgrade_domain:
        return network_location
    parts = network_location.strip("/").split("/", 1)
    default_zone, default_domain = DEFAULT_LOCATION.strip("/").split("/")
    own_zone, own_domain = parts[0], parts[1] if len(parts) == 2 else ""
    return f"/{zone or own_zone or default_zone}/{upgrade_domain or own_domain or default_domain}"
