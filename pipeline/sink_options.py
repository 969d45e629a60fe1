"""The options of the sink, checked before Spark contacts any server. Pure.

Names follow Spark's Kafka sink and Pulsar's clients where they have the same; options and columns
are case-insensitive, as everywhere in Spark. docs/guides/spark.md has the tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.protocol.topic_name import InvalidTopicNameError, TopicName
from magnetar.pipeline.commit_log import MARGIN_MS
from magnetar.pipeline.entry_plan import HASHES
from magnetar.pipeline.errors import OptionsError
from magnetar.pipeline.options import client_access, flag, positive

EFFECTIVELY_ONCE: Final = "effectively-once"
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
COMPRESSIONS: Final = ("none", "lz4", "zlib", "zstd", "snappy")
BATCH_ID_MAX: Final = 2**31 - 1
"""Batch ids are the upper half of sequence ids, which are signed and have 64 bits."""

_MIB: Final = 1024 * 1024
_ENTRY_BYTES_MAX: Final = 4 * _MIB  # brokers take 5 MiB unless told otherwise
_TEXT: Final = ("string", "binary")
_WHOLE: Final = ("bigint", "int", "smallint", "tinyint")

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "value": _TEXT,
    "key": _TEXT,
    "topic": ("string",),
    "partition": _WHOLE,
    "properties": ("map<string,string>",),
    "eventTime": ("timestamp",),
    "deliverAt": ("timestamp",),
    "deliverAfter": _WHOLE,
    "orderingKey": _TEXT,
}
"""Column -> Spark's types that it may have."""
_ALIASES: Final = {"headers": "properties"}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of batch and streaming sinks; Spark pickles them to its tasks.

    Attributes:
        topic: full name; "": each row names its own.
        producer_name: "": the query's id, or a new one for each batch job.
        batch_id: of a batch job that repeats under one producer name; a stream has its own.
        fail_on_data_loss: False: a topic that keeps nothing of what is written is warned of only.
        effectively_once: by de-duplication: a task that is tried again goes on where it stopped.
        exactly_once: by transactions: what isn't of the batch that is committed doesn't count.
            With neither, a task that is tried again sends its rows again.
        commit_topic: where a query records which transactions make a batch; "": made of the topic's
            namespace and the query's name.
        transaction_timeout_ms: from a task's first row until its batch is committed.
        entry_bytes_max: of the rows of one entry before compression.
        pending_messages_max, pending_bytes_max: of a task, of what isn't stored yet.
        send_timeout_ms: after which a message that isn't answered fails the task.
        name_wait_ms: how long a task waits for an earlier attempt that still holds its name.
    """

    service_url: str
    topic: str = ""
    producer_name: str = ""
    batch_id: int = 0
    effectively_once: bool = True
    exactly_once: bool = False
    commit_topic: str = ""
    transaction_timeout_ms: int = 3_600_000
    fail_on_data_loss: bool = True
    compression: str = "none"
    messages_max: int = 1000
    entry_bytes_max: int = _MIB
    pending_messages_max: int = 50_000
    pending_bytes_max: int = 64 * _MIB
    send_timeout_ms: int = 30_000
    name_wait_ms: int = 120_000
    hashing: str = "JavaStringHash"
    access: ClientAuth = field(default_factory=ClientAuth)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check the options of a sink.

    Args:
        options: as Spark gives them, a case-insensitive mapping.
    Raises:
        OptionsError: names the option.
    """
    lowered = {name.lower(): text.strip() for name, text in options.items()}
    guarantee = _one_of(
        lowered, "deliveryGuarantee", (EFFECTIVELY_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE)
    )
    topic = _topic(lowered, "topic", guarantee != AT_LEAST_ONCE)
    if "batchid" in lowered and not lowered.get("producername"):
        raise OptionsError("option batchId counts the batches of a producerName: give that, too")
    parsed = SinkOptions(
        service_url=_service_url(lowered),
        topic=topic,
        producer_name=lowered.get("producername", ""),
        batch_id=_batch_id(lowered),
        effectively_once=guarantee == EFFECTIVELY_ONCE,
        exactly_once=guarantee == EXACTLY_ONCE,
        commit_topic=_topic(lowered, "commitTopic", True),
        transaction_timeout_ms=positive(lowered, "transactionTimeoutMs", 3_600_000),
        fail_on_data_loss=flag(lowered, "failOnDataLoss", True),
        compression=_one_of(lowered, "compression", COMPRESSIONS),
        messages_max=positive(lowered, "batchingMaxMessages", 1000),
        entry_bytes_max=positive(lowered, "batchingMaxBytes", _MIB),
        pending_messages_max=positive(lowered, "maxPendingMessages", 50_000),
        pending_bytes_max=positive(lowered, "maxPendingBytes", 64 * _MIB),
        send_timeout_ms=positive(lowered, "sendTimeoutMs", 30_000),
        name_wait_ms=positive(lowered, "producerNameTimeoutMs", 120_000),
        hashing=_one_of(lowered, "hashingScheme", tuple(HASHES)),
        access=client_access(lowered),
    )
    if parsed.exactly_once:
        if not topic and not parsed.commit_topic:
            raise OptionsError(
                "option commitTopic is needed where rows name their topics: with "
                f"deliveryGuarantee={EXACTLY_ONCE} the sink records there what a batch consists of"
            )
        if parsed.transaction_timeout_ms <= 2 * MARGIN_MS:
            raise OptionsError(f"option transactionTimeoutMs: more than {2 * MARGIN_MS}")
    if parsed.entry_bytes_max > _ENTRY_BYTES_MAX:
        raise OptionsError(f"option batchingMaxBytes: at most {_ENTRY_BYTES_MAX}")
    if parsed.entry_bytes_max > parsed.pending_bytes_max:
        raise OptionsError("batchingMaxBytes is above maxPendingBytes")
    return parsed


def find_columns(fields: Sequence[tuple[str, str]], topic: str) -> dict[str, int]:
    """Which column of the data is what.

    Args:
        fields: name and Spark's type (``simpleString``) of each column.
        topic: the option; "": the data must have a column for it.

    Returns:
        Index by the names of `COLUMNS`; ``value`` is always there.

    Raises:
        OptionsError: a column is unknown, of another type, there twice, or missing.
    """
    names = {name.lower(): name for name in COLUMNS} | _ALIASES
    found: dict[str, int] = {}
    for index, (name, data_type) in enumerate(fields):
        column = names.get(name.lower())
        if column is None:
            raise OptionsError(
                f"column {name}: the sink has no such column; possible are {', '.join(COLUMNS)} "
                "and headers for properties. select(...) those that are to be written"
            )
        if column in found:
            raise OptionsError(f"column {column} is there twice")
        if data_type not in COLUMNS[column]:
            raise OptionsError(
                f"column {name} is {data_type}, but must be {' or '.join(COLUMNS[column])}"
            )
        found[column] = index
    if "value" not in found:
        raise OptionsError("column value is missing: it becomes the messages' payload")
    if "topic" not in found and not topic:
        raise OptionsError("no topic: give the option topic, or a column topic")
    return found


def _one_of(options: Mapping[str, str], name: str, possible: Sequence[str]) -> str:
    """The value as ``possible`` spells it; the first is the default."""
    text = options.get(name.lower(), possible[0])
    for each in possible:
        if each.lower() == text.lower():
            return each
    raise OptionsError(f"option {name}: {', '.join(possible)} are possible, not {text!r}")


def _service_url(options: Mapping[str, str]) -> str:
    url = options.get("serviceurl", "")
    if not url.startswith(("pulsar://", "pulsar+ssl://")):
        told = f", not {url!r}" if url else ""
        raise OptionsError(f"option serviceUrl is needed: pulsar://broker:6650{told}")
    return url


def _topic(options: Mapping[str, str], option: str, is_stored: bool) -> str:
    text = options.get(option.lower(), "")
    return full_topic_name(text, is_stored, f"option {option}") if text else ""


def commit_topic_of(options: SinkOptions, name: str) -> TopicName:
    """Where the query or job with this name records its commits."""
    if options.commit_topic:
        return TopicName.parse(options.commit_topic)
    namespace = TopicName.parse(options.topic).namespace
    return TopicName.parse(f"persistent://{namespace}/spark-commits-{quote(name, safe='')}")


def full_topic_name(text: str, is_stored: bool, where: str) -> str:
    """
    Raises:
        OptionsError: no topic's name, or a topic that can't be written to as asked.
    """
    try:
        name = TopicName.parse(text)
    except InvalidTopicNameError as error:
        raise OptionsError(f"{where}: {error}") from error
    if is_stored and not name.is_persistent:
        raise OptionsError(
            f"{where}: {name} stores nothing, so nobody can tell what was sent before: "
            f"deliveryGuarantee={AT_LEAST_ONCE} is possible"
        )
    return str(name)


def _batch_id(options: Mapping[str, str]) -> int:
    text = options.get("batchid", "0")
    if not text.isdecimal() or int(text) > BATCH_ID_MAX:
        raise OptionsError(f"option batchId: a whole number up to {BATCH_ID_MAX}, not {text!r}")
    return int(text)
