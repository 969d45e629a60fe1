"""The producers of one Spark task: rows in, messages stored in their topics, each one once.

Works with the official client, on its public names only. What makes a task repeatable: every
attempt uses the same producer name on a topic partition, numbers the rows it sends there in the
same way, and so finds out what an earlier attempt has stored already (``last_sequence_id``).

An entry is sent when the one before it in the same partition is stored. Brokers keep of a producer
no more than its highest sequence id: had a later entry been stored where an earlier one failed (too
large, timed out, refused), the next attempt would take the earlier one's rows for stored.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.pipeline.commit_log import TaskTransaction
from magnetar.pipeline.entry_plan import HASHES, EntryPlan, choose_partition
from magnetar.pipeline.errors import OptionsError, PipelineError, WriteError
from magnetar.pipeline.sink_options import BATCH_ID_MAX, SinkOptions, full_topic_name

_log = logging.getLogger(__name__)

_ROWS_MAX: Final = 2**32 - 1
_BUSY_PAUSE_S: Final = (0.05, 2.0)
_NEVER_MS: Final = 7 * 86_400_000
_FLUSHES_AT_ONCE: Final = 16
_OPERATION_S: Final = 30
"""Until the client gives up what isn't a message, and wrong credentials, too."""
_CLOSING_S: Final = 5.0
_GRACE_S: Final = 5.0

_unclosed: Final[list[Any]] = []
"""Clients whose end would be ``shutdown()``, were they collected; their process ends soon."""


@dataclass(slots=True)
class RowMessage:
    """One row.

    Attributes:
        value: None: a tombstone.
        key, ordering_key: "" is as good as None.
        partition: None: by key, or in turn.
        event_ms, deliver_ms: since the epoch; None: none.
        deliver_after_ms: from when it is sent.
        size: bytes of value, keys and properties.
    """

    value: bytes | None
    key: str | None = None
    topic: str | None = None
    partition: int | None = None
    properties: dict[str, str] | None = None
    event_ms: int | None = None
    deliver_ms: int | None = None
    deliver_after_ms: int | None = None
    ordering_key: str | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class TaskRun:
    """The query and batch of a task; the same in all of its attempts.

    Attributes:
        name: of the query or job; a producer's name is this one and the task's number.
        batch_id: of a stream; batches after it have higher sequence ids.
    """

    name: str
    task: int
    batch_id: int = 0

    @property
    def producer_name(self) -> str:
        return f"{self.name}-{self.task}"


@dataclass(frozen=True, slots=True)
class TaskWriteResult:
    """Counts of a task's rows: an earlier attempt stored the ``skipped`` ones."""

    sent: int
    skipped: int
    transaction: TaskTransaction | None = None


class _Receipts:
    """Counts what isn't answered yet, and keeps the first failure; called by the client's threads.

    Their calls must not raise: the process would end.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_awaited = False
        self._count = self._bytes = 0
        self.failure: tuple[str, int, str] | None = None
        """Topic partition, number of the row in the task, reason."""

    def expect(self, size: int) -> None:
        with self._changed:
            self._count += 1
            self._bytes += size

    def on_receipt(self, place: str, row: int, size: int, result: Any, _id: Any) -> None:
        with self._changed:
            self._count -= 1
            self._bytes -= size
            reason = str(result).rpartition(".")[2]
            if reason != "Ok" and self.failure is None:
                self.failure = place, row, reason
            if self._is_awaited:
                self._changed.notify_all()

    def wait_for(self, count_max: int, bytes_max: int, quiet_s: float) -> None:
        """Until so little is unanswered, or something failed.

        Raises:
            WriteError: something failed, or nothing was answered for so long.
        """
        with self._changed:
            self._is_awaited = True
            while (self._count > count_max or self._bytes > bytes_max) and self.failure is None:
                before = self._count
                if not self._changed.wait(quiet_s) and self._count == before:
                    raise WriteError(f"{self._count} messages are unanswered for {quiet_s:.0f} s")
            self._is_awaited = False
        self.check()

    def check(self) -> None:
        """Raises WriteError: a message wasn't stored."""
        if self.failure is not None:
            place, row, reason = self.failure
            raise WriteError(f"{place}: row {row} of the task was not stored: {reason}")


@dataclass(slots=True)
class _Target:
    """One topic partition that the task writes to."""

    number: int
    place: str
    producer: Any = None  # opened with the first row
    count: int = 0  # rows so far, sent or not
    last_stored: int = -1  # sequence id, when the producer was opened
    is_open: bool = False  # something was sent since the last flush
    has_batch: bool = False  # the client may still hold the last row, to send it with others


class TaskProducers:
    """Sends the rows of one attempt of a task, in order. Not for several threads."""

    def __init__(
        self,
        client: Any,
        options: SinkOptions,
        run: TaskRun,
        on_topic: Callable[[str], None] = lambda _topic: None,
    ) -> None:
        """
        Args:
            client: of `open_client`; this object closes it.
            on_topic: called with each topic before something is sent to it; may raise.
        Raises:
            WriteError: more batches than sequence ids have room for.
        """
        if not 0 <= run.batch_id <= BATCH_ID_MAX:
            raise WriteError(f"batch {run.batch_id}: sequence ids end at batch {BATCH_ID_MAX}")
        self._client, self._options, self._run, self._on_topic = client, options, run, on_topic
        self._hashed = HASHES[options.hashing]
        self._first_id = run.batch_id << 32  # ids begin one above: clients take 0 for "none given"
        self._plan = EntryPlan(
            options.messages_max,
            options.entry_bytes_max,
            options.pending_messages_max,
            options.pending_bytes_max,
        )
        self._receipts = _Receipts()
        self._flushing = ThreadPoolExecutor(_FLUSHES_AT_ONCE, "flushing")
        # The client's own clock begins anew with each connection; ours is for those that don't last
        self._patience_s = options.send_timeout_ms / 1000 + _GRACE_S
        self._topics: dict[str, list[_Target]] = {}
        self._targets: list[_Target] = []
        self._rows = self._sent = self._skipped = 0

    def send(self, message: RowMessage) -> None:
        """Take the next row; it may be stored later than this returns.

        Raises:
            WriteError: it can't be sent, or an earlier one wasn't stored.
            OptionsError: it names a topic or partition that can't be.
        """
        options, row = self._options, self._rows
        self._rows += 1
        topic = options.topic or message.topic
        if not topic:
            raise WriteError(f"row {row} of the task names no topic: column topic is null")
        targets = self._topics.get(topic) or self._open_topic(topic)
        # Tasks begin with different partitions, so that short ones don't all meet in the first.
        turn = row + self._run.task
        try:
            index = choose_partition(
                message.key, message.partition, turn, len(targets), self._hashed
            )
        except WriteError as error:
            raise WriteError(f"{topic}: row {row} of the task: {error}") from error
        target = targets[index]
        if target.producer is None:
            self._open_producer(target)
        if options.effectively_once:
            self._send_once(target, message, row)
        else:
            self._receipts.wait_for(
                options.pending_messages_max - 1,
                max(0, options.pending_bytes_max - message.size),
                self._patience_s,
            )
            delayed = message.deliver_ms is not None or message.deliver_after_ms is not None
            if delayed and target.has_batch:
                # It would pass its batch by, which a topic that drops repeated messages then drops.
                self._flush((target,))
            target.has_batch = not delayed
            self._hand_over(target, message, row, None)

    def finish(self) -> TaskWriteResult:
        """All rows are stored; ends the producers, so that their names are free.

        Raises:
            WriteError: one isn't.
        """
        self._flush(self._targets)
        self._receipts.wait_for(0, 0, self._patience_s)
        self._close()
        return TaskWriteResult(self._sent, self._skipped)

    def abandon(self) -> None:
        """End without sending anything that is still here, whatever the brokers do."""
        ending = threading.Thread(target=self._close, name="closing", daemon=True)
        ending.start()
        ending.join(_CLOSING_S)

    def _close(self) -> None:
        # Not shutdown(): it would wait for the client's threads, which wait for Python's lock.
        try:
            self._client.close()
        except Exception as error:  # a broker misses the name sooner or later
            _log.warning("producers of %s did not end in order: %s", self._run.name, error)
            _unclosed.append(self._client)
        self._flushing.shutdown(wait=False)

    # --- rows

    def _send_once(self, target: _Target, message: RowMessage, row: int) -> None:
        delayed = message.deliver_ms is not None or message.deliver_after_ms is not None
        before, is_end = self._plan.place(target.number, message.size, delayed)
        if before:
            self._flush(self._targets[number] for number in before)
        target.count += 1
        if target.count > _ROWS_MAX:
            raise WriteError(f"{target.place}: more than {_ROWS_MAX} rows of one task and batch")
        sequence_id = self._first_id + target.count
        if sequence_id > target.last_stored:
            self._hand_over(target, message, row, sequence_id)
        else:
            self._skipped += 1
        if is_end:
            self._flush((target,))

    def _hand_over(
        self, target: _Target, message: RowMessage, row: int, sequence_id: int | None
    ) -> None:
        self._receipts.check()
        self._receipts.expect(message.size)
        after_ms = message.deliver_after_ms
        try:
            target.producer.send_async(
                message.value,
                partial(self._receipts.on_receipt, target.place, row, message.size),
                properties=message.properties,
                partition_key=message.key,
                ordering_key=message.ordering_key,
                sequence_id=sequence_id,
                event_timestamp=message.event_ms,
                deliver_at=message.deliver_ms,
                deliver_after=None if after_ms is None else timedelta(milliseconds=after_ms),
            )
        except Exception as error:  # the client raises errors of several bases
            raise WriteError(f"{target.place}: row {row} of the task: {error}") from error
        target.is_open = True
        self._sent += 1

    def _flush(self, targets: Iterable[_Target]) -> None:
        """Wait until all that was handed over to these is stored. Raises WriteError."""
        flushes = []
        for target in targets:
            if target.is_open:
                target.is_open = False
                flushes.append((target, self._flushing.submit(target.producer.flush)))
        for target, flush in flushes:
            try:
                flush.result(self._patience_s)
            except TimeoutError as error:
                raise WriteError(
                    f"{target.place}: what was sent isn't answered for {self._patience_s:.1f} s. "
                    "A broker that refuses an entry (maxMessageSize of the topic, for one) does "
                    "it again and again, without telling the client why"
                ) from error
            except Exception as error:  # the client raises errors of several bases
                self._receipts.check()  # knows more
                raise WriteError(f"{target.place}: {error}") from error
        self._receipts.check()

    # --- topics and producers

    def _open_topic(self, topic: str) -> list[_Target]:
        name = full_topic_name(topic, self._options.effectively_once, "column topic")
        if (targets := self._topics.get(name)) is None:
            try:
                places = list(self._client.get_topic_partitions(name))
            except Exception as error:  # the client raises errors of several bases
                raise WriteError(
                    f"{name}: {self._options.service_url} doesn't tell its partitions: {error}; "
                    "is it reachable, and are credentials and trusted certificates right?"
                ) from error
            places.sort(key=lambda place: TopicName.parse(place).partition_index)
            first = len(self._targets)
            targets = [_Target(first + index, place) for index, place in enumerate(places)]
            self._targets += targets
            self._topics[name] = targets
        self._topics[topic] = targets
        return targets

    def _open_producer(self, target: _Target) -> None:
        options, run = self._options, self._run
        settings = _settings(options)
        if options.effectively_once:
            settings["producer_name"] = run.producer_name
        target.producer = self._wait_for_producer(target.place, settings)
        self._on_topic(str(TopicName.parse(target.place).base))
        if not options.effectively_once:
            return
        target.last_stored = target.producer.last_sequence_id()
        if target.last_stored > self._first_id + _ROWS_MAX:
            raise WriteError(
                f"{target.place}: producer {run.producer_name} has written batch "
                f"{target.last_stored >> 32} already, and this is batch {run.batch_id}: its rows "
                "would be taken for repeated ones. Was a checkpoint deleted, or do two queries "
                "share a producerName? Choose another producerName"
            )
        if target.last_stored > self._first_id:
            _log.info("%s: goes on behind id %d", target.place, target.last_stored)

    def _wait_for_producer(self, place: str, settings: Mapping[str, Any]) -> Any:
        """A producer; an earlier attempt may hold its name until the broker misses it."""
        import pulsar

        wait_s = self._options.name_wait_ms / 1000
        deadline_s = time.monotonic() + wait_s
        pause_s, pause_max_s = _BUSY_PAUSE_S
        while True:
            try:
                return self._client.create_producer(place, **settings)
            except pulsar.ProducerBusy as error:
                if time.monotonic() + pause_s > deadline_s:
                    raise WriteError(
                        f"{place}: the producer name {self._run.producer_name} is in use for more "
                        f"than {wait_s:.0f} s (producerNameTimeoutMs): by an attempt of the same "
                        "task that still runs, or by another query with this producerName"
                    ) from error
            except Exception as error:  # the client raises errors of several bases
                raise WriteError(f"{place}: no producer: {error}") from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, pause_max_s)


def _settings(options: SinkOptions) -> dict[str, Any]:
    """The settings of every producer."""
    import pulsar

    compression = {
        "none": pulsar.CompressionType.NONE,
        "lz4": pulsar.CompressionType.LZ4,
        "zlib": pulsar.CompressionType.ZLib,
        "zstd": pulsar.CompressionType.ZSTD,
        "snappy": pulsar.CompressionType.SNAPPY,
    }
    settings: dict[str, Any] = {
        "compression_type": compression[options.compression],
        "send_timeout_millis": options.send_timeout_ms,
        "batching_enabled": options.messages_max > 1,
        # One above what is ever pending: a full queue would be an error.
        "max_pending_messages": options.pending_messages_max + options.messages_max + 1,
    }
    if options.messages_max == 1:
        return settings
    if not options.effectively_once:
        settings["batching_max_messages"] = options.messages_max
        settings["batching_max_allowed_size_in_bytes"] = options.entry_bytes_max
    else:
        # `EntryPlan` alone says where entries end; the client's own limits are out of its reach.
        settings["batching_max_messages"] = options.messages_max + 1
        settings["batching_max_allowed_size_in_bytes"] = options.entry_bytes_max + 1
        settings["batching_max_publish_delay_ms"] = _NEVER_MS
    return settings


def open_client(options: SinkOptions) -> Any:
    """A client of the official package for one task.

    Raises:
        PipelineError: the package isn't installed.
        OptionsError: credentials or certificates can't be used.
    """
    try:
        import pulsar
    except ImportError as error:
        raise PipelineError(
            "the sink needs the package pulsar-client on all machines that run tasks: "
            f"Magnetar's extra [pipeline] has it ({error})"
        ) from error
    access = options.access
    try:
        return pulsar.Client(
            options.service_url,
            authentication=_authentication(access),
            operation_timeout_seconds=_OPERATION_S,
            tls_trust_certs_file_path=access.trusted or None,
            tls_allow_insecure_connection=access.insecure,
            tls_validate_hostname=not access.insecure,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
    except ClientAuthError as error:
        raise OptionsError(str(error).replace("--auth-params", "option authParams")) from error
    except (ValueError, RuntimeError, pulsar.PulsarException) as error:
        raise OptionsError(f"no client of {options.service_url}: {error}") from error


class _Tokens:
    """The token of each connection; files are read and tokens fetched anew, as they expire."""

    def __init__(self, access: ClientAuth) -> None:
        """Raises ClientAuthError: there is none."""
        self._access = access
        self._last = access.data().decode()

    def __call__(self) -> str:
        try:
            self._last = self._access.data().decode()
        except ClientAuthError as error:
            # An error in the client's thread would end the process.
            _log.warning("the token before is used again: %s", error)
        return self._last


def _authentication(access: ClientAuth) -> Any:
    """The client's form of the credentials. Raises ClientAuthError."""
    import pulsar

    match access.method:
        case "token":
            return pulsar.AuthenticationToken(_Tokens(access))
        case "basic":
            user, _, password = access.data().decode().partition(":")
            return pulsar.AuthenticationBasic(user, password)
        case "tls":
            certificate, key = access.certificate_files()
            return pulsar.AuthenticationTLS(certificate, key)
    return None
