"""Where a topic is served: data of an owner, and the decision what a lookup answers. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import orjson

from magnetar.bundles.errors import InvalidBundleError


@dataclass(frozen=True, slots=True)
class BrokerLookup:
    """The URLs of a broker; None where it doesn't offer the protocol.

    Attributes:
        incarnation: grows with each start of a broker, so that of two processes with the same URLs
            one is the later; 0: not known. Both are the same broker.
    """

    broker_url: str | None
    broker_url_tls: str | None
    http_url: str | None
    http_url_tls: str | None
    advertised_listeners: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    incarnation: int = field(default=0, compare=False)

    def by_listener(self, name: str) -> "BrokerLookup | None":
        """The same broker for clients of one of its networks; None: it has no such listener."""
        if (urls := self.advertised_listeners.get(name)) is None:
            return None
        return BrokerLookup(
            urls.get("brokerServiceUrl"),
            urls.get("brokerServiceUrlTls"),
            urls.get("brokerHttpUrl") or self.http_url,
            urls.get("brokerHttpsUrl") or self.http_url_tls,
            self.advertised_listeners,
        )

    def encode(self) -> bytes:
        """Pulsar's NamespaceEphemeralData: the value of an ownership node."""
        document: dict[str, object] = {
            "nativeUrl": self.broker_url,
            "nativeUrlTls": self.broker_url_tls,
            "httpUrl": self.http_url,
            "httpUrlTls": self.http_url_tls,
            "disabled": False,
            "advertisedListeners": self.advertised_listeners,
        }
        if self.incarnation:
            document["incarnation"] = self.incarnation
        return orjson.dumps(document)

    @classmethod
    def decode(cls, value: bytes) -> "BrokerLookup":
        """Raises InvalidBundleError: not NamespaceEphemeralData."""
        try:
            document = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise InvalidBundleError(f"owner data isn't JSON: {error}") from error
        if not isinstance(document, dict):
            raise InvalidBundleError(f"owner data isn't a JSON object: {value[:80]!r}")
        return cls(
            document.get("nativeUrl"),
            document.get("nativeUrlTls"),
            document.get("httpUrl"),
            document.get("httpUrlTls"),
            document.get("advertisedListeners") or {},
            _incarnation_of(document),
        )

    def is_successor_of(self, value: bytes) -> bool:
        """Tells whether this process wrote ``value``, or an earlier one with the same URLs.

        A later one's isn't: a process that was given up and lives on, cut off from the others, must
        take nothing back from the one that was started in its place.
        """
        try:
            other = BrokerLookup.decode(value)
        except InvalidBundleError:
            return False
        return other == self and other.incarnation <= self.incarnation


def _incarnation_of(document: Mapping[str, object]) -> int:
    found = document.get("incarnation")
    return found if isinstance(found, int) else 0


class LookupAction(Enum):
    ANSWER_OWNER = "answer_owner"
    ACQUIRE = "acquire"  # the bundle has no owner, and this broker may be: acquire, answer
    CHOOSE = "choose"  # the bundle has no owner: choose a broker
    ANSWER_NOBODY = "answer_nobody"
    NOT_READY = "not_ready"  # retriable: ask again


def decide_lookup(
    *,
    owner_known: bool,
    owned_here: bool,
    unloading: bool,
    session_proven: bool,
    read_only: bool,
    authoritative: bool,
) -> LookupAction:
    """Chooses the next step of a lookup from the state of its topic's bundle.

    Args:
        owner_known: the bundle has an owner node, or is owned here.
        owned_here: this broker's ownership cache has it.
        unloading: this broker is giving it up.
        session_proven: this broker's metadata session is alive as far as it knows.
        read_only: tell only the owner, acquire nothing.
        authoritative: a broker redirected the client here so that this broker owns the bundle.
    """
    if unloading:
        return LookupAction.NOT_READY
    # This broker answers only what it can prove: another may have the nodes of a lost session.
    if not session_proven:
        return LookupAction.NOT_READY
    if owned_here or owner_known:
        return LookupAction.ANSWER_OWNER
    if read_only:
        return LookupAction.ANSWER_NOBODY
    return LookupAction.ACQUIRE if authoritative else LookupAction.CHOOSE
