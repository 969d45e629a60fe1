"""What a Key_Shared consumer asks for, and whether it fits the ones that are connected."""

from dataclasses import dataclass

from magnetar.broker.dispatch.key_selector import HashRing, KeySelector, SplitRanges, StickyRanges
from magnetar.broker.errors import ConsumerAssignError, SubscriptionBusyError
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.entry_header import sticky_hash
from magnetar.broker.protocol.framing import MalformedFrameError, parse_entry_body
from magnetar.broker.subscription.consumer import SubscribeRequest
from magnetar.managed_ledger.entry_batch import Buffer


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """The part of a request in which all consumers of a subscription must agree."""

    sticky: bool = False
    out_of_order: bool = False

    @staticmethod
    def of(request: SubscribeRequest) -> "KeySharedPolicy":
        """Without Key_Shared fields: AUTO_SPLIT, in order."""
        meta = request.key_shared_meta
        if meta is None:
            return KeySharedPolicy()
        return KeySharedPolicy(meta.keySharedMode == pb.STICKY, meta.allowOutOfOrderDelivery)

    @property
    def mode(self) -> str:
        """Name in statistics."""
        return "STICKY" if self.sticky else "AUTO_SPLIT"

    def make_selector(self, *, consistent_hashing: bool = True) -> KeySelector:
        """Which consumer gets a key; ``consistent_hashing``: the setting, for AUTO_SPLIT."""
        if self.sticky:
            return StickyRanges()
        return HashRing() if consistent_hashing else SplitRanges()

    def check(
        self, request: SubscribeRequest, connected: "KeySharedPolicy | None", selector: KeySelector
    ) -> None:
        """Whether a consumer may join; ``connected``: what the others agreed on.

        Raises:
            SubscriptionBusyError: the others use another mode or order.
            ConsumerAssignError: its ranges are missing, invalid or taken.
        """
        if connected is not None and connected != self:
            raise SubscriptionBusyError("Subscription is of different Key_Shared mode")
        if isinstance(selector, StickyRanges):
            reason = selector.conflict(ranges_of(request))
            if reason is not None:
                raise ConsumerAssignError(reason)


def ranges_of(request: SubscribeRequest) -> list[tuple[int, int]]:
    """Inclusive slot ranges the consumer brings."""
    meta = request.key_shared_meta
    return [(each.start, each.end) for each in meta.hashRanges] if meta is not None else []


def hash_of_body(body: Buffer) -> int:
    """Key hash of an entry whose head has none: producer and sequence id stand for the key."""
    try:
        metadata, _ = parse_entry_body(body)
    except MalformedFrameError:
        return 0  # stored by an older layout: any stable hash will do
    return sticky_hash(metadata)
