"""Which brokers may serve a namespace: isolation, failure domains, anti-affinity, owners by name.

Isolation is a rule: no broker outside of it, even if that leaves none. Anti-affinity is a
preference: it chooses among what is allowed. All of it is immutable; a change makes a new
``PlacementPolicies``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.loadbalance.errors import InvalidDocumentError

SYSTEM_NAMESPACE: Final = "pulsar/system"
DEFAULT_DOMAIN: Final = "default"
# Heartbeat namespaces (old and new form) and those that watch service levels name their broker.
_PINNED: Final = re.compile(r"(?:pulsar|(?:pulsar|sla-monitor)/[^/]+)/([^/:]+:\d+|\[[^/]+\]:\d+)")


def pinned_broker(namespace: str) -> str | None:
    """The only broker that ever serves this namespace; None for all ordinary ones."""
    found = _PINNED.fullmatch(namespace)
    return None if found is None else found[1]


# --- isolation


@dataclass(frozen=True, slots=True)
class NamespaceIsolationPolicy:
    """NamespaceIsolationData. Patterns match whole names; brokers by host or by host:port."""

    name: str
    namespaces: tuple[re.Pattern[str], ...]
    primary: tuple[re.Pattern[str], ...]
    secondary: tuple[re.Pattern[str], ...]
    min_limit: int  # fewer primaries alive: secondaries help

    @classmethod
    def parse(cls, name: str, document: Mapping[str, Any]) -> "NamespaceIsolationPolicy":
        """Raises InvalidDocumentError: a pattern or the limit can't be read."""
        failover = document.get("auto_failover_policy")
        parameters = failover.get("parameters") if isinstance(failover, Mapping) else None
        limit = parameters.get("min_limit", "1") if isinstance(parameters, Mapping) else "1"
        try:
            min_limit = int(limit)
        except (TypeError, ValueError) as error:
            raise InvalidDocumentError(f"isolation policy {name}: min_limit {limit!r}") from error
        return cls(
            name,
            _patterns(name, document, "namespaces"),
            _patterns(name, document, "primary"),
            _patterns(name, document, "secondary"),
            min_limit,
        )

    def governs(self, namespace: str) -> bool:
        return any(pattern.fullmatch(namespace) for pattern in self.namespaces)

    def is_primary(self, broker: str) -> bool:
        return _matches(self.primary, broker)

    def is_secondary(self, broker: str) -> bool:
        return _matches(self.secondary, broker)

    def candidates(self, brokers: Sequence[str]) -> list[str]:
        """Of live brokers; the secondaries only while there are too few primaries."""
        primary = [each for each in brokers if self.is_primary(each)]
        if len(primary) >= self.min_limit:
            return primary
        return [each for each in brokers if self.is_primary(each) or self.is_secondary(each)]


def to_place_anew(
    scope: str,
    old: NamespaceIsolationPolicy | None,
    new: NamespaceIsolationPolicy,
    namespaces: Iterable[str],
) -> list[str]:
    """Namespaces that are to be unloaded when a policy was set, by its ``unload_scope``.

    Args:
        scope: ``none``; ``all_matching``, by the policy as it was or is; ``changed``: of those the
            ones that came, left, or have other primary brokers now.
        old: None: there was no policy of that name.
    """
    if scope == "none":
        return []
    moved = scope == "all_matching" or old is None or set(old.primary) != set(new.primary)
    found = []
    for each in namespaces:
        before, now = old is not None and old.governs(each), new.governs(each)
        if (before or now) if moved else before != now:
            found.append(each)
    return found


@dataclass(frozen=True, slots=True)
class IsolationPolicies:
    """All isolation policies of a cluster, in the order in which they are stored."""

    policies: tuple[NamespaceIsolationPolicy, ...] = ()

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> "IsolationPolicies":
        """Of the document ``namespaceIsolationPolicies``, policies by name.

        Raises:
            InvalidDocumentError: one of them can't be read. Keep those known before: to go on
                without would let namespaces out.
        """
        policies = []
        for name, policy in document.items():
            if not isinstance(policy, Mapping):
                raise InvalidDocumentError(f"isolation policy {name} is not an object")
            policies.append(NamespaceIsolationPolicy.parse(name, policy))
        return cls(tuple(policies))

    def policy_of(self, namespace: str) -> NamespaceIsolationPolicy | None:
        """The first one that governs it."""
        return next((each for each in self.policies if each.governs(namespace)), None)

    def is_shared(self, broker: str) -> bool:
        """Tell whether the broker is primary in no policy: it serves namespaces without one."""
        return not any(each.is_primary(broker) for each in self.policies)

    def candidates(self, namespace: str, brokers: Sequence[str]) -> list[str]:
        """Those of ``brokers`` (live ones) that may serve the namespace; perhaps none."""
        policy = self.policy_of(namespace)
        if policy is not None:
            return policy.candidates(brokers)
        return [each for each in brokers if self.is_shared(each)]


def _patterns(name: str, document: Mapping[str, Any], field: str) -> tuple[re.Pattern[str], ...]:
    texts = document.get(field)
    if texts is None:
        return ()
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidDocumentError(f"isolation policy {name}: {field} is not a list of patterns")
    try:
        # Not RE2: operators use look-ahead here ("all but"), and only they write policies.
        return tuple(re.compile(text) for text in texts)
    except re.error as error:
        raise InvalidDocumentError(f"isolation policy {name}: {field}: {error}") from error


def _matches(patterns: Iterable[re.Pattern[str]], broker: str) -> bool:
    host = broker.rpartition(":")[0] or broker
    return any(each.fullmatch(host) or each.fullmatch(broker) for each in patterns)


# --- failure domains and anti-affinity


def domains_of(documents: Mapping[str, Any]) -> dict[str, str]:
    """Domain by broker, of FailureDomain documents by name.

    Raises:
        InvalidDocumentError: one can't be read.
    """
    domains: dict[str, str] = {}
    for name, document in documents.items():
        brokers = (document.get("brokers") or []) if isinstance(document, Mapping) else None
        if not isinstance(brokers, list) or not all(isinstance(each, str) for each in brokers):
            raise InvalidDocumentError(f"failure domain {name}: brokers are not a list of names")
        domains.update(dict.fromkeys(brokers, name))
    return domains


def anti_affinity_filter(
    namespace: str,
    group: Iterable[str],
    candidates: Sequence[str],
    brokers_of: Mapping[str, Mapping[str, int]],
    domains: Mapping[str, str] | None,
) -> list[str]:
    """Those candidates (one at least) that keep the namespaces of a group apart, best effort.

    First by failure domain, then, inside, by broker. A namespace takes an even share of the
    places and no more: if each of its bundles went where the fewest others are, the first
    namespace would be everywhere before the second one comes.

    Args:
        group: all namespaces of the anti-affinity group, this one too.
        brokers_of: bundles by namespace and broker, without the bundle that is placed.
        domains: by broker; None: brokers alone matter.
    """
    members = set(group) | {namespace}
    sharing = len(members)  # namespaces that have to share the candidates
    if domains is not None:
        placed = {
            member: {domains.get(broker, DEFAULT_DOMAIN) for broker in brokers_of.get(member, ())}
            for member in members
        }
        places = {broker: domains.get(broker, DEFAULT_DOMAIN) for broker in candidates}
        names = set(places.values())
        wanted = _least_shared(namespace, placed, names, sharing)
        candidates = [broker for broker in candidates if places[broker] in wanted]
        sharing = -(-sharing // len(names))
    placed = {member: set(brokers_of.get(member, ())) for member in members}
    wanted = _least_shared(namespace, placed, set(candidates), sharing)
    return [broker for broker in candidates if broker in wanted]


def _least_shared(
    namespace: str, placed: Mapping[str, set[str]], places: set[str], sharing: int
) -> set[str]:
    """Places with the fewest other namespaces; this one's own if it has its share of them."""
    own = placed[namespace] & places
    if own and len(own) >= max(1, len(places) // sharing):
        places = own
    others = dict.fromkeys(places, 0)
    for member, its in placed.items():
        if member != namespace:
            for place in its & places:
                others[place] += 1
    least = min(others.values(), default=0)
    return {place for place, count in others.items() if count == least}


# --- all together


@dataclass(frozen=True, slots=True)
class PlacementPolicies:
    """Holds the operators' placement policies for namespaces and brokers."""

    isolation: IsolationPolicies = IsolationPolicies()
    domains: Mapping[str, str] = field(default_factory=dict)  # by broker
    groups: Mapping[str, str] = field(default_factory=dict)  # anti-affinity, by namespace

    def group_of(self, namespace: str) -> str | None:
        group = self.groups.get(namespace)
        return None if group is None else group.lower()  # as Pulsar compares them

    def members(self, group: str) -> list[str]:
        """Namespaces of a group, its name in lower case."""
        return [each for each, name in self.groups.items() if name.lower() == group]
