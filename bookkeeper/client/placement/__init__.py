"""Which bookies a new ledger gets, and who replaces one that failed."""

from bookkeeper.client.placement.config import PlacementConfig, RackRules, ZoneRules
from bookkeeper.client.placement.factory import make_placement
from bookkeeper.client.placement.policy import (
    Adherence,
    EnsemblePlacementPolicy,
    PlacementRandom,
    choose_replacements,
)
from bookkeeper.client.placement.rack_aware import RackAwarePlacement
from bookkeeper.client.placement.random_placement import RandomPlacement
from bookkeeper.client.placement.zone_aware import ZoneAwarePlacement

__all__ = [
    "Adherence",
    "EnsemblePlacementPolicy",
    "PlacementConfig",
    "PlacementRandom",
    "RackAwarePlacement",
    "RackRules",
    "RandomPlacement",
    "ZoneAwarePlacement",
    "ZoneRules",
    "choose_replacements",
    "make_placement",
]
