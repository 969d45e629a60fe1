"""Errors the broker tells its clients about; each class carries its wire code and HTTP status.

    BrokerError
    ├── ServiceNotReadyError            try again, perhaps elsewhere
    │   ├── TopicFencedError            topic is being closed, deleted or re-opened
    │   └── SubscriptionFencedError
    ├── BrokerMetadataError             metadata store, or a request that contradicts the state
    ├── PersistenceError                storage refused
    ├── InvalidTopicError               the name
    ├── TopicNotFoundError, NamespaceNotFoundError, TenantNotFoundError
    ├── SubscriptionNotFoundError, ConsumerNotFoundError
    ├── AlreadyExistsError              (HTTP 409)
    ├── TopicBusyError                  has producers, consumers or subscriptions (HTTP 412)
    ├── PreconditionFailedError         (HTTP 412)
    ├── ProducerBusyError > NamingError
    ├── ConsumerBusyError > SubscriptionBusyError
    ├── ProducerFencedError, TopicTerminatedError, ChecksumError
    ├── ConsumerAssignError, NotAllowedError
    ├── IncompatibleSchemaError > InvalidSchemaError
    ├── TooManyRequestsError, UnsupportedVersionError
    ├── ProducerBlockedQuotaExceededError, ProducerBlockedQuotaExceededExceptionError
    └── AuthenticationError, AuthorizationError

Source of the mapping: docs/spec/wire-protocol.md, "Error codes". A free text never contains
another error's name, because some clients search it for these names.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final, TypeAlias

from magnetar.bookkeeper.errors import LedgerError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.metadata.errors import MetadataError

STORAGE_ERRORS: Final = (LedgerError, ManagedLedgerError, MetadataError)
"""What calls of a managed ledger raise: its own errors, its bookies' and its metadata's."""

WireCode: TypeAlias = "pb.ServerError.ValueType"


class BrokerError(Exception):
    """Base: what a client is told. ``str(error)`` is the message on the wire."""

    wire_code: ClassVar[WireCode] = pb.UnknownError
    http_status: ClassVar[int] = 500


class ServiceNotReadyError(BrokerError):
    """The broker can't serve this now; a retry may succeed."""

    wire_code = pb.ServiceNotReady
    http_status = 503


class TopicFencedError(ServiceNotReadyError):
    """The topic is being closed, deleted, moved or re-opened."""


class SubscriptionFencedError(ServiceNotReadyError):
    """The subscription is being reset, closed or deleted."""


class BrokerMetadataError(BrokerError):
    """The metadata store failed, or the request contradicts the topic's or consumer's state."""

    wire_code = pb.MetadataError


class PersistenceError(BrokerError):
    """The storage layer refused an operation."""

    wire_code = pb.PersistenceError


class InvalidTopicError(BrokerError):
    """Not a topic, namespace or pattern this broker can serve."""

    wire_code = pb.InvalidTopicName
    http_status = 412


class TopicNotFoundError(BrokerError):
    """No such topic, and it may not be created."""

    wire_code = pb.TopicNotFound
    http_status = 404


class NamespaceNotFoundError(TopicNotFoundError):
    """The namespace does not exist."""


class TenantNotFoundError(TopicNotFoundError):
    """The tenant does not exist."""


class SubscriptionNotFoundError(BrokerError):
    """No such subscription."""

    wire_code = pb.SubscriptionNotFound
    http_status = 404


class ConsumerNotFoundError(BrokerError):
    """No such consumer on this connection."""

    wire_code = pb.ConsumerNotFound
    http_status = 404


class AlreadyExistsError(BrokerError):
    """What should be created is there already."""

    wire_code = pb.MetadataError
    http_status = 409


class TopicBusyError(BrokerError):
    """The topic or subscription is in use, and the request did not force."""

    wire_code = pb.MetadataError
    http_status = 412


class PreconditionFailedError(BrokerError):
    """A rule of the namespace, a limit or the request's own arguments forbid it."""

    wire_code = pb.MetadataError
    http_status = 412


class ProducerBusyError(BrokerError):
    """The producer name or the topic's producer slots are taken."""

    wire_code = pb.ProducerBusy
    http_status = 409


class NamingError(ProducerBusyError):
    """A reserved, empty or duplicate name (Pulsar answers ProducerBusy, also to consumers)."""

    http_status = 412


class ConsumerBusyError(BrokerError):
    """The subscription can't take this consumer."""

    wire_code = pb.ConsumerBusy
    http_status = 409


class SubscriptionBusyError(ConsumerBusyError):
    """Connected consumers use the subscription in another way."""


class ProducerFencedError(BrokerError):
    """Another producer owns the topic exclusively, or a later epoch does."""

    wire_code = pb.ProducerFenced
    http_status = 409


class TopicTerminatedError(BrokerError):
    """The topic takes no more messages, for good."""

    wire_code = pb.TopicTerminatedError
    http_status = 405


class ChecksumError(BrokerError):
    """Checksum of a message is wrong."""

    wire_code = pb.ChecksumError
    http_status = 400


class ConsumerAssignError(BrokerError):
    """Sticky hash ranges are missing, invalid or overlap."""

    wire_code = pb.ConsumerAssignError
    http_status = 409


class IncompatibleSchemaError(BrokerError):
    """The schema can't be accepted."""

    wire_code = pb.IncompatibleSchema
    http_status = 409


class InvalidSchemaError(IncompatibleSchemaError):
    """Not a definition of its type, or too large to be stored."""

    http_status = 422


class NotAllowedError(BrokerError):
    """Switched off, or against a rule."""

    wire_code = pb.NotAllowedError
    http_status = 405


class TooManyRequestsError(BrokerError):
    """A concurrency limit is reached."""

    wire_code = pb.TooManyRequests
    http_status = 429


class UnsupportedVersionError(BrokerError):
    """The peer's protocol version is too old for the request."""

    wire_code = pb.UnsupportedVersionError
    http_status = 400


class ProducerBlockedQuotaExceededError(BrokerError):
    """Backlog quota reached, policy producer_request_hold."""

    wire_code = pb.ProducerBlockedQuotaExceededError
    http_status = 412


class ProducerBlockedQuotaExceededExceptionError(BrokerError):
    """Backlog quota reached, policy producer_exception."""

    wire_code = pb.ProducerBlockedQuotaExceededException
    http_status = 412


class AuthenticationError(BrokerError):
    """Credentials are missing or wrong."""

    wire_code = pb.AuthenticationError
    http_status = 401


class AuthorizationError(BrokerError):
    """The role lacks the right."""

    wire_code = pb.AuthorizationError
    http_status = 403


def as_broker_error(error: Exception) -> BrokerError:
    """What a client is told: the error, or that the metadata store, or the like, has failed."""
    return error if isinstance(error, BrokerError) else BrokerMetadataError(str(error))


@contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """Raise PersistenceError, "Can't ``doing``: why", for every error of the storage."""
    try:
        yield
    except STORAGE_ERRORS as error:
        raise PersistenceError(f"Can't {doing}: {error}") from error
