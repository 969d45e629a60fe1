"""Transactions, on servers with ``transactionCoordinatorEnabled`` and one coordinator.

Pulsar opens the coordinator with the first client that connects to it.
"""

from http_cases import NS, Case, T

_CRASHES = "known: Pulsar answers 500"
_WORDS = "known: other words"
_OPENED = "known: one that no client has asked for yet is opened, so no 404"
_NO_LOG = "known: no property, a ledger begins with its first entry"
_ROOT = "/admin/v3/transactions"


def requests(tenant: str) -> list[Case]:
    topics = f"/admin/v2/persistent/{tenant}/ns"
    return [
        ("PUT", f"{T}/{tenant}", {"allowedClusters": ["standalone"]}, ""),
        ("PUT", f"{NS}/{tenant}/ns", None, ""),
        ("PUT", f"{topics}/t", None, ""),
        ("PUT", f"{topics}/t/subscription/s", None, ""),
        *_coordinators(),
        *(case for topic in ("t", "nope") for case in _topic(f"{tenant}/ns/{topic}")),
        ("DELETE", f"{topics}/t?force=true", None, ""),
        ("DELETE", f"{NS}/{tenant}/ns", None, ""),
        ("DELETE", f"{T}/{tenant}", None, ""),
    ]


def _coordinators() -> list[Case]:
    return [
        ("GET", f"{_ROOT}/coordinators", None, ""),
        ("GET", f"{_ROOT}/coordinatorStats", None, "known: one field more"),
        ("GET", f"{_ROOT}/coordinatorStats?coordinatorId=99", None, ""),
        ("GET", f"{_ROOT}/coordinatorInternalStats/0", None, _NO_LOG),
        ("GET", f"{_ROOT}/coordinatorInternalStats/99", None, ""),
        ("GET", f"{_ROOT}/transactionMetadata/0/999999999", None, _OPENED),
        ("GET", f"{_ROOT}/transactionMetadata/99/0", None, _WORDS),
        ("GET", f"{_ROOT}/slowTransactions/999999999", None, ""),
        ("GET", f"{_ROOT}/slowTransactions/5?coordinatorId=99", None, ""),
        ("POST", f"{_ROOT}/abortTransaction/0/999999999", None, _CRASHES),
        ("POST", f"{_ROOT}/transactionCoordinator/replicas", 1, ""),
        ("POST", f"{_ROOT}/transactionCoordinator/replicas", "x", _WORDS),
    ]


def _topic(topic: str) -> list[Case]:
    known = topic.endswith("/t")
    cases = [
        ("GET", f"{_ROOT}/transactionBufferStats/{topic}", None, ""),
        ("GET", f"{_ROOT}/transactionBufferStats/{topic}?lowWaterMarks=true", None, ""),
        ("GET", f"{_ROOT}/transactionBufferInternalStats/{topic}", None, _NO_LOG),
        ("GET", f"{_ROOT}/transactionInBufferStats/{topic}/0/999999999", None, ""),
    ]
    for name, crashes in (("s", ""), ("nope", _CRASHES)):
        cases += [
            ("GET", f"{_ROOT}/pendingAckStats/{topic}/{name}", None, crashes),
            ("GET", f"{_ROOT}/pendingAckInternalStats/{topic}/{name}", None, crashes and _WORDS),
            (
                *("GET", f"{_ROOT}/transactionInPendingAckStats/{topic}/{name}/0/999999999"),
                *(None, crashes),
            ),
            ("GET", f"{_ROOT}/positionStatsInPendingAck/{topic}/{name}/1/1", None, crashes),
        ]
    return cases if known else [(*case[:3], _WORDS) for case in cases]
