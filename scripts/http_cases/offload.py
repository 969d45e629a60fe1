"""Policies of offloading, its trigger and status; no server has a driver by its settings."""

from http_cases import NS, Case, T

FIRST = {"ledgerId": 0, "entryId": 0, "partitionIndex": -1}
FILESYSTEM = {"managedLedgerOffloadDriver": "filesystem"}
UNSET = "known: 204 for what isn't set"
HELD = "known: what holds, not 0"
ELSEWHERE = {**FILESYSTEM, "fileSystemURI": "file:///elsewhere"}
S3 = {"managedLedgerOffloadDriver": "aws-s3"}


def requests(tenant: str) -> list[Case]:
    ns = f"{NS}/{tenant}/ns"
    topic = f"/admin/v2/persistent/{tenant}/ns/t"
    return [
        ("PUT", f"{T}/{tenant}", {"allowedClusters": ["standalone"]}, ""),
        ("PUT", ns, None, ""),
        ("PUT", topic, None, ""),
        *_thresholds(ns),
        *_objects(ns),
        *_of_topic(topic),
        *_process(topic),
        ("DELETE", f"{ns}/removeOffloadPolicies", None, ""),
        ("GET", f"{ns}/offloadPolicies", None, UNSET),
        ("GET", f"{ns}/offloadThreshold", None, ""),
        ("DELETE", topic, None, ""),
        ("DELETE", ns, None, ""),
        ("DELETE", f"{T}/{tenant}", None, ""),
    ]


def _thresholds(ns: str) -> list[Case]:
    return [
        ("GET", f"{ns}/offloadThreshold", None, ""),
        ("PUT", f"{ns}/offloadThreshold", 100, ""),
        ("GET", f"{ns}/offloadThreshold", None, ""),
        ("PUT", f"{ns}/offloadThreshold", "x", "known: reason instead of plain text or HTML"),
        ("PUT", f"{ns}/offloadThresholdInSeconds", 50, "known: 204, as other policies"),
        ("GET", f"{ns}/offloadThresholdInSeconds", None, ""),
        ("PUT", f"{ns}/offloadDeletionLagMs", 1000, ""),
        ("GET", f"{ns}/offloadDeletionLagMs", None, ""),
        ("GET", f"{ns}/offloadPolicies", None, ""),
        ("DELETE", f"{ns}/offloadDeletionLagMs", None, ""),
        ("GET", f"{ns}/offloadDeletionLagMs", None, UNSET),
        ("GET", f"{ns}/offloadPolicies", None, ""),
    ]


def _objects(ns: str) -> list[Case]:
    path = f"{ns}/offloadPolicies"
    thresholds = {
        **FILESYSTEM,
        "managedLedgerOffloadThresholdInBytes": 1000,
        "managedLedgerOffloadDeletionLagInMillis": 77,
        "managedLedgerOffloadMaxThreads": 3,
        "of_the_future": 1,
    }
    return [
        ("POST", path, FILESYSTEM, ""),
        ("GET", path, None, ""),
        ("GET", f"{ns}/offloadThreshold", None, ""),
        ("POST", path, {"managedLedgerOffloadDriver": "nope"}, ""),
        ("POST", path, {}, ""),
        ("POST", path, None, ""),
        ("POST", path, S3, ""),
        ("POST", path, {**S3, "managedLedgerOffloadBucket": "b"}, "known: 412, no such driver"),
        ("POST", path, ELSEWHERE, "known: 412, not below the broker's directory"),
        ("POST", path, "x", "known: reason instead of plain text or HTML"),
        ("POST", path, thresholds, ""),
        ("GET", path, None, ""),
        ("GET", f"{ns}/offloadThreshold", None, ""),
        ("GET", f"{ns}/offloadDeletionLagMs", None, ""),
        ("GET", ns, None, ""),
    ]


def _of_topic(topic: str) -> list[Case]:
    path = f"{topic}/offloadPolicies"
    return [
        ("GET", path, None, UNSET),
        ("POST", path, FILESYSTEM, ""),
        ("GET", path, None, ""),
        ("GET", f"{path}?applied=true", None, HELD),
        ("POST", path, {}, ""),
        ("POST", path, {"managedLedgerOffloadDriver": "nope"}, ""),
        ("DELETE", path, None, ""),
        ("GET", path, None, UNSET),
    ]


def _process(topic: str) -> list[Case]:
    return [
        ("GET", f"{topic}/offload", None, ""),
        ("PUT", f"{topic}/offload", None, ""),
        ("PUT", f"{topic}/offload", FIRST, ""),
        ("GET", f"{topic}/offload", None, ""),
        ("PUT", f"{topic}-missing/offload", FIRST, ""),
        ("GET", f"{topic}-missing/offload", None, ""),
    ]
