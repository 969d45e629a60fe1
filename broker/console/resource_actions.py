"""Steps that create, change and delete what a cluster holds: tenants, namespaces, topics,
subscriptions, permissions, dynamic settings. Pure.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

from magnetar.broker.console.actions import Action, Call, Subject, subscription_path
from magnetar.broker.console.formats import number, plural, segment
from magnetar.broker.console.schema_form import ActionError
from magnetar.broker.console.topic_path import TopicPath

Json = Mapping[str, Any]

_NAMESPACES: Final = ("Namespaces", "namespaces")
_LATEST: Final = 2**63 - 1
_PARTITIONS_MAX: Final = 1_000_000
"""Of a form; brokers have limits of their own."""
_BUNDLES_MAX: Final = 4096
_DOMAINS: Final = ("persistent", "non-persistent")
_PERMISSIONS: Final = ("produce", "consume", "functions", "sources", "sinks", "packages")
_POSITIONS: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {"latest": (_LATEST, _LATEST), "earliest": (-1, -1)}
)
_MESSAGE_ID: Final = "message id"
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_ALGORITHMS: Final = ("range_equally_divide", "topic_count_equally_divide")


@dataclass(frozen=True, slots=True)
class ClusterSubject:
    clusters: Sequence[str]
    """That a tenant may have namespaces in."""
    name: str = ""
    url: str = ""
    trail: Sequence[tuple[str, str]] = (_NAMESPACES,)
    menu: str = "namespaces"


@dataclass(frozen=True, slots=True)
class TopicsSubject:
    """All topics."""

    name: str = ""
    url: str = "topics"
    trail: Sequence[tuple[str, str]] = (("Topics", "topics"),)
    menu: str = "topics"


@dataclass(frozen=True, slots=True)
class TenantSubject:
    name: str
    info: Json
    """Admin roles and allowed clusters."""
    namespaces: int
    clusters: Sequence[str]
    menu: str = "namespaces"

    @property
    def url(self) -> str:
        return f"tenant/{segment(self.name)}"

    @property
    def trail(self) -> Sequence[tuple[str, str]]:
        return (_NAMESPACES, (self.name, self.url))


@dataclass(frozen=True, slots=True)
class NamespaceSubject:
    tenant: str
    local: str
    boundaries: Sequence[str] = ()
    """Of its bundles."""
    figures: Json = field(default_factory=dict)
    """Sums of its topics' figures; empty: no topic is known."""
    menu: str = "namespaces"

    @property
    def name(self) -> str:
        return f"{self.tenant}/{self.local}"

    @property
    def path(self) -> str:
        """Below ``/admin/v2/namespaces``, and below a domain."""
        return f"{segment(self.tenant)}/{segment(self.local)}"

    @property
    def url(self) -> str:
        return f"ns/{self.path}"

    @property
    def trail(self) -> Sequence[tuple[str, str]]:
        return (_NAMESPACES, (self.tenant, f"tenant/{segment(self.tenant)}"), (self.name, self.url))

    @property
    def ranges(self) -> list[str]:
        return [f"{first}_{end}" for first, end in pairwise(self.boundaries)]


@dataclass(frozen=True, slots=True)
class SettingSubject:
    """A setting that can change while brokers run."""

    name: str
    in_force: str | None
    """At the asked broker; None: it doesn't tell."""
    stored: str | None
    """That was set for all brokers; None: none was."""
    menu: str = "settings"
    url: str = "settings"
    trail: Sequence[tuple[str, str]] = (("Settings", "settings"),)


def _object(needed: Sequence[str], **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(needed)}


def _name(title: str, example: str = "", description: str = "") -> Json:
    examples = [example] if example else []
    return {"type": "string", "title": title, "examples": examples, "description": description}


def _count(title: str, maximum: int, description: str = "", minimum: int = 1) -> Json:
    limits = {"minimum": minimum, "maximum": maximum}
    return {"type": "integer", "title": title, "description": description, **limits}


def _admin(*words: str) -> str:
    return shlex.join(["magnetar", "admin", *words])


# --- tenants


def _tenant_fields(clusters: Sequence[str]) -> dict[str, Json]:
    roles = {"type": "string"}
    return {
        "adminRoles": {"type": "array", "items": roles, "title": "Admin roles"},
        "allowedClusters": {
            "type": "array",
            "items": {"type": "string", "enum": list(clusters)},
            "title": "Allowed clusters",
            "default": list(clusters),
        },
    }


def _tenant_call(method: str, word: str, tenant: str, value: Json) -> Call:
    body = {"adminRoles": value["adminRoles"], "allowedClusters": value["allowedClusters"]}
    lists = zip(("--admin-roles", "--allowed-clusters"), body.values(), strict=True)
    options = [f"{flag}={','.join(names)}" for flag, names in lists if names]
    command = _admin("tenants", word, tenant, *options)
    below = f"tenants/{segment(tenant)}"
    return Call(method, below, command, body=body, then=f"tenant/{segment(tenant)}")


CLUSTER_ACTIONS: Final[tuple[Action[ClusterSubject], ...]] = (
    Action(
        "create-tenant",
        "New tenant",
        lambda _: "A tenant holds namespaces; its admin roles may create and change them.",
        lambda _, value: _tenant_call("PUT", "create", value["name"], value),
        lambda subject: _object(
            ["name"], name=_name("Name", "acme"), **_tenant_fields(subject.clusters)
        ),
        tab="namespaces",
    ),
)


def _new_namespace(subject: TenantSubject, value: Json) -> Call:
    name, bundles = value["name"], value.get("bundles")
    path = f"{segment(subject.name)}/{segment(name)}"
    options = [] if bundles is None else [f"--bundles={bundles}"]
    command = _admin("namespaces", "create", f"{subject.name}/{name}", *options)
    body = {} if bundles is None else {"bundles": {"numBundles": bundles}}
    return Call("PUT", f"namespaces/{path}", command, body=body, then=f"ns/{path}")


TENANT_ACTIONS: Final[tuple[Action[TenantSubject], ...]] = (
    Action(
        "create-namespace",
        "New namespace",
        lambda _: (
            "A namespace holds topics, and policies for them. Its bundles are what brokers "
            "share among themselves."
        ),
        _new_namespace,
        lambda _: _object(
            ["name"],
            name=_name("Name", "orders"),
            bundles=_count("Bundles", _BUNDLES_MAX, "empty: as the broker sets it"),
        ),
    ),
    Action(
        "change",
        "Change tenant",
        lambda subject: f"Roles that are taken away lose every right in {subject.name}.",
        lambda subject, value: _tenant_call("POST", "update", subject.name, value),
        lambda subject: _object(
            [],
            **{
                name: {**each, "default": subject.info.get(name) or []}
                for name, each in _tenant_fields(subject.clusters).items()
            },
        ),
    ),
    Action(
        "delete",
        "Delete tenant",
        lambda subject: (
            f"{plural(subject.namespaces, 'namespace')} "
            f"{'is' if subject.namespaces == 1 else 'are'} in it; only an empty tenant is deleted."
        ),
        lambda subject, _: Call(
            "DELETE",
            f"tenants/{segment(subject.name)}",
            _admin("tenants", "delete", subject.name),
            then="namespaces",
        ),
        is_typed=True,
    ),
)


# --- namespaces


def _new_topic_anywhere(_: TopicsSubject, value: Json) -> Call:
    domain, mark, rest = value["name"].rpartition("://")
    topic = TopicPath.parse(f"{domain if mark else value['domain']}://{rest}")
    if topic.domain not in _DOMAINS or not topic.local:
        raise ActionError("Name: tenant/namespace/topic", "value.name")
    return _created(topic, value)


def _new_topic(subject: NamespaceSubject, value: Json) -> Call:
    return _created(TopicPath(value["domain"], subject.tenant, subject.local, value["name"]), value)


def _created(topic: TopicPath, value: Json) -> Call:
    partitions, then = value.get("partitions"), f"topic/{topic.rest}"
    if partitions is None:
        return Call("PUT", topic.rest, _admin("topics", "create", str(topic)), then=then)
    words = ("create-partitioned-topic", str(topic), f"--partitions={partitions}")
    path, command = f"{topic.rest}/partitions", _admin("topics", *words)
    return Call("PUT", path, command, body=partitions, then=then)


def _bundle_field(subject: NamespaceSubject) -> Json:
    return {"type": "string", "title": "Bundle", "enum": subject.ranges}


def _unload(subject: NamespaceSubject, value: Json) -> Call:
    bundle = value.get("bundle")
    below, option = (f"/{bundle}", [f"--bundle={bundle}"]) if bundle else ("", [])
    command = _admin("namespaces", "unload", subject.name, *option)
    return Call("PUT", f"namespaces/{subject.path}{below}/unload", command)


def _split(subject: NamespaceSubject, value: Json) -> Call:
    bundle, algorithm = value["bundle"], value["algorithm"]
    options = [f"--bundle={bundle}", f"--split-algorithm-name={algorithm}"]
    query: dict[str, str | int | bool] = {"splitAlgorithmName": algorithm}
    if value["unload"]:
        options.append("--unload")
        query["unload"] = True
    command = _admin("namespaces", "split-bundle", subject.name, *options)
    return Call("PUT", f"namespaces/{subject.path}/{bundle}/split", command, query)


def _clear(subject: NamespaceSubject, value: Json) -> Call:
    subscription = value.get("subscription")
    below = f"/{segment(subscription)}" if subscription else ""
    option = [f"--sub={subscription}"] if subscription else []
    command = _admin("namespaces", "clear-backlog", subject.name, *option, "--force")
    return Call("POST", f"namespaces/{subject.path}/clearBacklog{below}", command)


def _topics(subject: NamespaceSubject) -> str:
    count = subject.figures.get("topicCount", 0)
    return f"{plural(count, 'topic')} {'is' if count == 1 else 'are'} in it"


def _grant_fields(_: object) -> Json:
    may = {"type": "string", "enum": list(_PERMISSIONS)}
    actions = {"type": "array", "items": may, "title": "May"}
    return _object(["role"], role=_name("Role", "billing"), actions=actions)


def _revoke_fields(_: object) -> Json:
    return _object(["role"], role=_name("Role", "billing"))


def _granted(group: str, path: str, name: str, value: Json) -> Call:
    role, actions = value["role"], value["actions"]
    if not actions:
        raise ActionError("May: tick what it may do", "value.actions")
    options = (f"--role={role}", f"--actions={','.join(actions)}")
    command = _admin(group, "grant-permission", name, *options)
    return Call("POST", f"{path}/permissions/{segment(role)}", command, body=actions)


def _revoked(group: str, path: str, name: str, value: Json) -> Call:
    command = _admin(group, "revoke-permission", name, f"--role={value['role']}")
    return Call("DELETE", f"{path}/permissions/{segment(value['role'])}", command)


def _topic_fields(example: str) -> Json:
    return _object(
        ["name", "domain"],
        name=_name("Name", example),
        partitions=_count("Partitions", _PARTITIONS_MAX, "empty: a topic without"),
        domain={
            "type": "string",
            "title": "Messages are",
            "enum": list(_DOMAINS),
            "default": _DOMAINS[0],
        },
    )


_NEW_TOPIC: Final = (
    "A topic without messages and subscriptions comes. Brokers share the partitions of a topic "
    "among themselves; their number can grow, never shrink."
)
TOPICS_ACTIONS: Final[tuple[Action[TopicsSubject], ...]] = (
    Action(
        "create-topic",
        "New topic",
        lambda _: _NEW_TOPIC,
        _new_topic_anywhere,
        lambda _: _topic_fields("public/default/orders"),
    ),
)
NAMESPACE_ACTIONS: Final[tuple[Action[NamespaceSubject], ...]] = (
    Action(
        "create-topic",
        "New topic",
        lambda _: _NEW_TOPIC,
        _new_topic,
        lambda _: _topic_fields("orders"),
    ),
    Action(
        "unload",
        "Unload",
        lambda subject: (
            f"Clients are disconnected and come back; nothing is lost. {_topics(subject)}."
        ),
        _unload,
        lambda subject: _object([], bundle=_bundle_field(subject)),
        is_costly=True,
    ),
    Action(
        "split",
        "Split bundle",
        lambda _: (
            "The two halves may go to different brokers. Their topics stay open unless they "
            "are unloaded."
        ),
        _split,
        lambda subject: _object(
            ["bundle"],
            bundle=_bundle_field(subject),
            algorithm={
                "type": "string",
                "title": "Where",
                "enum": list(_ALGORITHMS),
                "default": _ALGORITHMS[0],
            },
            unload={"type": "boolean", "title": "Unload the new bundles", "default": False},
        ),
    ),
    Action(
        "clear-backlog",
        "Clear backlog",
        lambda subject: (
            f"Every unread message counts as acknowledged: {_topics(subject)}, "
            f"with {number(subject.figures.get('msgBacklog', 0))} unread."
        ),
        _clear,
        lambda _: _object([], subscription=_name("Only of subscription", "", "empty: of all")),
        is_typed=True,
    ),
    Action(
        "grant",
        "Grant",
        lambda subject: (
            f"In {subject.name} the role may do what is ticked, in place of what it "
            "was granted there before."
        ),
        lambda subject, value: _granted(
            "namespaces", f"namespaces/{subject.path}", subject.name, value
        ),
        _grant_fields,
    ),
    Action(
        "revoke",
        "Revoke",
        lambda subject: f"The role loses what it was granted on {subject.name}.",
        lambda subject, value: _revoked(
            "namespaces", f"namespaces/{subject.path}", subject.name, value
        ),
        _revoke_fields,
        is_costly=True,
    ),
    Action(
        "delete",
        "Delete namespace",
        lambda subject: (
            f"{_topics(subject)}; only an empty namespace is deleted. Its policies "
            "and permissions are gone."
        ),
        lambda subject, _: Call(
            "DELETE",
            f"namespaces/{subject.path}",
            _admin("namespaces", "delete", subject.name),
            then=f"tenant/{segment(subject.tenant)}",
        ),
        is_typed=True,
    ),
)


# --- topics


def _subscribe_fields(subject: Subject) -> Json:
    positions = ["latest", "earliest"]
    at: dict[str, Json] = {}
    if not subject.partitions:  # an id is of one partition
        positions.append(_MESSAGE_ID)
        at["id"] = _name("Message id", "12:0", "where it begins, if that is an id")
    start = {"type": "string", "title": "Begins at", "enum": positions, "default": "latest"}
    return _object(["name", "position"], name=_name("Name", "billing"), position=start, **at)


def _subscribe(subject: Subject, value: Json) -> Call:
    name, position = value["name"], value["position"]
    if position == _MESSAGE_ID:
        position = value.get("id", "")
    ledger_id, entry_id = _POSITIONS.get(position) or _message_id(position)
    body = {"ledgerId": ledger_id, "entryId": entry_id, "partitionIndex": -1}
    options = (f"--subscription={name}", f"--messageId={position}")
    command = _admin("topics", "create-subscription", str(subject.topic), *options)
    return Call("PUT", subscription_path(subject.topic, name), command, body=body)


def _offload(subject: Subject, text: str) -> Call:
    ledger_id, entry_id = _message_id(text, "value")
    body = {"ledgerId": ledger_id, "entryId": entry_id, "partitionIndex": -1}
    # Commands say how much is kept, not up to where it goes: none does the same.
    return Call("PUT", f"{subject.path}/offload", "", body=body)


def _message_id(text: str, field: str = "value.id") -> tuple[int, int]:
    ledger, mark, entry = text.partition(":")
    if not (mark and all(x.isascii() and x.isdecimal() and len(x) < 19 for x in (ledger, entry))):
        raise ActionError("Message id: ledger:entry is needed, as 12:0", field)
    return int(ledger), int(entry)


def _grow(subject: Subject, value: int) -> Call:
    words = ("update-partitioned-topic", str(subject.topic), f"--partitions={value}")
    return Call("POST", f"{subject.topic.rest}/partitions", _admin("topics", *words), body=value)


def _delete_schema(subject: Subject, value: Json) -> Call:
    topic, query = subject.topic, {"force": True} if value["force"] else {}
    option = ["--force"] if query else []
    path = f"schemas/{segment(topic.tenant)}/{segment(topic.namespace)}/{segment(topic.local)}"
    return Call("DELETE", f"{path}/schema", _admin("schemas", "delete", str(topic), *option), query)


def _partition_field(subject: Subject) -> dict[str, Json]:
    if not subject.partitions:
        return {}
    return {"partition": _count("Partition", subject.partitions - 1, minimum=0)}


def _part(subject: Subject, value: Json) -> TopicPath:
    """The topic itself if it has no partitions."""
    return subject.topic.partition(value["partition"]) if "partition" in value else subject.topic


def _analyze(subject: Subject, value: Json | None) -> Call:
    topic = _part(subject, value or {})
    path = f"{subscription_path(topic, subject.subscription)}/analyzeBacklog"
    option = f"--subscription={subject.subscription}"
    return Call("POST", path, _admin("topics", "analyze-backlog", str(topic), option))


def _analyze_fields(subject: Subject) -> Json | None:
    fields = _partition_field(subject)
    return _object(list(fields), **fields) if fields else None


def _analyzed(found: Json) -> list[tuple[str, str]]:
    rows = [
        ("Messages", number(found["messages"])),
        ("Entries", number(found["entries"])),
        ("Markers besides", number(found["markerMessages"])),
    ]
    if "firstMessageId" in found:
        rows += [("First", found["firstMessageId"]), ("Last", found["lastMessageId"])]
    if found["aborted"]:
        rows.append(("Not all", "a limit of the broker ended it: there are more"))
    return rows


def _move(subject: Subject, value: Json) -> Call:
    number = str(value.get("partition", ""))
    place = subject.places.get(value["other"], {}).get(number, "")
    ledger, _, entry = place.partition(":")
    if not entry:
        raise ActionError("Place of: it has none there now", "value.other")
    # Behind that message; of entry -1, which there is none of, at the first of the ledger.
    is_before = entry == "-1"
    body = {
        "ledgerId": int(ledger),
        "entryId": 0 if is_before else int(entry),
        "partitionIndex": -1,
        "excluded": not is_before,
    }
    topic = _part(subject, value)
    options = [f"--subscription={subject.subscription}", f"--messageId={ledger}:{body['entryId']}"]
    options += [] if is_before else ["--exclude-reset-position"]
    path = f"{subscription_path(topic, subject.subscription)}/resetcursor"
    return Call("POST", path, _admin("topics", "reset-cursor", str(topic), *options), body=body)


def _move_fields(subject: Subject) -> Json:
    others = {"type": "string", "title": "Place of", "enum": sorted(subject.places)}
    fields = _partition_field(subject)
    return _object(["other", *fields], other=others, **fields)


SUBSCRIPTION_FORMS: Final[tuple[Action[Subject], ...]] = (
    Action(
        "move",
        "Move to another's place",
        lambda subject: (
            f"{subject.subscription} reads again, or skips: from the first message on that the "
            "other one has not acknowledged. Later ones that it has are delivered here. Consumers "
            "are disconnected and come back."
            if subject.places
            else "The topic has no other subscription."
        ),
        _move,
        _move_fields,
        is_costly=True,
        tab="subscriptions",
    ),
    Action(
        "analyze",
        "Analyze backlog",
        lambda subject: (
            f"Reads what {subject.subscription} has not acknowledged, and counts it. Nothing "
            "changes. The broker ends it at its limits of entries and time."
        ),
        _analyze,
        _analyze_fields,
        tab="subscriptions",
        answer=_analyzed,
    ),
)
TOPIC_FORMS: Final[tuple[Action[Subject], ...]] = (
    Action(
        "compact",
        "Compact",
        lambda _: (
            "Of each key the newest message stays for consumers with readCompacted; "
            "all others read the topic as before. The topic is read twice."
        ),
        lambda subject, _: Call(
            "PUT",
            f"{subject.path}/compaction",
            shlex.join(["magnetar", "topics", "compact", str(subject.topic)]),
        ),
        tab="storage",
    ),
    Action(
        "offload",
        "Offload",
        lambda _: (
            "Closed ledgers before that message are copied to where the policy offloadPolicies "
            "says; readers go on as before. The tab tells how it ended."
        ),
        _offload,
        lambda _: {"type": "string", "title": "Before the message", "examples": ["12:0"]},
        tab="storage",
    ),
    Action(
        "subscribe",
        "New subscription",
        lambda _: "It keeps messages from where it begins until they are acknowledged.",
        _subscribe,
        _subscribe_fields,
        tab="subscriptions",
    ),
    Action(
        "partitions",
        "Add partitions",
        lambda subject: (
            f"There are {subject.partitions} now; they never become fewer. Messages "
            "with a key may go to another partition than before."
        ),
        _grow,
        lambda subject: _count(
            "Partitions", _PARTITIONS_MAX, f"more than {subject.partitions}", subject.partitions + 1
        ),
        is_costly=True,
        tab="partitions",
    ),
    Action(
        "grant",
        "Grant",
        lambda subject: (
            f"On {subject.topic.local} the role may do what is ticked, in place of "
            "what it was granted there before. Grants of the namespace hold beside it."
        ),
        lambda subject, value: _granted("topics", subject.path, str(subject.topic), value),
        _grant_fields,
        tab="permissions",
    ),
    Action(
        "revoke",
        "Revoke",
        lambda subject: (
            f"The role loses what it was granted on {subject.topic.local} itself. "
            "Grants of the namespace stay."
        ),
        lambda subject, value: _revoked("topics", subject.path, str(subject.topic), value),
        _revoke_fields,
        is_costly=True,
        tab="permissions",
    ),
    Action(
        "delete-schema",
        "Delete schema",
        lambda _: (
            "Messages that are stored can't be decoded by a version that is forgotten. "
            "Producers may bring another schema."
        ),
        _delete_schema,
        lambda _: _object(
            [], force={"type": "boolean", "title": "Forget all versions", "default": False}
        ),
        is_typed=True,
        tab="schema",
    ),
)


# --- settings


def _like_now(subject: SettingSubject) -> Json:
    """What a value is by the one in force: Apache Pulsar stores any text, and goes on without."""
    if subject.in_force in ("true", "false"):
        return {"type": "string", "title": "Value", "enum": ["true", "false"]}
    if _NUMBER.fullmatch(subject.in_force or ""):
        number_of = {"pattern": _NUMBER.pattern, "description": "a number"}
        return {"type": "string", "title": "Value", **number_of}
    return {"type": "string", "title": "Value"}


def _set(subject: SettingSubject, value: str) -> Call:
    words = (f"--config={subject.name}", f"--value={value}")
    path = f"brokers/configuration/{segment(subject.name)}/{segment(value)}"
    return Call("POST", path, _admin("brokers", "update-dynamic-config", *words))


SETTING_ACTIONS: Final[tuple[Action[SettingSubject], ...]] = (
    Action(
        "set",
        "Set",
        lambda subject: (
            f"{subject.name} holds at all brokers, at once and after they restart. "
            f"Now it is {subject.in_force or 'not told'}."
        ),
        _set,
        _like_now,
        is_costly=True,
    ),
    Action(
        "delete",
        "Remove",
        lambda subject: (
            f"{subject.name} is again what each broker was started with, in place of "
            f"{subject.stored or 'nothing: it was not set'}."
        ),
        lambda subject, _: Call(
            "DELETE",
            f"brokers/configuration/{segment(subject.name)}",
            _admin("brokers", "delete-dynamic-config", f"--config={subject.name}"),
        ),
        is_costly=True,
    ),
)
