"""What policies of namespaces and of topics have in common: options, and the words they make."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.broker.cli.admin_commands.model import AdminCommand, Option, either

BACKLOG_TYPE = Option(
    ("-t", "--type"),
    "query:backlogQuotaType",
    "what is limited",
    default="destination_storage",
    choices=("destination_storage", "message_age"),
)

ENTRY_FILTERS = Option(
    ("-efn", "--entry-filters-name"), "field:entryFilterNames", "their names", required=True
)

STRATEGY = Option(
    ("-c", "--compatibility"),
    "body",
    "FULL, BACKWARD, FORWARD, each also with _TRANSITIVE, ALWAYS_COMPATIBLE, ALWAYS_INCOMPATIBLE",
    "upper",
    required=True,
)


@dataclass(frozen=True, slots=True)
class PolicyCommands:
    """A policy: the stem of its words (``get-``, ``set-``, ``remove-``) and its path's end."""

    stem: str
    path: str
    help: str
    options: tuple[Option, ...]
    method: str = "POST"
    remove: str = "DELETE"
    """Method that removes it; "": it can't be."""
    remove_word: str = "remove"
    applied: bool = False
    """GET can answer what is in force, whoever set it."""


def commands_of_policies(
    prefix: str,
    positionals: tuple[str, ...],
    policies: tuple[PolicyCommands, ...],
    everywhere: tuple[Option, ...] = (),
) -> dict[str, AdminCommand]:
    """Three words a policy, two where nothing removes it.

    Args:
        everywhere: options that all of these words have.
    """
    applied = Option(("-ap", "--applied"), "query:applied", "what is in force", "true")
    words: dict[str, AdminCommand] = {}
    for policy in policies:
        path = prefix + policy.path
        get_options = (applied, *everywhere) if policy.applied else everywhere
        words[f"get-{policy.stem}"] = AdminCommand(
            "GET", path, policy.help, positionals, get_options
        )
        words[f"set-{policy.stem}"] = AdminCommand(
            policy.method, path, f"set: {policy.help}", positionals, policy.options + everywhere
        )
        if policy.remove:
            words[f"{policy.remove_word}-{policy.stem}"] = AdminCommand(
                policy.remove, path, f"unset: {policy.help}", positionals, everywhere
            )
    return words


def number(flags: tuple[str, ...], to: str = "body", help: str = "0: no limit") -> tuple[Option]:
    """The one option of a policy that is a number."""
    return (Option(flags, to, help, "int", required=True),)


def switch(stem: str, path: str, help: str, **more: str | bool) -> PolicyCommands:
    """A policy that is on or off."""
    return PolicyCommands(stem, path, help, either("body", "it"), **more)  # type: ignore[arg-type]  # by name


def retention() -> tuple[Option, ...]:
    return (
        Option(
            ("-t", "--time"),
            "field:retentionTimeInMinutes",
            "keep this long: 100m, 3h, 2d (seconds); 0: not, -1: for ever",
            "minutes-of-seconds",
            required=True,
        ),
        Option(
            ("-s", "--size"),
            "field:retentionSizeInMB",
            "keep this much: 10M, 16G (bytes); 0: nothing, -1: everything",
            "megabytes",
            required=True,
        ),
    )


def backlog_quota() -> tuple[Option, ...]:
    return (
        Option(("-l", "--limit"), "field:limitSize", "10M, 16G (bytes)", "bytes", default=-1),
        Option(("-lt", "--limitTime"), "field:limitTime", "1h (seconds)", "seconds", default=-1),
        Option(
            ("-p", "--policy"),
            "field:policy",
            "what happens above the limit",
            required=True,
            choices=("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
        ),
        BACKLOG_TYPE,
    )


def persistence() -> tuple[Option, ...]:
    return (
        Option(
            ("-e", "--bookkeeper-ensemble"), "field:bookkeeperEnsemble", "bookies", "int", default=2
        ),
        Option(
            ("-w", "--bookkeeper-write-quorum"),
            "field:bookkeeperWriteQuorum",
            "copies of an entry (2)",
            "int",
            default=2,
        ),
        Option(
            ("-a", "--bookkeeper-ack-quorum"),
            "field:bookkeeperAckQuorum",
            "copies before the receipt (2)",
            "int",
            default=2,
        ),
        Option(
            ("-r", "--ml-mark-delete-max-rate"),
            "field:managedLedgerMaxMarkDeleteRate",
            "cursor writes a second, 0: no limit",
            "float",
            default=0.0,
        ),
        Option(
            ("-c", "--ml-storage-class"), "field:managedLedgerStorageClassName", "storage class"
        ),
    )


def dispatch_rate() -> tuple[Option, ...]:
    return (
        Option(
            ("-md", "--msg-dispatch-rate"),
            "field:dispatchThrottlingRateInMsg",
            "messages a period, -1: no limit",
            "int",
            default=-1,
        ),
        Option(
            ("-bd", "--byte-dispatch-rate"),
            "field:dispatchThrottlingRateInByte",
            "bytes a period, -1: no limit",
            "int",
            default=-1,
        ),
        Option(
            ("-dt", "--dispatch-rate-period"),
            "field:ratePeriodInSecond",
            "seconds of a period (1)",
            "int",
            default=1,
        ),
        Option(
            ("-rp", "--relative-to-publish-rate"),
            "field:relativeToPublishRate",
            "the rates are above the publish rate",
            "true",
            default=False,
        ),
    )


def subscribe_rate() -> tuple[Option, ...]:
    return (
        Option(
            ("-sr", "--subscribe-rate"),
            "field:subscribeThrottlingRatePerConsumer",
            "subscribes of a consumer a period, -1: no limit",
            "int",
            default=-1,
        ),
        Option(
            ("-st", "--subscribe-rate-period"),
            "field:ratePeriodInSecond",
            "seconds of a period (30)",
            "int",
            default=30,
        ),
    )


def publish_rate() -> tuple[Option, ...]:
    return (
        Option(
            ("-m", "--msg-publish-rate"),
            "field:publishThrottlingRateInMsg",
            "messages a second, -1: no limit",
            "int",
            default=-1,
        ),
        Option(
            ("-b", "--byte-publish-rate"),
            "field:publishThrottlingRateInByte",
            "bytes a second, -1: no limit",
            "int",
            default=-1,
        ),
    )


def delayed_delivery() -> tuple[Option, ...]:
    return (
        *either("field:active", "delayed delivery"),
        Option(("-t", "--time"), "field:tickTime", "precision: 1s", "millis", default=1000),
        Option(
            ("-md", "--maxDelay"),
            "field:maxDeliveryDelayInMillis",
            "longest delay, 0: no limit",
            "millis",
            default=0,
        ),
    )


def inactive_topics() -> tuple[Option, ...]:
    field = "field:deleteWhileInactive"
    return (
        Option(
            ("-e", "--enable-delete-while-inactive"),
            field,
            "delete them",
            "true",
            True,
            group="switch",
        ),
        Option(
            ("-d", "--disable-delete-while-inactive"),
            field,
            "keep them",
            "false",
            True,
            group="switch",
        ),
        Option(
            ("-t", "--max-inactive-duration"),
            "field:maxInactiveDurationSeconds",
            "inactive this long: 1h, 2d (seconds)",
            "seconds",
            required=True,
        ),
        Option(
            ("-m", "--delete-mode"),
            "field:inactiveTopicDeleteMode",
            "which ones are inactive",
            required=True,
            choices=(
                "delete_when_no_subscriptions",
                "delete_when_subscriptions_caught_up",
            ),
        ),
    )


def offload_policies() -> tuple[Option, ...]:
    return (
        Option(
            ("-d", "--driver"),
            "field:managedLedgerOffloadDriver",
            "aws-s3, filesystem, ...",
            required=True,
        ),
        Option(("-r", "--region"), "field:managedLedgerOffloadRegion", "region of the bucket"),
        Option(("-b", "--bucket"), "field:managedLedgerOffloadBucket", "bucket"),
        Option(("-e", "--endpoint"), "field:managedLedgerOffloadServiceEndpoint", "address"),
        Option(("-i", "--aws-id"), "field:s3ManagedLedgerOffloadCredentialId", "id of the key"),
        Option(
            ("-s", "--aws-secret"),
            "field:s3ManagedLedgerOffloadCredentialSecret",
            "the key (other users of this machine see it while the command runs)",
        ),
        Option(
            ("-oat", "--offloadAfterThreshold"),
            "field:managedLedgerOffloadThresholdInBytes",
            "above this size: 10M, 16G",
            "bytes",
        ),
        Option(
            ("-oats", "--offloadAfterThresholdInSeconds"),
            "field:managedLedgerOffloadThresholdInSeconds",
            "after this time: 2h, 3d",
            "seconds",
        ),
        Option(
            ("-oae", "--offloadAfterElapsed"),
            "field:managedLedgerOffloadDeletionLagInMillis",
            "delete the own copy so long after",
            "millis",
        ),
        Option(
            ("-orp", "--offloadedReadPriority"),
            "field:managedLedgerOffloadedReadPriority",
            "where both copies exist, read",
            choices=("tiered-storage-first", "bookkeeper-first"),
        ),
        Option(
            ("-mbs", "--maxBlockSize"),
            "field:managedLedgerOffloadMaxBlockSizeInBytes",
            "bytes of a block",
            "bytes",
        ),
        Option(
            ("-rbs", "--readBufferSize"),
            "field:managedLedgerOffloadReadBufferSizeInBytes",
            "bytes of a read",
            "bytes",
        ),
    )
