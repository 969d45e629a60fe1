"""Groups of bookies of a namespace, as its route takes them. Imports nothing: ``top`` loads it."""

from typing import Final

AFFINITY_PATH: Final = "persistence/bookieAffinity"
"""Of a namespace: its groups of bookies, which aren't in its policies but in its local ones."""
AFFINITY_EXAMPLE: Final = {
    "bookkeeperAffinityGroupPrimary": "ssd",
    "bookkeeperAffinityGroupSecondary": "hdd",
}
_GROUPS: Final = ("groups of bookies, commas between", "taken, too, where those have too few")
AFFINITY_SCHEMA: Final = {
    "type": "object",
    "properties": {
        name: {"type": "string", "description": about}
        for name, about in zip(AFFINITY_EXAMPLE, _GROUPS, strict=True)
    },
    "required": ["bookkeeperAffinityGroupPrimary"],
}
