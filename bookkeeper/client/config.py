"""What callers choose: per ledger (``LedgerConfig``) and per client (``ClientConfig``)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from magnetar.bookkeeper.client.read_order import DEFAULT_CLASSES, ReplicaClass
from magnetar.bookkeeper.ledger_metadata import DIGEST_CRC32C


@dataclass(frozen=True, slots=True)
class LedgerConfig:
    """Replication of a new ledger: E >= Qw >= Qa >= 1.

    E = Qw = Qa is the advice: striping scatters a ledger's entries and rules out batch reads, and
    Qa < Qw buys little latency for weaker durability.

    Attributes:
        deferred_sync: bookies acknowledge entries before they are on disk; only what the writer's
            ``force`` covered is confirmed and readable. A bookie that fails ends such a writer.
        digest_type: a name of ``bookie_protocol.digests.DigestType``; on our bookies CRC32C.
    """

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    password: bytes = field(default=b"", repr=False)
    deferred_sync: bool = False
    digest_type: str = DIGEST_CRC32C

    def __post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise ValueError(
                f"quorums {self.ensemble_size}/{self.write_quorum}/{self.ack_quorum}: "
                "E >= Qw >= Qa >= 1 is needed"
            )


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """When a bookie that keeps failing gets no new ledgers for a while.

    Attributes:
        enabled: False: failures are remembered, but no bookie is put in quarantine.
        error_threshold: this many failed adds and reads within ``interval_ms`` are too many.
        quarantine_ratio: chance of being put in quarantine then. Below 1, clients that meet the
            same failure don't all leave the same bookie.
        failure_memory_ms: how long ``last_failure_ms`` remembers.
    """

    enabled: bool = False
    error_threshold: int = 5
    interval_ms: int = 60_000
    quarantine_ms: int = 1_800_000
    quarantine_ratio: float = 1.0
    failure_memory_ms: int = 60_000

    def __post_init__(self) -> None:
        times = (self.error_threshold, self.interval_ms, self.quarantine_ms, self.failure_memory_ms)
        if min(times) <= 0:
            raise ValueError(f"threshold and times of the health check must be positive: {times}")
        if not 0.0 <= self.quarantine_ratio <= 1.0:
            raise ValueError(f"the quarantine ratio is a chance: {self.quarantine_ratio}")


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """When the next replica is asked although none has failed.

    Attributes:
        first_ms: after this long; 0: never.
        max_ms, backoff: each pause is ``backoff`` times the one before, up to ``max_ms``.
    """

    first_ms: int = 0
    max_ms: int = 2000
    backoff: float = 2.0

    def __post_init__(self) -> None:
        if self.first_ms < 0 or self.max_ms < 0 or self.backoff < 1.0:
            raise ValueError(f"not a speculation: {self}")

    def pauses_s(self) -> Iterator[float]:
        """Seconds until the second, third, ... replica is asked."""
        pause_ms = float(self.first_ms)
        while True:
            yield min(pause_ms, max(self.max_ms, self.first_ms)) / 1000
            pause_ms *= self.backoff


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """How entries are read.

    Attributes:
        reorder: replicas are asked in the order of ``read_order.py``; else in the write set's.
        classes: of that order, first to last.
        pending_max: a bookie with more pending requests is asked later; 0: never.
        network_location: ``/zone/...`` of this process; "": unknown, then every bookie is near.
        sticky: an unstriped ledger is read from one bookie until that fails, as its read-ahead is
            warm; else successive reads start at successive replicas.
        speculation: of reads; off by default.
        lac_speculation: how a long poll spreads.
        slow_memory_ms: a bookie that lost a race is asked later for so long.
    """

    reorder: bool = False
    classes: tuple[ReplicaClass, ...] = DEFAULT_CLASSES
    pending_max: int = 0
    network_location: str = ""
    sticky: bool = True
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    lac_speculation: SpeculationConfig = field(
        default_factory=lambda: SpeculationConfig(1500, 5000, 2.0)
    )
    slow_memory_ms: int = 60_000

    def __post_init__(self) -> None:
        if len(self.classes) != len(ReplicaClass) or set(self.classes) != set(ReplicaClass):
            raise ValueError(f"every class of replicas once, not {self.classes}")
        if min(self.pending_max, self.slow_memory_ms) < 0:
            raise ValueError("pending_max, slow_memory_ms can't be negative")


@dataclass(frozen=True, slots=True)
class WriteConfig:
    """How entries are written.

    Attributes:
        explicit_lac_interval_ms: an idle writer tells the bookies its last confirmed entry after
            this long, unless an add has carried it; 0: never, readers see it with the next add.
        add_quorum_timeout_ms: an add that waits longer for its quorum ends the writer; 0: never.
        ensemble_changes_max: the change after so many ends the writer.
        delay_ensemble_change: a failed bookie is replaced only when entries can't reach their
            quorum without it, or when it is read-only; until then they have as few as Qa copies.
    """

    explicit_lac_interval_ms: int = 0
    add_quorum_timeout_ms: int = 0
    ensemble_changes_max: int = 2**31 - 1
    delay_ensemble_change: bool = False

    def __post_init__(self) -> None:
        numbers = (
            *(self.explicit_lac_interval_ms, self.add_quorum_timeout_ms),
            self.ensemble_changes_max,
        )
        if min(numbers) < 0:
            raise ValueError(f"times and limits of writing can't be negative: {numbers}")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of a ``BookKeeperClient``.

    Attributes:
        recovery_read_entries, recovery_read_bytes: at most this per recovery read.
        recovery_slow_ms: a recovery read that takes longer is sent to the other replicas, too.
        recovery_attempts: restarts of one recovery (another client changed the ledger meanwhile).
        recovery_backoff_ms: longest random pause before such a restart.
        read_bytes_max: at most this per read request to a bookie.
        reads: order of replicas, speculation.
        writes: explicit LAC, limits.
    """

    recovery_read_entries: int = 500
    recovery_read_bytes: int = 4 * 1024 * 1024
    recovery_slow_ms: int = 500
    recovery_attempts: int = 5
    recovery_backoff_ms: int = 100
    read_bytes_max: int = 8 * 1024 * 1024
    reads: ReadConfig = field(default_factory=ReadConfig)
    writes: WriteConfig = field(default_factory=WriteConfig)
