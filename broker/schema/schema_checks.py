"""Producers and consumers with schemas, as a topic lets them in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.errors import IncompatibleSchemaError
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.schema.compatibility import Strategy
from magnetar.broker.schema.definition import AUTO_CONSUME, SchemaDefinition
from magnetar.broker.schema.registry import SchemaRules

if TYPE_CHECKING:
    from magnetar.broker.topic.topic import Topic


def rules_of(policies: EffectivePolicies) -> SchemaRules:
    """A topic's or namespace's rules."""
    return SchemaRules(
        Strategy(policies.schema_strategy),
        policies.schema_auto_update,
        policies.schema_validation_enforced,
    )


async def admit_producer(
    topic: Topic, definition: SchemaDefinition | None, policies: EffectivePolicies
) -> int | None:
    """Check and register a producer's schema; its version, None: it has no schema.

    Raises:
        IncompatibleSchemaError: against the namespace's rules, or no schema where one is enforced.
    """
    service = topic.service
    rules = rules_of(policies)
    if definition is not None:
        return await service.schemas.register(topic.name, definition, rules)
    if rules.validation_enforced and await service.schemas.latest(topic.name) is not None:
        raise IncompatibleSchemaError(
            "Producers cannot connect without a schema to topics with a schema when schema "
            "validation is enforced"
        )
    return None


async def admit_consumer(
    topic: Topic, definition: SchemaDefinition, policies: EffectivePolicies, *, has_entries: bool
) -> None:
    """Check a consumer's schema; on an unused topic it becomes the first version.

    Raises:
        IncompatibleSchemaError: the consumer can't read the topic.
    """
    if definition.type == AUTO_CONSUME:
        return
    service = topic.service
    rules = rules_of(policies)
    idle = not (has_entries or any(True for _ in topic.registry) or _has_typed_consumer(topic))
    if idle and await service.schemas.latest(topic.name) is None:
        await service.schemas.register(topic.name, definition, rules)
    else:
        await service.schemas.check_consumer(topic.name, definition, rules.strategy)


def _has_typed_consumer(topic: Topic) -> bool:
    """Consumers that take any schema don't fix one (Pulsar's addSchemaIfIdleOrCheckCompatible)."""
    return any(
        consumer.request.schema is None or consumer.request.schema.type != AUTO_CONSUME
        for subscription in topic.subscriptions.values()
        for consumer in subscription.consumers
    )
