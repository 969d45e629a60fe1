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
    ├── CoordinatorNotFoundError, TransactionNotFoundError
    ├── IncompatibleSchemaError > InvalidSchemaError
    ├── InvalidTransactionStatusError, TransactionConflictError
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

    def __init_subclass__(cls, code: "WireCode | None" = None, status: int = 0) -> None:
        """What is not given is as in the base class."""
        cls.wire_code = cls.wire_code if code is None else code
        cls.http_status = status or cls.http_status


class ServiceNotReadyError(BrokerError, code=pb.ServiceNotReady, status=503):
    """The broker can't serve this now; a retry may succeed."""


class TopicFencedError(ServiceNotReadyError):
    """The topic is being closed, deleted, moved or re-opened."""


class SubscriptionFencedError(ServiceNotReadyError):
    """The subscription is being reset, closed or deleted."""


class BrokerMetadataError(BrokerError, code=pb.MetadataError):
    """The metadata store failed, or the request contradicts the topic's or consumer's state."""


class PersistenceError(BrokerError, code=pb.PersistenceError):
    """The storage layer refused an operation."""


class InvalidTopicError(BrokerError, code=pb.InvalidTopicName, status=412):
    """Not a topic, namespace or pattern this broker can serve."""


class TopicNotFoundError(BrokerError, code=pb.TopicNotFound, status=404):
    """No such topic, and it may not be created."""


class NamespaceNotFoundError(TopicNotFoundError):
    """The namespace does not exist."""


class TenantNotFoundError(TopicNotFoundError):
    """The tenant does not exist."""


class SubscriptionNotFoundError(BrokerError, code=pb.SubscriptionNotFound, status=404):
    """No such subscription."""


class ConsumerNotFoundError(BrokerError, code=pb.ConsumerNotFound, status=404):
    """No such consumer on this connection."""


class AlreadyExistsError(BrokerError, code=pb.MetadataError, status=409):
    """What should be created is there already."""


class TopicBusyError(BrokerError, code=pb.MetadataError, status=412):
    """The topic or subscription is in use, and the request did not force."""


class PreconditionFailedError(BrokerError, code=pb.MetadataError, status=412):
    """A rule of the namespace, a limit or the request's own arguments forbid it."""


class ProducerBusyError(BrokerError, code=pb.ProducerBusy, status=409):
    """The producer name or the topic's producer slots are taken."""


class NamingError(ProducerBusyError, status=412):
    """A reserved, empty or duplicate name (Pulsar answers ProducerBusy, also to consumers)."""


class ConsumerBusyError(BrokerError, code=pb.ConsumerBusy, status=409):
    """The subscription can't take this consumer."""


class SubscriptionBusyError(ConsumerBusyError):
    """Connected consumers use the subscription in another way."""


class ProducerFencedError(BrokerError, code=pb.ProducerFenced, status=409):
    """Another producer owns the topic exclusively, or a later epoch does."""


class TopicTerminatedError(BrokerError, code=pb.TopicTerminatedError, status=405):
    """The topic takes no more messages, for good."""


class ChecksumError(BrokerError, code=pb.ChecksumError, status=400):
    """Checksum of a message is wrong."""


class ConsumerAssignError(BrokerError, code=pb.ConsumerAssignError, status=409):
    """Sticky hash ranges are missing, invalid or overlap."""


class IncompatibleSchemaError(BrokerError, code=pb.IncompatibleSchema, status=409):
    """The schema can't be accepted."""


class InvalidSchemaError(IncompatibleSchemaError, status=422):
    """Not a definition of its type, or too large to be stored."""


class NotAllowedError(BrokerError, code=pb.NotAllowedError, status=405):
    """Switched off, or against a rule."""


class InvalidTransactionStatusError(BrokerError, code=pb.InvalidTxnStatus, status=409):
    """The transaction has ended, or is ending."""


class TransactionConflictError(BrokerError, code=pb.TransactionConflict, status=409):
    """Another acknowledgement has what this one of a transaction names."""


class CoordinatorNotFoundError(BrokerError, code=pb.TransactionCoordinatorNotFound, status=404):
    """This broker doesn't have the coordinator of transactions: look it up again."""


class TransactionNotFoundError(BrokerError, code=pb.TransactionNotFound, status=404):
    """No such transaction, or it has ended."""


class CompactionBusyError(BrokerError, code=pb.NotAllowedError, status=409):
    """A compaction of the topic is under way."""


class CompactionProcessError(BrokerError):
    """The process that compacts a topic has ended before its time."""


class TooManyRequestsError(BrokerError, code=pb.TooManyRequests, status=429):
    """A concurrency limit is reached."""


class UnsupportedVersionError(BrokerError, code=pb.UnsupportedVersionError, status=400):
    """The peer's protocol version is too old for the request."""


class ProducerBlockedQuotaExceededError(
    BrokerError, code=pb.ProducerBlockedQuotaExceededError, status=412
):
    """Backlog quota reached, policy producer_request_hold."""


class ProducerBlockedQuotaExceededExceptionError(
    BrokerError, code=pb.ProducerBlockedQuotaExceededException, status=412
):
    """Backlog quota reached, policy producer_exception."""


class AuthenticationError(BrokerError, code=pb.AuthenticationError, status=401):
    """Credentials are missing or wrong."""


class AuthorizationError(BrokerError, code=pb.AuthorizationError, status=403):
    """The role lacks the right."""


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
