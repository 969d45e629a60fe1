"""What callers choose: per ledger (``LedgerConfig``) and per client (``ClientConfig``)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LedgerConfig:
    """Replication of a new ledger: E >= Qw >= Qa >= 1.

    E = Qw = Qa is the advice: striping scatters a ledger's entries and rules out batch reads, and
    Qa < Qw buys little latency for weaker durability.
    """

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    password: bytes = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise ValueError(
                f"quorums {self.ensemble_size}/{self.write_quorum}/{self.ack_quorum}: "
                "E >= Qw >= Qa >= 1 is needed"
            )


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Settings of a ``BookKeeperClient``.

    Attributes:
        recovery_read_entries, recovery_read_bytes: at most this per recovery read.
        recovery_slow_ms: a recovery read that takes longer is sent to the other replicas, too.
        recovery_attempts: restarts of one recovery (another client changed the ledger meanwhile).
        recovery_backoff_ms: longest random pause before such a restart.
        read_bytes_max: at most this per read request to a bookie.
    """

    recovery_read_entries: int = 500
    recovery_read_bytes: int = 4 * 1024 * 1024
    recovery_slow_ms: int = 500
    recovery_attempts: int = 5
    recovery_backoff_ms: int = 100
    read_bytes_max: int = 8 * 1024 * 1024
