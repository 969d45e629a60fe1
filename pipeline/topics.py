"""From what a user names to partitions, and from bounds to points, by asking brokers."""

from collections.abc import Callable, Iterable
from contextlib import suppress

from magnetar.broker.protocol.topic_name import TopicName
from magnetar.pipeline.admin import Admin, NoSuchTopicError
from magnetar.pipeline.errors import OptionsError
from magnetar.pipeline.offsets import BEGINNING, END, Offset
from magnetar.pipeline.options import Bound, TopicChoice, choose_topics
from magnetar.pipeline.plan_reader import PlanReader
from magnetar.pipeline.session import plain_errors
from magnetar.pipeline.topic_snapshot import TopicSnapshot


@plain_errors()
def find_partitions(
    admin: Admin, choice: TopicChoice, may_be_gone: Callable[[str], bool] = lambda _: False
) -> list[str]:
    """Full names of the partitions (or topics without partitions) that are meant, sorted.

    Args:
        may_be_gone: asked of a topic, or a namespace of the pattern, that doesn't exist: True: it
            is left out.
    Raises:
        NoSuchTopicError: what was named doesn't exist. A pattern may match nothing.
        OptionsError: a partition that was assigned doesn't exist.
        SegmentsUnavailableError: no broker answers.
    """

    found: set[str] = set()

    def add(name: str, partitions_of: Callable[[str], Iterable[str]]) -> None:
        try:
            found.update(partitions_of(name))
        except NoSuchTopicError:
            if not may_be_gone(name):
                raise

    for namespace in choice.namespaces:
        add(namespace, lambda each: _matching(admin, choice.pattern, each))
    for name in choice.names:
        add(name, lambda each: _partitions_of(admin, each))
    for name in choice.assigned:
        add(name, lambda each: _assigned_of(admin, each, choice.assigned[each]))
    return sorted(found)


def is_part_of(partition: str, name: str) -> bool:
    """Whether a partition is one of a topic, or of a namespace (``tenant/namespace``)."""
    topic = TopicName.parse(partition)
    return name in (partition, str(topic.base), topic.namespace)


def _partitions_of(admin: Admin, name: str) -> list[str]:
    topic = TopicName.parse(name)
    if topic.is_partition:
        return [name]
    count = admin.partitions(name)
    return [str(topic.partition(index)) for index in range(count)] if count else [name]


def _assigned_of(admin: Admin, name: str, numbers: tuple[int, ...]) -> list[str]:
    count = admin.partitions(name)
    if not numbers and not count:
        return [name]
    for number in numbers:
        if number >= count:
            raise OptionsError(f"option assign: {name} has {count} partitions, no {number}")
    return [str(TopicName.parse(name).partition(number)) for number in numbers]


def _matching(admin: Admin, pattern: str, namespace: str) -> set[str]:
    partitioned, topics = admin.topics(namespace)
    names = {each for each in partitioned if TopicName.parse(each).is_persistent}
    for each in topics:
        topic = TopicName.parse(each)
        if str(topic.base) not in names and topic.is_persistent and not topic.is_system:
            names.add(each)
    found: set[str] = set()
    for name in choose_topics(pattern, sorted(names)):
        with suppress(NoSuchTopicError):  # it was deleted just now
            found.update(_partitions_of(admin, name))
    return found


def resolve_bound(
    admin: Admin, bound: Bound, snapshot: TopicSnapshot, reader: PlanReader | None = None
) -> Offset:
    """Where a bound is in one partition; points that were given stay as they are, even where
    nothing is stored.

    Args:
        reader: needed where the snapshot has a compacted part.
    Raises:
        DataLossError: the compacted ledger is gone.
        OptionsError: the bound doesn't name this partition.
        NoSuchTopicError, SegmentsUnavailableError.
    """
    value = bound.of(snapshot.topic)
    if isinstance(value, int):
        point = snapshot.clamp(max(admin.offset_at(snapshot.topic, value), snapshot.first))
        if snapshot.compacted is not None and reader is not None and point == snapshot.first:
            # Messages of that time may have been trimmed, and be in the compacted ledger.
            point = min(point, reader.published_at(snapshot, value))
        return point
    if value == BEGINNING:
        return snapshot.begin
    if value == END:
        return snapshot.end
    ledger = snapshot.find(value.ledger_id)
    if ledger is not None and value.entry_id > ledger.entries:
        return Offset(ledger.ledger_id, ledger.entries)  # behind its last message
    return value


def snapshot_of(admin: Admin, partition: str, *, compacted: bool = False) -> TopicSnapshot | None:
    """Where a partition's messages are; None: it was never used, or deleted."""
    try:
        return admin.segments(partition, compacted=compacted)
    except NoSuchTopicError:
        if TopicName.parse(partition).is_partition:
            return None
        raise
