"""Words of ``topics``, those about subscriptions included."""

from __future__ import annotations

from magnetar.broker.cli.admin_commands.model import AdminCommand, Option
from magnetar.broker.cli.admin_commands.subscriptions import TOPIC_WORDS

_PATH = "/admin/v2/{topic}"
_T, _N = ("topic",), ("namespace",)
_FORCE = Option(("-f", "--force"), "query:force", "also with clients", "true")
_PARTITIONS = Option(("-p", "--partitions"), "body", "how many", "int", required=True)
_SYSTEM = Option(
    ("-ist", "--include-system-topic"), "query:includeSystemTopic", "also the system's own", "true"
)
_ROLE = Option(("--role",), "path:role", "role of clients", required=True)
_WAIT = Option(("-w", "--wait-complete"), "step:wait", "until it is done", "true")
_STATS = (
    Option(("-gpb", "--get-precise-backlog"), "query:getPreciseBacklog", "count messages", "true"),
    Option(
        ("-sbs", "--get-subscription-backlog-size"),
        "query:subscriptionBacklogSize",
        "bytes of each backlog",
        "true",
    ),
    Option(
        ("-etb", "--get-earliest-time-in-backlog"),
        "query:getEarliestTimeInBacklog",
        "when its first message came",
        "true",
    ),
)

_LIFE_CYCLE: dict[str, AdminCommand] = {
    "list": AdminCommand(
        "GET",
        "/admin/v2/persistent/{namespace}",
        "topics of a namespace, each partition",
        _N,
        (
            Option(
                ("-td", "--topic-domain"),
                "step:domain",
                "only these",
                choices=("persistent", "non_persistent"),
            ),
            Option(("-b", "--bundle"), "query:bundle", "only of this bundle"),
            _SYSTEM,
        ),
        step="list_topics",
    ),
    "list-partitioned-topics": AdminCommand(
        "GET",
        "/admin/v2/persistent/{namespace}/partitioned",
        "partitioned topics of a namespace",
        _N,
        (_SYSTEM,),
        step="list_topics",
    ),
    "create": AdminCommand(
        "PUT",
        _PATH,
        "create one without partitions",
        _T,
        (Option(("-m", "--metadata"), "body", "properties: a=1,b=2", "map"),),
    ),
    "create-partitioned-topic": AdminCommand(
        "PUT",
        _PATH + "/partitions",
        "create one",
        _T,
        (
            _PARTITIONS,
            Option(("-m", "--metadata"), "step:properties", "properties: a=1,b=2", "map"),
        ),
        step="create_partitioned_topic",
    ),
    "create-missed-partitions": AdminCommand(
        "POST", _PATH + "/createMissedPartitions", "create what is missing", _T
    ),
    "update-partitioned-topic": AdminCommand(
        "POST",
        _PATH + "/partitions",
        "more partitions",
        _T,
        (
            _PARTITIONS,
            Option(
                ("-ulo", "--update-local-only"), "query:updateLocalTopicOnly", "here only", "true"
            ),
            Option(("-f", "--force"), "query:force", "without looking first", "true"),
        ),
    ),
    "get-partitioned-topic-metadata": AdminCommand(
        "GET", _PATH + "/partitions", "number of partitions", _T
    ),
    "delete": AdminCommand("DELETE", _PATH, "delete some", _T, (_FORCE,), many=True),
    "delete-partitioned-topic": AdminCommand(
        "DELETE", _PATH + "/partitions", "delete some", _T, (_FORCE,), many=True
    ),
    "unload": AdminCommand(
        "PUT", _PATH + "/unload", "close some, to be loaded again", _T, many=True
    ),
    "truncate": AdminCommand(
        "DELETE", _PATH + "/truncate", "delete all messages of it", _T, many=True
    ),
    "lookup": AdminCommand("GET", "/lookup/v2/topic/{topic}", "the broker that serves it", _T),
    "partitioned-lookup": AdminCommand(
        "GET",
        "/lookup/v2/topic/{topic}",
        "the broker of each partition",
        _T,
        (Option(("-s", "--sort-by-broker"), "step:by_broker", "partitions by broker", "true"),),
        step="partitioned_lookup",
    ),
    "bundle-range": AdminCommand(
        "GET", "/lookup/v2/topic/{topic}/bundle", "the bundle it is in", _T
    ),
    "permissions": AdminCommand("GET", _PATH + "/permissions", "actions by role", _T),
    "grant-permission": AdminCommand(
        "POST",
        _PATH + "/permissions/{role}",
        "let a role act",
        _T,
        (_ROLE, Option(("--actions",), "body", "produce,consume", "list", required=True)),
    ),
    "revoke-permission": AdminCommand(
        "DELETE", _PATH + "/permissions/{role}", "take a role's actions away", _T, (_ROLE,)
    ),
    "get-properties": AdminCommand("GET", _PATH + "/properties", "properties", _T),
    "update-properties": AdminCommand(
        "PUT",
        _PATH + "/properties",
        "set some properties",
        _T,
        (Option(("-p", "--property"), "body", "a=1,b=2", "map", required=True),),
    ),
    "remove-properties": AdminCommand(
        "DELETE",
        _PATH + "/properties",
        "remove a property",
        _T,
        (Option(("-k", "--key"), "query:key", "its name", required=True),),
    ),
    "get-shadow-topics": AdminCommand(
        "GET", _PATH + "/shadowTopics", "topics that read its data", _T
    ),
    "set-shadow-topics": AdminCommand(
        "PUT",
        _PATH + "/shadowTopics",
        "replace topics that read its data",
        _T,
        (Option(("-t", "--topics"), "body", "their names", "list", required=True),),
    ),
    "remove-shadow-topics": AdminCommand("DELETE", _PATH + "/shadowTopics", "remove them", _T),
}

_DATA: dict[str, AdminCommand] = {
    "stats": AdminCommand("GET", _PATH + "/stats", "statistics", _T, _STATS),
    "partitioned-stats": AdminCommand(
        "GET",
        _PATH + "/partitioned-stats",
        "sum of all partitions",
        _T,
        (
            Option(
                ("--per-partition",),
                "query:perPartition",
                "also each one",
                "true",
                default=False,
            ),
            *_STATS,
        ),
    ),
    "stats-internal": AdminCommand(
        "GET",
        _PATH + "/internalStats",
        "ledgers and cursors",
        _T,
        (Option(("-m", "--metadata"), "query:metadata", "with ledgers' metadata", "true"),),
    ),
    "partitioned-stats-internal": AdminCommand(
        "GET", _PATH + "/partitioned-internalStats", "ledgers and cursors of each partition", _T
    ),
    "info-internal": AdminCommand("GET", _PATH + "/internal-info", "stored metadata", _T),
    "last-message-id": AdminCommand("GET", _PATH + "/lastMessageId", "id of the last message", _T),
    "get-message-id": AdminCommand(
        "GET",
        _PATH + "/messageid/{time}",
        "first message at or behind a time",
        _T,
        (Option(("-d", "--datetime"), "step:datetime", "2026-11-21T15:00:00Z", required=True),),
        step="message_id_at",
    ),
    "get-message-id-by-index": AdminCommand(
        "GET",
        _PATH + "/getMessageIdByIndex",
        "message with an index of the broker",
        _T,
        (Option(("-i", "--index"), "query:index", "the index", "int", required=True),),
    ),
    "get-message-by-id": AdminCommand(
        "GET",
        _PATH + "/ledger/{ledger}/entry/{entry}",
        "show one message",
        _T,
        (
            Option(("-l", "--ledgerId"), "path:ledger", "ledger", "int", required=True),
            Option(("-e", "--entryId"), "path:entry", "entry", "int", required=True),
        ),
        step="show_message",
    ),
    "examine-messages": AdminCommand(
        "GET",
        _PATH + "/examinemessage",
        "show a message from either end",
        _T,
        (
            Option(
                ("-i", "--initialPosition"),
                "query:initialPosition",
                "which end (latest)",
                choices=("earliest", "latest"),
            ),
            Option(("-m", "--messagePosition"), "query:messagePosition", "how far (1)", "int"),
        ),
        step="show_message",
    ),
    "get-backlog-size": AdminCommand(
        "PUT",
        _PATH + "/backlogSize",
        "bytes behind a message",
        _T,
        (Option(("-m", "--messageId"), "body", "ledger:entry", "message-id", required=True),),
    ),
    "terminate": AdminCommand("POST", _PATH + "/terminate", "take no more messages, for good", _T),
    "partitioned-terminate": AdminCommand(
        "POST", _PATH + "/terminate/partitions", "the same for all partitions", _T
    ),
    "compact": AdminCommand("PUT", _PATH + "/compaction", "start a compaction", _T),
    "compaction-status": AdminCommand(
        "GET", _PATH + "/compaction", "how it goes", _T, (_WAIT,), step="wait_for_process"
    ),
    "offload": AdminCommand(
        "PUT",
        _PATH + "/offload",
        "move old data to the object store",
        _T,
        (
            Option(
                ("-s", "--size-threshold"),
                "step:size",
                "keep so much here: 10M, 5G",
                "bytes",
                required=True,
            ),
        ),
        step="offload",
    ),
    "offload-status": AdminCommand(
        "GET", _PATH + "/offload", "how it goes", _T, (_WAIT,), step="wait_for_process"
    ),
    "trim-topic": AdminCommand("POST", _PATH + "/trim", "delete consumed ledgers now", _T),
}

WORDS: dict[str, dict[str, AdminCommand]] = {"topics": {**_LIFE_CYCLE, **_DATA, **TOPIC_WORDS}}
