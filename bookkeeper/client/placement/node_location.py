"""Where a bookie stands, as policies read it out of paths like ``/zone/upgrade-domain``. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from magnetar.bookkeeper.service_info import DEFAULT_LOCATION

#: Path of a bookie's place by its id; None: not known.
Locate: TypeAlias = Callable[[str], "str | None"]

DEFAULT_RACK: Final = "/default-rack"


@dataclass(frozen=True, slots=True)
class NodeLocation:
    """Availability zone and, within it, the upgrade domain; both empty: the default fault domain,
    where everything is that isn't known to be anywhere else."""

    zone: str
    domain: str


DEFAULT_PLACE: Final = NodeLocation("", "")
_DEFAULT_ZONE: Final = DEFAULT_LOCATION.split("/")[1]


def levels(path: str) -> list[str]:
    """Names between the slashes."""
    return [level for level in path.split("/") if level]


@lru_cache(maxsize=4096)
def place_of(path: str | None) -> NodeLocation:
    """Zone and upgrade domain; the default place unless the path has exactly these two levels."""
    names = levels(path or "")
    if len(names) != 2 or names[0] == _DEFAULT_ZONE:
        return DEFAULT_PLACE
    return NodeLocation(*names)


@lru_cache(maxsize=4096)
def rack_of(path: str | None) -> str:
    """The whole path is the rack, however many levels it has."""
    names = levels(path or "")
    if not names or names[0] == _DEFAULT_ZONE:
        return DEFAULT_RACK
    return "/" + "/".join(names)
