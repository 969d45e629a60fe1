"""Settings of auto-recovery's workers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """How a ``ReplicationWorker`` works. Times in seconds.

    Attributes:
        concurrent_ledgers: ledgers under repair at once.
        bytes_per_s: copied by one worker, all its ledgers together; 0: as fast as it goes.
        batch_bytes, batch_entries: one request to the target holds at most this much, or one entry.
            At most two are under way for each ledger, while the next one is read.
        parallel_reads: requests under way at once for each check; holes that are filled at once.
        request_timeout_s: a bookie that hasn't answered until then counts as unreachable.
        busy_pause_s: pause before a target without room is asked again; doubles each time.
        open_ledger_grace_s: time for a writer to replace a lost bookie by itself, before its ledger
            is closed over its head.
        unreachable_grace_s: time for a bookie that is registered, but doesn't answer.
        backoff_min_s, backoff_max_s: pause before a ledger is tried again; doubles each time.
        rescan_s: all markers are looked at after this time, whether events came or not.
        resume_bytes_min: the target of copies larger than this is noted in the marker, so that
            another worker goes on there after a crash.
        decommission_poll_s: how often a decommission looks at ledgers that nothing happened to.
    """

    concurrent_ledgers: int = 4
    bytes_per_s: int = 0
    batch_bytes: int = 4 * 1024 * 1024
    batch_entries: int = 500
    parallel_reads: int = 8
    request_timeout_s: float = 30.0
    busy_pause_s: float = 0.1
    open_ledger_grace_s: float = 30.0
    unreachable_grace_s: float = 60.0
    backoff_min_s: float = 300 / 32
    backoff_max_s: float = 300.0
    rescan_s: float = 900.0
    resume_bytes_min: int = 8 * 1024 * 1024
    decommission_poll_s: float = 5.0

    def __post_init__(self) -> None:
        at_least_one = (
            *(self.concurrent_ledgers, self.batch_bytes, self.batch_entries),
            self.parallel_reads,
        )
        if min(at_least_one) < 1 or self.bytes_per_s < 0:
            raise ValueError(f"counts and sizes must be positive: {self}")
        if not 0 < self.backoff_min_s <= self.backoff_max_s:
            raise ValueError(f"not a range of pauses: {self.backoff_min_s}..{self.backoff_max_s}")
