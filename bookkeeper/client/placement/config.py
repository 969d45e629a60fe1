"""Settings of placement; what can't be satisfied is refused here. Pure."""

from dataclasses import dataclass, field
from typing import Final

from magnetar.bookkeeper.client.placement.isolation import ISOLATED_CLASSES, IsolationGroups
from magnetar.bookkeeper.errors import PlacementRuleError

RANDOM: Final = "random"
RACK_AWARE: Final = "rack-aware"
REGION_AWARE: Final = "region-aware"
ZONE_AWARE: Final = "zone-aware"
POLICIES: Final = (RANDOM, RACK_AWARE, REGION_AWARE, ZONE_AWARE)
# BookKeeper's setting is the name of a class.
_CLASSES: Final = {
    "defaultensembleplacementpolicy": RANDOM,
    "rackawareensembleplacementpolicy": RACK_AWARE,
    "regionawareensembleplacementpolicy": REGION_AWARE,
    "zoneawareensembleplacementpolicy": ZONE_AWARE,
    # Pulsar's, for bookies in groups: the groups are settings of their own, with any policy.
    **{name.lower(): RACK_AWARE for name in ISOLATED_CLASSES},
}


def policy_named(text: str) -> str:
    """One of ``POLICIES``, by its name or that of BookKeeper's class for it.

    Raises:
        ValueError: there is no such policy.
    """
    name = text.strip().rpartition(".")[2].lower()
    policy = _CLASSES.get(name, name)
    if policy not in POLICIES:
        raise ValueError(f"placement policy {text!r}: not one of {', '.join(POLICIES)}")
    return policy


@dataclass(frozen=True, slots=True)
class RackRules:
    """Rules of rack-aware placement.

    Attributes:
        min_racks: racks of every write set; as many as its bookies if those are fewer.
        enforce: fail rather than use fewer racks, and never use bookies without a rack.
        spread_acks: an entry is confirmed once its acks come from so many racks.
    """

    min_racks: int = 2
    enforce: bool = False
    spread_acks: bool = False

    def __post_init__(self) -> None:
        if self.min_racks < 1:
            raise ValueError(f"at least 1 rack per write quorum, not {self.min_racks}")


@dataclass(frozen=True, slots=True)
class ZoneRules:
    """Rules of zone-aware placement.

    Attributes:
        min_zones: zones that every write set must have.
        desired_zones: and shall have, if there are so many.
        strict: False: bookies are chosen at random, and ensembles only judged by the rules.
        spread_acks: an entry is confirmed once its acks come from ``min_zones`` zones.
    """

    min_zones: int = 2
    desired_zones: int = 3
    strict: bool = True
    spread_acks: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.min_zones <= self.desired_zones:
            raise ValueError(
                f"zones per write quorum: the minimum {self.min_zones} must be at least 1 and not "
                f"above the desired number {self.desired_zones}"
            )
        if self.spread_acks and not self.strict:
            raise ValueError(
                "acks that must span zones need strict zone-aware placement: chosen at random, "
                "bookies of an entry may all be in one zone"
            )

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """Could ledgers with these quorums be placed, given enough bookies?

        Raises:
            PlacementRuleError: no cluster could satisfy the rules.
        """
        if not self.strict:
            return
        quorums = f"ensemble size, write and ack quorum {ensemble_size}/{write_quorum}/{ack_quorum}"
        if ensemble_size % write_quorum:
            raise PlacementRuleError(
                f"{quorums}: zone-aware placement needs an ensemble size that is a multiple of the "
                "write quorum"
            )
        if write_quorum <= self.min_zones:
            raise PlacementRuleError(
                f"{quorums}: zone-aware placement needs a write quorum above the {self.min_zones} "
                "zones of every write set, or nobody could replace a dead zone's bookies"
            )


@dataclass(frozen=True, slots=True)
class RegionRules:
    """Rules of region-aware placement.

    Attributes:
        min_regions: regions that every write set must have, unless there is one region only.
        spread_acks: an entry is confirmed once its acks come from so many regions.
    """

    min_regions: int = 2
    spread_acks: bool = False

    def __post_init__(self) -> None:
        if self.min_regions < 1:
            raise ValueError(f"at least 1 region per write quorum, not {self.min_regions}")

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """As RegionAwareEnsemblePlacementPolicy.newEnsemble: what was confirmed survives the loss
        of all regions but the minimum.

        Raises:
            PlacementRuleError: no cluster could satisfy the rules.
        """
        least = max(self.min_regions, write_quorum - write_quorum // self.min_regions + 1)
        if ack_quorum < least:
            raise PlacementRuleError(
                f"ensemble size, write and ack quorum {ensemble_size}/{write_quorum}/{ack_quorum}: "
                f"region-aware placement over {self.min_regions} regions needs an ack quorum of at "
                f"least {least}"
            )


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """Which policy, and its rules.

    Attributes:
        by_free_space: bookies with more free space are chosen more often.
        max_weight_multiple: but none counts as more than so many times the median.
        info_interval_s, info_retry_s: how often free space is asked for; and again after a failure.
        opportunistic_striping: rather a smaller ensemble, down to Qw, than no ledger.
        isolation: groups of bookies that ledgers are kept on; None: all bookies.
    """

    policy: str = RANDOM
    racks: RackRules = field(default_factory=RackRules)
    zones: ZoneRules = field(default_factory=ZoneRules)
    by_free_space: bool = False
    max_weight_multiple: float = 3.0
    info_interval_s: float = 86_400.0
    info_retry_s: float = 60.0
    opportunistic_striping: bool = False
    regions: RegionRules = field(default_factory=RegionRules)
    isolation: IsolationGroups | None = None

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"placement policy {self.policy!r}: not one of {', '.join(POLICIES)}")
        if self.max_weight_multiple < 1 or min(self.info_interval_s, self.info_retry_s) <= 0:
            raise ValueError(
                f"weights by free space: multiple {self.max_weight_multiple} below 1, or intervals "
                f"{self.info_interval_s} s, {self.info_retry_s} s not above 0"
            )

    def check(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """Raises PlacementRuleError: the policy could place ledgers like these in no cluster."""
        if self.policy == ZONE_AWARE:
            self.zones.check(ensemble_size, write_quorum, ack_quorum)
        elif self.policy == REGION_AWARE:
            self.regions.check(ensemble_size, write_quorum, ack_quorum)
