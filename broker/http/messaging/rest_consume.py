"""REST consume (docs/guides/rest-consume.md): sessions, long poll, ack by token, leases.

A session is one consumer. Its credit is what clients asked for, its unacknowledged messages are
bounded, each has a lease, and a session nobody uses is closed: nothing is held for ever.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from base64 import b64encode
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.messaging.consumed_message import ConsumedMessage, MessageKey, parse_key
from magnetar.broker.http.messaging.internal_consumer import (
    ACKED,
    UNACKED,
    UNKNOWN,
    InternalConsumer,
)
from magnetar.broker.http.messaging.value_schemas import DecodedValue
from magnetar.broker.protocol.messages import Message, MessageIdError
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.broker.schema.definition import parse_version
from magnetar.broker.subscription.consumer import SubscribeRequest
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.position import EARLIEST, LATEST

if TYPE_CHECKING:
    from magnetar.broker.service.access_control import Right
    from magnetar.broker.service.broker_service import BrokerService

logger = logging.getLogger(__name__)

UNACKED_MAX = 10_000  # messages a session may hold unacknowledged
MESSAGES_MAX = 1_000  # of one answer
CALLERS_MAX = 100  # of one session, by role
ANSWER_BYTES_MAX = 8 * 1024 * 1024  # of one answer; at least one message
WAIT_MS_MAX = 60_000
_PIECE_CHARACTERS = 1024 * 1024
UNKNOWN_SIZE = -1
"""Batch size in the key of a message id given as text."""
_MESSAGE_ID = re.compile(r"([0-9]{1,19}):([0-9]{1,19}):(-1|[0-9]{1,10})(?::([0-9]{1,9}))?")
SessionKey = tuple[str, str, str]
"""(topic, subscription, consumer name)."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a session's consumer subscribes; only the first call of a session decides."""

    sub_type: int
    earliest: bool
    lease_ms: int  # an unacknowledged message is delivered again after it


@dataclass(frozen=True, slots=True)
class AckResults:
    """The outcome of a call for each message that it names: their places in its list."""

    done: list[int]
    already: list[int]
    """They were acknowledged before, or are named twice."""
    unknown: list[int]
    """There are no such messages, or not any more."""


class RestSession:
    """One consumer, used by any number of HTTP calls."""

    def __init__(
        self,
        owner: RestSessions,
        key: SessionKey,
        options: SessionOptions,
        service: BrokerService,
        opener: str,
    ) -> None:
        self.opener = opener
        self.session_id = secrets.token_urlsafe(12)
        self.key = key
        self.options = options
        self._now_s = service.monotonic_s
        self.last_used_s = self._now_s()
        self.closed = False
        self.rights: set[Right] = set()
        """Of those who have used it, while authorization is on; it ends with the first one lost."""
        self._owner = owner
        self._arrived = asyncio.Event()
        self._unacked: OrderedDict[MessageKey, float] = OrderedDict()  # by lease end
        self._polls = 0
        self.consumer_feed = InternalConsumer(
            service, self._arrived.set, self.close, service.config.rest_consumer_buffer_bytes
        )

    async def open(self, name: TopicName, remote: str) -> None:
        """Subscribe. Raises BrokerError."""
        options = self.options
        request = SubscribeRequest(
            subscription=self.key[1],
            sub_type=options.sub_type,
            consumer_name=self.key[2] or f"rest-{self.session_id}",
            initial_position=EARLIEST if options.earliest else LATEST,
        )
        await self.consumer_feed.open((name,), request, remote=remote, client_version="REST")

    def used_with(self, right: Right) -> None:
        """A caller with this right, which was checked, goes on to use the session.

        Raises:
            ApiError: 429 too many callers share it; 410 the right is gone already.
        """
        if right in self.rights:
            return
        if len(self.rights) >= CALLERS_MAX:
            raise ApiError(429, f"{CALLERS_MAX} callers share this session")
        self.rights.add(right)
        self._owner.watch(self)
        if self.closed:
            raise ApiError(410, "The session was closed: ask again")

    def revoke(self) -> None:
        """Somebody who uses it may not consume any more; others open it again."""
        self.close()

    @property
    def busy(self) -> bool:
        """A long poll is waiting: the session isn't idle, however long that takes."""
        return self._polls > 0

    async def poll(self, count_max: int, wait_ms: int) -> list[ConsumedMessage]:
        """Up to that many messages; waits for the first one, never for more.

        Raises:
            ApiError: 429 too much is unacknowledged; 410 the topic was closed meanwhile.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        self.last_used_s = self._now_s()
        room = UNACKED_MAX - len(self._unacked)
        if room <= 0:
            raise ApiError(429, f"{UNACKED_MAX} messages are unacknowledged in this session")
        count_max = min(count_max, room)
        consumer_feed = self.consumer_feed
        if (missing := count_max - consumer_feed.credit) > 0:
            consumer_feed.add_credit(missing)
        self._polls += 1
        try:
            while not consumer_feed.ready:
                self._arrived.clear()
                left = deadline - loop.time()
                if self.closed or left <= 0:
                    break
                try:
                    async with asyncio.timeout(left):
                        await self._arrived.wait()
                except TimeoutError:
                    break
        finally:
            self._polls -= 1
            self.last_used_s = self._now_s()
        if self.closed:
            raise ApiError(410, "The topic was closed or moved: ask again")
        return self._take(count_max)

    async def stream(
        self, window: int, *, alive_s: float, auto_ack: bool
    ) -> AsyncGenerator[list[ConsumedMessage], None]:
        """Messages as they come, at most ``window`` of them unacknowledged in this session.

        Args:
            alive_s: an empty list is yielded when nothing else was for so long.
            auto_ack: messages are acknowledged once the caller comes back for the next ones.
        """
        consumer_feed = self.consumer_feed
        self._polls += 1
        try:
            while not self.closed:
                room = min(window, UNACKED_MAX) - len(self._unacked)
                if (missing := room - consumer_feed.credit) > 0:
                    consumer_feed.add_credit(missing)
                if room > 0 and consumer_feed.ready and consumer_feed.credit > 0:
                    deliveries = self._take(min(room, MESSAGES_MAX))
                    try:
                        yield deliveries
                    except BaseException:  # the client is gone and has not got these
                        if not self.closed:
                            self.give_back(deliveries)
                        raise
                    if auto_ack:
                        self.acknowledge_delivered(deliveries)
                    continue
                self._arrived.clear()
                try:
                    async with asyncio.timeout(alive_s):
                        await self._arrived.wait()
                except TimeoutError:
                    yield []
        finally:
            self._polls -= 1
            self.last_used_s = self._now_s()

    def acknowledge_delivered(self, deliveries: list[ConsumedMessage]) -> None:
        """These are done: their client has them and asked for no more than that."""
        if self.closed:
            return
        for delivery in deliveries:
            self._unacked.pop(delivery.key, None)
            self.consumer_feed.acknowledge(delivery.key)

    def _take(self, count_max: int) -> list[ConsumedMessage]:
        consumer_feed, ready, size, count = self.consumer_feed, self.consumer_feed.ready, 0, 0
        for delivery in ready:
            size += len(delivery.message.payload)
            if count == count_max or (count and size > ANSWER_BYTES_MAX):
                break
            count += 1
        deliveries = consumer_feed.take(count)
        consumer_feed.release(deliveries)
        lease_end = self._now_s() + self.options.lease_ms / 1000
        for delivery in deliveries:
            self._unacked[delivery.key] = lease_end
            self._unacked.move_to_end(delivery.key)
        return deliveries

    def acknowledge(self, keys: list[MessageKey], *, negative: bool) -> AckResults:
        """Acknowledge, or give back for delivery to anyone, what isn't acknowledged yet.

        Raises:
            ApiError: 400 the topic has no such partition, or a message id of a batch is not of this
                session; nothing is done then.
        """
        self.last_used_s = self._now_s()
        self.consumer_feed.flush()  # of earlier calls in this tick
        settled = AckResults([], [], [])
        done: dict[MessageKey, None] = {}  # in the order given
        sizes: dict[MessageKey, int] | None = None
        for number, key in enumerate(keys):
            state = self._state_of(key)
            if state is UNACKED and key[4] == UNKNOWN_SIZE:
                if sizes is None:
                    sizes = {(*known[:4], UNKNOWN_SIZE): known[4] for known in self._unacked}
                key = _with_batch_size(key, sizes)
            if state is UNKNOWN:
                settled.unknown.append(number)
            elif state is ACKED or key in done:
                settled.already.append(number)
            else:
                settled.done.append(number)
                done[key] = None
        for key in done:
            self._unacked.pop(key, None)
        if negative:
            self.consumer_feed.redeliver(list(done))
        else:
            for key in done:
                self.consumer_feed.acknowledge(key)
        self._arrived.set()  # a stream may go on
        return settled

    def _state_of(self, key: MessageKey) -> str:
        """Raises ApiError: 400."""
        if key in self._unacked:
            return UNACKED  # also on a topic that keeps nothing
        try:
            return self.consumer_feed.state_of(key)
        except KeyError as error:
            raise ApiError(400, f"The topic has no partition {error}") from error

    async def stored(self) -> None:
        """Returns when acknowledgements are durable. Raises ApiError: 503."""
        try:
            await self.consumer_feed.stored()
        except ManagedLedgerError as error:
            raise ApiError(
                503, f"Acknowledged, but not stored, so it may come again: {error}"
            ) from error

    def give_back(self, deliveries: list[ConsumedMessage]) -> None:
        """These were taken and can't be handed over."""
        keys = [delivery.key for delivery in deliveries]
        for key in keys:
            self._unacked.pop(key, None)
        self.consumer_feed.redeliver(keys)

    def expire_leases(self, now_s: float) -> None:
        """Give back what wasn't acknowledged in time."""
        due: list[MessageKey] = []
        while self._unacked and next(iter(self._unacked.values())) <= now_s:
            due.append(self._unacked.popitem(last=False)[0])
        if due:
            self.consumer_feed.redeliver(due)
            self._arrived.set()

    def close(self) -> None:
        """Leave; unacknowledged messages are delivered to others at once."""
        if not self.closed:
            self.closed = True
            self._owner.forget(self)
            self.consumer_feed.close()
            self._arrived.set()


def _with_batch_size(key: MessageKey, sizes: dict[MessageKey, int]) -> MessageKey:
    """Message ids don't tell how large their batch is, as tokens do: the session knows.

    Raises:
        ApiError: 400, it doesn't.
    """
    if (size := sizes.get(key)) is None:
        partition, ledger_id, entry_id, index, _ = key
        raise ApiError(
            400,
            f"{ledger_id}:{entry_id}:{partition}:{index} isn't unacknowledged in this session; "
            "messages of batches need their token then",
        )
    return (*key[:4], size)


class RestSessions:
    """All sessions of this broker; one timer for leases and idle ones, none without sessions."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._sessions: dict[SessionKey, asyncio.Future[RestSession]] = {}
        self._open: dict[SessionKey, RestSession] = {}
        self._by_opener: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def get_or_open(
        self,
        name: TopicName,
        subscription: str,
        consumer: str,
        options: SessionOptions,
        remote: str,
        who: str = "",
    ) -> RestSession:
        """The session of that consumer name; concurrent first calls share one.

        Args:
            who: the role, or the address where roles are unknown, that opens it: the half of all
                sessions is for others.
        Raises:
            BrokerError: as subscribing; ApiError: 429 too many sessions.
        """
        key = (str(name), subscription, consumer)
        if (session := self._open.get(key)) is not None:
            return session
        if (opening := self._sessions.get(key)) is None:
            limit = self._service.config.rest_consumer_sessions_max
            if len(self._open) + len(self._sessions) >= limit:
                raise ApiError(429, "Too many REST consumer sessions")
            if self._by_opener[who] >= max(1, limit // 2):
                raise ApiError(429, "Too many REST consumer sessions of yours")
            self._by_opener[who] += 1
            opening = asyncio.ensure_future(self._open_session(name, key, options, remote, who))
            self._sessions[key] = opening
            opening.add_done_callback(lambda done: self._opened(key, who, done))
        return await asyncio.shield(opening)

    def find(self, name: TopicName, subscription: str, consumer: str) -> RestSession | None:
        return self._open.get((str(name), subscription, consumer))

    def _opened(self, key: SessionKey, who: str, opening: asyncio.Future[RestSession]) -> None:
        self._sessions.pop(key, None)
        if opening.cancelled() or opening.exception() is not None:
            self._leave(who)

    def _leave(self, who: str) -> None:
        self._by_opener[who] -= 1
        if self._by_opener[who] <= 0:
            del self._by_opener[who]

    async def _open_session(
        self, name: TopicName, key: SessionKey, options: SessionOptions, remote: str, who: str
    ) -> RestSession:
        session = RestSession(self, key, options, self._service, who)
        await session.open(name, remote)
        self._open[key] = session
        if (clock := self._service.virtual_clock) is not None:
            clock.on_advanced.add(self._look)
        self._arm()
        return session

    def watch(self, session: RestSession) -> None:
        """End it when one of its rights is taken away."""
        if (access := self._service.access) is not None:
            access.start_use(session)

    def forget(self, session: RestSession) -> None:
        if (access := self._service.access) is not None:
            access.live.discard(session)
        if self._open.get(session.key) is session:
            del self._open[session.key]
            self._leave(session.opener)

    def close_all(self) -> None:
        for session in list(self._open.values()):
            session.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is None and self._open:
            self._timer = asyncio.get_running_loop().call_later(1.0, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._look()
        self._arm()

    def _look(self) -> None:
        now_s = self._service.monotonic_s()
        idle_s = self._service.config.rest_consumer_session_timeout_millis / 1000
        for session in list(self._open.values()):
            session.expire_leases(now_s)
            if not session.busy and session.last_used_s + idle_s <= now_s:
                logger.info("REST session of %s/%s ended: unused", *session.key[:2])
                session.close()


def message_of(
    delivery: ConsumedMessage, *, as_base64: bool, decoded: DecodedValue | None = None
) -> dict[str, Any]:
    """A message as a REST consumer sees it; ``decoded``: its value, where that was asked for."""
    return {
        "token": delivery.message_id,
        "messageId": delivery.shown_id,
        "redeliveryCount": delivery.redelivery_count,
        **described(delivery.message, as_base64=as_base64, decoded=decoded),
    }


def described(
    message: Message, *, as_base64: bool = False, decoded: DecodedValue | None = None
) -> dict[str, Any]:
    """What a message has in it, as JSON; ``decoded``: its value, where that was asked for."""
    item: dict[str, Any] = {
        "publishTime": message.publish_time_ms,
        "properties": message.properties,
    }
    if message.event_time_ms:
        item["eventTime"] = message.event_time_ms
    if message.key is not None:
        item["key"] = message.key
        if message.key_is_base64:
            item["keyEncoding"] = "base64"
    if (version := parse_version(message.schema_version)) is not None:
        item["schemaVersion"] = version
    if decoded is not None:
        if decoded.type:
            item["schemaType"] = decoded.type
        if not decoded.error:
            item["payload"], item["encoding"] = decoded.value, "json"
            return item
        item["decodeError"] = decoded.error
    text: str | None = None
    if not as_base64 and message.encryption is None:
        try:
            text = message.payload.decode()
        except UnicodeDecodeError:
            text = None
    if text is None:
        item["payload"], item["encoding"] = b64encode(message.payload).decode(), "base64"
    else:
        item["payload"], item["encoding"] = _written(text), "text"
    return item


def _written(text: str) -> str | orjson.Fragment:
    """A long text as JSON already, in pieces: in one it would hold the GIL for a fifth of a second
    (20 MiB of what JSON has to escape).
    """
    if len(text) <= _PIECE_CHARACTERS:
        return text
    starts = range(0, len(text), _PIECE_CHARACTERS)
    pieces = (orjson.dumps(text[start : start + _PIECE_CHARACTERS])[1:-1] for start in starts)
    return orjson.Fragment(b'"%b"' % b"".join(pieces))


def parse_token(token: Any) -> MessageKey:
    """The message that a token names. Raises ApiError: 400."""
    if not isinstance(token, str):
        raise ApiError(400, f"A token must be a string, not {token!r:.50}")
    try:
        return parse_key(token)
    except MessageIdError as error:
        raise ApiError(400, f"{token!r:.80} is not a token: {error}") from error


def parse_message_id_text(text: Any) -> MessageKey:
    """The message of a ``messageId`` as it is shown, ``ledger:entry:partition[:batch index]``.

    Raises:
        ApiError: 400.
    """
    if not isinstance(text, str) or (match := _MESSAGE_ID.fullmatch(text)) is None:
        raise ApiError(400, f"{text!r:.80} is not a message id")
    ledger_id, entry_id, partition = int(match[1]), int(match[2]), int(match[3])
    if ledger_id >= 2**63 or entry_id >= 2**63 or partition >= 2**31:
        raise ApiError(400, f"{text!r:.80} is out of range")
    if match[4] is None:
        return (partition, ledger_id, entry_id, -1, 0)
    return (partition, ledger_id, entry_id, int(match[4]), UNKNOWN_SIZE)
