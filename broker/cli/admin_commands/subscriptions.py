"""Words about subscriptions: a group of their own, and under Pulsar's names in ``topics``."""

from __future__ import annotations

from magnetar.broker.cli.admin_commands.model import AdminCommand, Option

_TOPIC = "/admin/v2/{topic}"
_PATH = _TOPIC + "/subscription/{subscription}"
_T = ("topic",)
_SUB = Option(("-s", "--subscription"), "path:subscription", "subscription", required=True)
_FORCE = Option(("-f", "--force"), "query:force", "also with consumers", "true")
_WHERE = "latest, earliest or ledger:entry"
_EXPIRE = Option(
    ("-t", "--expireTime"), "path:seconds", "older than: 90s, 10m, 3h (seconds)", "seconds"
)

_LIST = AdminCommand("GET", _TOPIC + "/subscriptions", "names of its subscriptions", _T)
_CREATE = AdminCommand(
    "PUT",
    _PATH,
    "create a subscription",
    _T,
    (
        _SUB,
        Option(("-m", "--messageId"), "body", f"where it starts: {_WHERE} (latest)", "message-id"),
        Option(("-r", "--replicated"), "query:replicated", "in all clusters", "true"),
        Option(("-p", "--property"), "field:properties", "a=1,b=2", "map"),
    ),
    step="create_subscription",
)
_DELETE = AdminCommand("DELETE", _PATH, "delete a subscription", _T, (_SUB, _FORCE))
_SKIP = AdminCommand(
    "POST",
    _PATH + "/skip/{count}",
    "acknowledge the next messages",
    _T,
    (_SUB, Option(("-n", "--count"), "path:count", "how many", "int", required=True)),
)
_CLEAR = AdminCommand(
    "POST",
    _PATH + "/skip_all",
    "acknowledge everything, partition by partition",
    _T,
    (_SUB,),
    step="each_partition",
)
_EXPIRE_MESSAGES = AdminCommand(
    "POST",
    _PATH + "/expireMessages/{seconds}",
    "acknowledge what is older",
    _T,
    (
        _SUB,
        _EXPIRE,
        Option(("-p", "--position"), "step:position", "up to ledger:entry", "message-id"),
        Option(("-e", "--exclude-reset-position"), "step:exclude", "that message too", "true"),
    ),
    step="expire_messages",
)
_RESET = AdminCommand(
    "POST",
    _PATH + "/resetcursor",
    "go on at a time or a message",
    _T,
    (
        _SUB,
        Option(
            ("-t", "--time"),
            "step:ago",
            "so long ago: 90s, 10m, 3h, 2d, 1w",
            "ago",
            True,
            group="where",
        ),
        Option(("-m", "--messageId"), "step:position", _WHERE, "message-id", True, group="where"),
        Option(("-e", "--exclude-reset-position"), "step:exclude", "behind that message", "true"),
    ),
    step="reset_cursor",
)
_PEEK = AdminCommand(
    "GET",
    _PATH + "/position/{position}",
    "show the next messages, acknowledge nothing",
    _T,
    (_SUB, Option(("-n", "--count"), "step:count", "how many (1)", "int", default=1)),
    step="peek_messages",
)
_ANALYZE = AdminCommand(
    "POST",
    _PATH + "/analyzeBacklog",
    "read the backlog and count it",
    _T,
    (_SUB, Option(("-p", "--position"), "body", "from ledger:entry on", "message-id")),
)
_GET_PROPERTIES = AdminCommand(
    "GET", _PATH + "/properties", "properties of a subscription", _T, (_SUB,)
)
_UPDATE_PROPERTIES = AdminCommand(
    "PUT",
    _PATH + "/properties",
    "replace the properties of a subscription",
    _T,
    (
        _SUB,
        Option(("-p", "--property"), "body", "a=1,b=2", "map", True, group="what"),
        Option(("-c", "--clear"), "body", "remove all", "true", True, const={}, group="what"),
    ),
)
_REPLICATED = AdminCommand(
    "POST",
    _PATH + "/replicatedSubscriptionStatus",
    "mark a subscription as replicated, or not (nothing is copied yet)",
    _T,
    (
        _SUB,
        Option(("-e", "--enable"), "body", "replicate it", "true", True, group="switch"),
        Option(("-d", "--disable"), "body", "don't", "false", True, group="switch"),
    ),
)
_GET_REPLICATED = AdminCommand(
    "GET", _PATH + "/replicatedSubscriptionStatus", "whether it is replicated", _T, (_SUB,)
)

TOPIC_WORDS: dict[str, AdminCommand] = {
    "subscriptions": _LIST,
    "create-subscription": _CREATE,
    "unsubscribe": _DELETE,
    "skip": _SKIP,
    "clear-backlog": _CLEAR,
    "expire-messages": _EXPIRE_MESSAGES,
    "expire-messages-all-subscriptions": AdminCommand(
        "POST",
        _TOPIC + "/all_subscription/expireMessages/{seconds}",
        "acknowledge what is older, everywhere",
        _T,
        (Option(_EXPIRE.flags, _EXPIRE.to, _EXPIRE.help, _EXPIRE.kind, required=True),),
    ),
    "reset-cursor": _RESET,
    "peek-messages": _PEEK,
    "analyze-backlog": _ANALYZE,
    "get-subscription-properties": _GET_PROPERTIES,
    "update-subscription-properties": _UPDATE_PROPERTIES,
    "get-replicated-subscription-status": _GET_REPLICATED,
    "set-replicated-subscription-status": _REPLICATED,
}

WORDS: dict[str, dict[str, AdminCommand]] = {
    "subscriptions": {
        "list": _LIST,
        "create": _CREATE,
        "delete": _DELETE,
        "skip": _SKIP,
        "clear-backlog": _CLEAR,
        "expire-messages": _EXPIRE_MESSAGES,
        "reset-cursor": _RESET,
        "peek-messages": _PEEK,
        "analyze-backlog": _ANALYZE,
        "get-properties": _GET_PROPERTIES,
        "update-properties": _UPDATE_PROPERTIES,
        "get-replicated-status": _GET_REPLICATED,
        "set-replicated-status": _REPLICATED,
    }
}
