"""Calls over many topics, whose brokers are asked one by one: partitions, bundles of a namespace.

The asked broker does what concerns its own topics and asks the others for the rest, by the same
call about a single partition or bundle. All are asked, also when some refuse; then there is one
answer. A part that failed is never left out of it: a broker that gave no answer makes the whole an
error, which names that broker and says how much was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar
from urllib.parse import quote

from starlette.requests import Request

from magnetar.broker.cluster.broker_client import ANSWER_S, BrokerCall, BrokerEndpoint, topic_path
from magnetar.broker.errors import BrokerError, ServiceNotReadyError
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.parameters import Depends
from magnetar.bundles.ownership import OWNERS_ROOT
from magnetar.metadata.loop_turns import in_turns

if TYPE_CHECKING:
    from magnetar.broker.protocol.topic_name import TopicName
    from magnetar.broker.service.broker_service import BrokerService

P = TypeVar("P")
T = TypeVar("T")

_NAMED_MAX: Final = 3
"""Parts that an error names; it counts the others."""
_AT_ONCE: Final = 64
"""Partitions asked at the same time: loading ten thousand at once would hold up other requests."""
_ABSENT: Final = object()
_TAIL_AT: Final = 7
"""Segments of ``/admin/v2/persistent/tenant/namespace/topic`` with the empty one in front."""


@dataclass(frozen=True, slots=True)
class PartResult(Generic[T]):
    """Of one part: a value, or the error in its place."""

    name: str  # of the partition, or the bundle
    value: T | Any = None
    error: Exception | None = None


def status_of(error: Exception) -> int:
    """Of the answer that an error becomes."""
    if isinstance(error, ApiError):
        return error.status
    return error.http_status if isinstance(error, BrokerError) else 500


class ScatterResults(Generic[T]):
    """The result of each part."""

    def __init__(self, answers: Iterable[PartResult[T]], parts: str) -> None:
        self._found, self._failed = list[PartResult[T]](), list[PartResult[T]]()
        for answer in answers:
            (self._found if answer.error is None else self._failed).append(answer)
        self._parts = parts

    def __len__(self) -> int:
        return len(self._found) + len(self._failed)

    @property
    def values(self) -> list[T]:
        """Of the parts that didn't fail, in their order."""
        return [answer.value for answer in self._found]

    def by_name(self) -> dict[str, T]:
        """The same, by the part's name."""
        return {answer.name: answer.value for answer in self._found}

    def failures(self) -> dict[str, str]:
        """Why a part has no value, by its name: for an answer that says so itself."""
        return {answer.name: str(answer.error) for answer in self._failed}

    def without(self, *statuses: int) -> ScatterResults[T]:
        """Forgets the parts that were refused with one of these: they don't count."""
        left = [a for a in self._failed if a.error and status_of(a.error) not in statuses]
        if len(left) == len(self._failed):
            return self
        return ScatterResults((*self._found, *left), self._parts)

    def check(self) -> ScatterResults[T]:
        """Raises the first error; ServiceNotReadyError with all that there is to say, if a broker
        gave no answer.
        """
        failed = [(each.name, each.error) for each in self._failed if each.error is not None]
        lost = [(name, error) for name, error in failed if isinstance(error, ServiceNotReadyError)]
        if lost:
            told = "; ".join(f"{name}: {error}" for name, error in lost[:_NAMED_MAX])
            more = f"; and {len(lost) - _NAMED_MAX} more" if len(lost) > _NAMED_MAX else ""
            done = len(self._found)
            raise ServiceNotReadyError(
                f"Done for {done} of {len(self)} {self._parts}. {told}{more}"
            ) from lost[0][1]
        for _, error in failed:
            raise error
        return self

    def found(self, missing: Exception) -> ScatterResults[T]:
        """As ``check``, but 404 of some parts is fine; of all of them: raises ``missing``."""
        left = self.without(404)
        left.check()
        if not len(left):
            raise missing
        return left


class ScatterGather:
    """Of one request; brokers have ``ANSWER_S`` for all of it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._service: BrokerService = request.app.state.service
        self._until_s = asyncio.get_running_loop().time() + ANSWER_S

    def same_call(self, body: Any = None) -> BrokerCall:
        """This request; with a body it is sent with that one, as JSON."""
        scope = self._request.scope
        query: bytes = scope.get("query_string", b"")
        return BrokerCall(self._request.method, scope["path"], query.decode("latin-1"), body)

    async def parts(
        self,
        topic: TopicName,
        one: Callable[[TopicName], Awaitable[T]],
        *,
        body: Any = None,
        among: Iterable[int] | None = None,
        call: Callable[[TopicName], BrokerCall] | None = None,
    ) -> ScatterResults[T]:
        """Do ``one`` for a topic, or for each existing partition where it is served.

        Args:
            one: what this call does to a single topic, here. Of others' the result is the JSON that
                their broker answers with, so it is of that form.
            body: of this call, for others.
            among: indexes of partitions, which all count then, existing or not; None: look.
            call: how others are asked; None: by this call about the partition.
        Raises:
            ApiError, BrokerError: for a topic without partitions, as ``one``.
        """
        service = self._service
        if skips := among is None:
            if (count := await service.directory.partitions(topic)) is None:
                return ScatterResults([PartResult(str(topic), await one(topic))], "topics")
            among = range(count)
        asked = self._same_of(body) if call is None else call

        async def ask(part: TopicName) -> T | Any:
            async def here() -> T | object:
                # Only its broker knows a volatile topic; asking for one mustn't make it.
                if skips and not topic.is_persistent and str(part) not in service.topics:
                    return _ABSENT
                return await one(part)

            if skips and topic.is_persistent and not await service.directory.exists(part):
                return _ABSENT
            return await self.on_owner(part, here, lambda: asked(part))

        return await _all(map(topic.partition, among), ask, "partitions")

    def _same_of(self, body: Any = None) -> Callable[[TopicName], BrokerCall]:
        """This request about another topic."""
        same = self.same_call(body)
        tail = "/" + "/".join(same.path.split("/")[_TAIL_AT:])
        return lambda name: same.about(topic_path(name, tail))

    async def of_partition(
        self, part: TopicName, one: Callable[[TopicName], Awaitable[T]]
    ) -> T | Any:
        """Do ``one`` for one partition of the request's topic; see ``parts``."""
        same_of = self._same_of()
        return await self.on_owner(part, lambda: one(part), lambda: same_of(part))

    async def on_owner(
        self, name: TopicName, one: Callable[[], Awaitable[T]], call: Callable[[], BrokerCall]
    ) -> T | Any:
        """Do something to one topic where it is served; see ``BrokerClient.on_owner``."""
        return await self._service.broker_client.on_owner(name, one, call, until_s=self._until_s)

    async def bundles(
        self,
        namespace: str,
        ranges: Iterable[str],
        one: Callable[[str], Awaitable[T]],
        *,
        method: str,
        tail: str,
        root: str = "/admin/v2/namespaces",
        topic_in: Callable[[str], TopicName] | None = None,
    ) -> ScatterResults[T]:
        """Do ``one`` for bundles, where they are owned; here for those that nobody owns.

        Args:
            tail: of the call about one bundle, behind it; encoded, with its slash.
            topic_in: one of the topics of a range, for what loads topics: who is chosen to own a
                bundle that nobody owns does it then.
        """
        broker_client = self._service.broker_client

        async def ask(bundle: str) -> T | Any:
            call = BrokerCall(method, f"{root}/{quote(namespace)}/{bundle}{tail}")
            if topic_in is not None:
                return await self.on_owner(topic_in(bundle), lambda: one(bundle), lambda: call)
            return await broker_client.on_bundle_owner(
                f"{namespace}/{bundle}", lambda: one(bundle), lambda: call, until_s=self._until_s
            )

        return await _all(ranges, ask, "bundles")

    async def brokers(
        self, here: Callable[[], Awaitable[T]], call: BrokerCall, *, answer_s: float = ANSWER_S
    ) -> ScatterResults[T]:
        """Ask every live broker, this one by ``here``; others have so long to answer.

        Raises:
            MetadataError.
        """
        service = self._service
        until_s = min(self._until_s, service.loop.time() + answer_s)

        async def ask(name: str) -> T | Any:
            if name == service.broker_id:
                return await here()
            if (found := await service.cluster_members.find(name)) is None:
                return _ABSENT  # it has left
            peer = BrokerEndpoint.of(found)
            return await service.broker_client.ask(peer, call, until_s=until_s)

        return await _all(await service.cluster_members.ids(), ask, "brokers")

    async def owned_by_others(self, namespace: str) -> list[str]:
        """Ranges of the bundles that other brokers own. Raises MetadataError."""
        own = set(self._service.bundles.owned_bundles)
        ranges = await self._service.store.children(f"{OWNERS_ROOT}/{namespace}")
        return sorted(each for each in ranges if f"{namespace}/{each}" not in own)


async def _all(
    parts: Iterable[P], ask: Callable[[P], Awaitable[T | Any]], kind: str
) -> ScatterResults[T]:
    """The answers of all parts; those that are ``_ABSENT`` don't count."""

    async def one(part: P) -> PartResult[T]:
        try:
            return PartResult(str(part), await ask(part))
        except Exception as error:  # ScatterResults tells it, or raises it again
            return PartResult(str(part), error=error)

    found = in_turns(await each(parts, one))
    return ScatterResults([answer async for answer in found if answer.value is not _ABSENT], kind)


async def _scatter(request: Request) -> ScatterGather:
    return ScatterGather(request)


Spread = Annotated[ScatterGather, Depends(_scatter)]


async def each(items: Iterable[P], ask: Callable[[P], Awaitable[T]]) -> list[T]:
    """Answers in order, a bounded number of questions under way; the first error is raised.

    After an error no more is asked. There is no task for each: most are answered without a wait.
    """
    answers, left = dict[int, T](), ((at, item) for at, item in enumerate(items))

    async def ask_from(at: int, item: P) -> None:
        try:
            answers[at] = await ask(item)
            async with aclosing(in_turns(left)) as others:
                async for at, item in others:
                    answers[at] = await ask(item)
        except BaseException:
            left.close()
            raise

    await asyncio.gather(*(ask_from(*first) for first in islice(left, _AT_ONCE)))
    return [answers[at] for at in range(len(answers))]
