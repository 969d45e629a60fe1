"""Groups of bookies of a namespace, as its route takes them. Imports little: ``top`` loads it."""

from typing import Final

from magnetar.bundles.bookie_affinity import PRIMARY, SECONDARY

AFFINITY_PATH: Final = "persistence/bookieAffinity"
"""Of a namespace: its groups of bookies, which aren't in its policies but in its local ones."""
AFFINITY_EXAMPLE: Final = {PRIMARY: "ssd", SECONDARY: "hdd"}
_GROUPS: Final = ("groups of bookies, commas between", "taken, too, where those have too few")
AFFINITY_SCHEMA: Final = {
    "type": "object",
    "properties": {
        name: {"type": "string", "description": about}
        for name, about in zip(AFFINITY_EXAMPLE, _GROUPS, strict=True)
    },
    "required": [PRIMARY],
}
