"""Parts that the routes of topics share: paths, the loaded topic behind a name, refusals, ids."""

from collections.abc import Awaitable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator
from starlette.convertors import Convertor, register_url_convertor

from magnetar.broker.errors import (
    STORAGE_ERRORS,
    BrokerError,
    NamespaceNotFoundError,
    NotAllowedError,
    PersistenceError,
    TopicNotFoundError,
)
from magnetar.broker.http.dependencies import Body
from magnetar.broker.http.errors import ApiError, answer_for
from magnetar.broker.protocol.topic_name import TopicName, is_system_topic
from magnetar.broker.service.broker_service import BrokerService
from magnetar.broker.subscription.subscription import Subscription
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.topic.topic import Topic as LoadedTopic
from magnetar.bundles.errors import InvalidBundleError
from magnetar.managed_ledger.cursor.ack_state import BATCH_WORDS_MAX
from magnetar.metadata.loop_turns import in_turns

T = TypeVar("T")

TOPIC = "/admin/v2/{domain:domain}/{tenant}/{namespace}/{topic}"
SUBSCRIPTION = TOPIC + "/subscription/{subscription}"
NAMESPACE = "/admin/v2/{domain:domain}/{tenant}/{namespace}"
NOT_FOUND = {404: "No such topic"}
OF_PARTITIONED = {405: "Not for this kind of topic: partitioned or non-persistent"}
_INT64_MAX = 2**63 - 1
_Int64 = Annotated[int, Field(ge=-(2**63), le=_INT64_MAX)]
_PROPERTIES_BYTES_MAX = 64 * 1024


class _DomainConvertor(Convertor[str]):
    """Keeps ``/admin/v2/namespaces/...`` and the like from matching as topics."""

    regex = "persistent|non-persistent"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("domain", _DomainConvertor())


class MessageIdBody(BaseModel):
    """A message id; both ids -1: the earliest, both 2^63-1: the latest. Or one of these words."""

    model_config = ConfigDict(extra="ignore")

    ledgerId: _Int64 = _INT64_MAX
    entryId: _Int64 = _INT64_MAX
    partitionIndex: int = -1
    # Pulsar's clients and servers know the first name only.
    excluded: Annotated[bool, Field(validation_alias=AliasChoices("excluded", "isExcluded"))] = (
        False
    )
    batchIndex: Annotated[int, Field(lt=BATCH_WORDS_MAX * 64)] = -1
    properties: dict[str, str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_word(cls, value: Any) -> Any:
        if value == "earliest":
            return {"ledgerId": -1, "entryId": -1}
        return {} if value == "latest" else value

    @property
    def position(self) -> tuple[int, int]:
        return (self.ledgerId, self.entryId)


_ID_EXAMPLE = {"ledgerId": 12, "entryId": 4, "partitionIndex": -1, "excluded": False}
IdBody = Annotated[MessageIdBody | None, Body(MessageIdBody, _ID_EXAMPLE)]
PropertiesBody = Annotated[dict[str, str] | None, Body(dict[str, str], {"team": "billing"})]


def not_found(name: TopicName) -> ApiError:
    return ApiError(404, f"Topic {name} not found")


async def _why_missing(service: BrokerService, name: TopicName) -> ApiError:
    """The refusal of a topic that can't be loaded, in Pulsar's words."""
    if not name.is_partition:
        return not_found(name)
    if await service.directory.partitions(name.base) is None:
        return ApiError(404, f"Partitioned Topic not found: {name} has zero partitions")
    return ApiError(404, "Topic partitions were not yet created")


async def loaded(service: BrokerService, name: TopicName) -> LoadedTopic:
    """The topic, loaded if it exists.

    Raises:
        ApiError: 404 in Pulsar's words.
    """
    if (topic := service.topics.get(str(name))) is not None:
        return topic
    try:
        # Loading a partition of an existing topic would make it; a question must not.
        if name.is_partition and name.is_persistent and not await service.directory.exists(name):
            raise await _why_missing(service, name)
        return await service.loader.load(name, create=False)
    except NamespaceNotFoundError as error:
        raise ApiError(404, "Namespace not found") from error
    except (TopicNotFoundError, NotAllowedError) as error:  # NotAllowed: a partitioned base name
        raise await _why_missing(service, name) from error


async def persistent(
    service: BrokerService, name: TopicName, what: str, partitioned: str | None = None
) -> PersistentTopic:
    """The loaded topic behind operations that need stored entries.

    Args:
        what: the operation, for the refusals.
        partitioned: the whole refusal for a partitioned topic.

    Raises:
        ApiError: 405 partitioned or non-persistent, 404 missing.
    """
    if await service.directory.partitions(name) is not None:
        raise ApiError(405, partitioned or f"{what} on a partitioned topic is not allowed")
    if not name.is_persistent:
        raise ApiError(405, f"{what} on a non-persistent topic is not allowed")
    return await stored_topic(service, name)


async def stored_topic(service: BrokerService, name: TopicName) -> PersistentTopic:
    """The loaded topic. REQUIRES: a persistent name. Raises ApiError 404."""
    topic = await loaded(service, name)
    assert isinstance(topic, PersistentTopic)
    return topic


def no_subscription(subscription: str, topic: TopicName) -> ApiError:
    return ApiError(404, f"Subscription {subscription} not found for topic {topic}")


def find_subscription(topic: LoadedTopic, subscription: str) -> Subscription:
    """Raises ApiError 404."""
    found = topic.subscriptions.get(subscription)
    if found is None:
        raise no_subscription(subscription, topic.name)
    return found


async def require_namespace(
    service: BrokerService, namespace: str, reason: str = "Namespace does not exist"
) -> None:
    """Raises ApiError 404."""
    if await service.resources.policies(namespace) is None:
        raise ApiError(404, reason)


async def require_bundle(service: BrokerService, namespace: str, bundle: str) -> None:
    """Raises ApiError 412: the text is no bundle of the namespace as it is cut now."""
    with answer_for(InvalidBundleError, 412):
        (await service.bundles.bundles(namespace)).find(bundle)


async def require_existing(service: BrokerService, name: TopicName) -> int | None:
    """The partition count of the topic, None when it has none; nothing is loaded.

    Raises:
        ApiError: 404 no such topic, partitioned or not.
    """
    count = await service.directory.partitions(name)
    if count is None and not await service.directory.exists(name):
        await require_namespace(service, name.namespace, "Namespace not found")
        raise await _why_missing(service, name)
    return count


async def user_topics(names: Iterable[str]) -> list[str]:
    """Without system topics."""
    return [name async for name in in_turns(names) if not is_system_topic(name)]


def partitioned_metadata(record: Mapping[str, Any]) -> dict[str, Any]:
    """PartitionedTopicMetadata of a stored record."""
    answer: dict[str, Any] = {"partitions": record.get("partitions", 0), "deleted": False}
    if "properties" in record:
        answer["properties"] = record["properties"]
    return answer


def require_persistent_name(name: TopicName) -> None:
    """Raises ApiError 406."""
    if not name.is_persistent:
        raise ApiError(406, "Need to provide a persistent topic name")


def check_properties(properties: dict[str, str] | None) -> dict[str, str]:
    """Properties as they may be stored: one document of the metadata store holds them all.

    Raises:
        ApiError: 412 too many bytes.
    """
    found = properties or {}
    with answer_for(TypeError, 400, "Properties must be texts that UTF-8 can write"):
        size = len(orjson.dumps(found))
    if size > _PROPERTIES_BYTES_MAX:
        raise ApiError(412, f"Properties of {size} bytes of JSON exceed {_PROPERTIES_BYTES_MAX}")
    return found


def message_id(position: tuple[int, int], topic: TopicName) -> dict[str, int]:
    ledger_id, entry_id = position
    return {
        "ledgerId": ledger_id,
        "entryId": entry_id,
        "partitionIndex": topic.partition_index,
        "batchIndex": -1,
        "batchSize": 0,
    }


async def stored(work: Awaitable[T], what: str) -> T:
    """Await a storage call of a topic.

    Raises:
        BrokerError: its errors as the broker names them.
    """
    try:
        return await work
    except BrokerError:
        raise
    except STORAGE_ERRORS as error:
        raise PersistenceError(f"{what}: {error}") from error
