"""``magnetar doctor``: what is wrong with a cluster, the worst first.

The broker looks at the cluster (``GET /admin/v2/doctor``); here is added what only this side sees:
its clock, its credentials, and which brokers it reaches.
"""

import argparse
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

from magnetar.broker.cli.admin_client import AdminClient, AdminResponse
from magnetar.broker.cli.errors import CliError, RefusedError
from magnetar.broker.cli.profiles import ClusterTarget, target_of
from magnetar.broker.cli.progress import progress
from magnetar.broker.doctor.broker_checks import CredentialFacts, check_credentials
from magnetar.broker.doctor.cluster_checks import Clock, check_clocks, clock_between
from magnetar.broker.doctor.credentials import certificate_facts, client_facts
from magnetar.broker.doctor.findings import Finding, Report, Severity, bounded

_PATH: Final = "/admin/v2/doctor"
_HERE: Final = "this machine"
_CONNECT_S: Final = 5.0
_ADDRESSES_MAX: Final = 50


def run_doctor(options: argparse.Namespace) -> int:
    """1: something critical was found, or a warning; 0: notes at most."""
    target = target_of(options)
    with progress("looking at the cluster", None):
        report = examine(target, options.request_timeout)
    if options.admin_url:
        report.findings = [_at(each, options.admin_url) for each in report.findings]
    report.findings = bounded(report.findings)
    if options.json:
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines_of(report, _now_ms())))
    return int(any(each.severity is not Severity.NOTE for each in report.findings))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _at(finding: Finding, url: str) -> Finding:
    """With a command that goes to the same cluster."""
    command = finding.command
    if command.startswith("magnetar admin "):
        command = f"magnetar --admin-url {url} {command.removeprefix('magnetar ')}"
    return replace(finding, command=command)


def examine(target: ClusterTarget, timeout_s: float) -> Report:
    """The broker's report, with the findings from here. Raises ClientAuthError."""
    own = list(check_credentials(list(_credentials(target)), _now_ms()))
    try:
        with target.admin_client(timeout_s) as client:
            answer = client.call("GET", _PATH)
            if answer.status in (404, 405):
                from magnetar.broker.cli.doctor_rest import examine_by_rest

                report, clock = examine_by_rest(client, target, timeout_s), None
            else:
                report, clock = _report_of(answer), _clock(client)
    except RefusedError as error:
        return Report(checked_ms=_now_ms(), findings=[*own, _refused(target.admin_url, error)])
    except CliError as error:
        return Report(checked_ms=_now_ms(), findings=[*own, _silent(target.admin_url, error)])
    if clock is not None:
        own += check_clocks({_HERE: Clock(-clock.ahead_ms, clock.error_ms)}, client.url)
    report.findings += [*own, *_check_addresses(target, report)]
    return report


def _report_of(answer: AdminResponse) -> Report:
    """Raises CliError: not a report."""
    answer.check()
    try:
        return Report.of_json(answer.value())
    except (KeyError, TypeError, ValueError) as error:
        raise CliError(f"GET {_PATH}: a strange answer: {error!r}") from error


def _refused(url: str, error: RefusedError) -> Finding:
    return Finding(
        "access-refused",
        Severity.CRITICAL,
        url,
        f"{url}: only a superuser may look at the cluster: {' '.join(str(error).split())}",
        "magnetar profiles add --help",
    )


def _silent(url: str, error: CliError) -> Finding:
    return Finding(
        "broker-silent",
        Severity.CRITICAL,
        url,
        f"{url}: no answer to this machine: {error}",
        f"magnetar probe {url.rstrip('/')}/readyz",
    )


def _credentials(target: ClusterTarget) -> Iterator[CredentialFacts]:
    yield from client_facts(f"{_HERE}, {target.auth_plugin}", target.access)
    if path := target.tls_trust_cert_path:
        yield certificate_facts(f"{_HERE}, --tls-trust-cert-path", path, latest=True)


def _clock(client: AdminClient) -> Clock | None:
    """The broker's clock beside this machine's; None: it isn't shown. Raises CliError."""
    asked_ms = _now_ms()
    answer = client.call("GET", f"{_PATH}/broker")
    answered_ms = _now_ms()
    if not answer.ok:
        return None
    return clock_between(asked_ms, int(answer.value()["clockMs"]), answered_ms)


def _check_addresses(target: ClusterTarget, report: Report) -> Iterator[Finding]:
    """Whether clients of this machine would reach the brokers."""
    if target.proxy_url:
        report.not_looked_at.append(f"addresses of brokers: clients go by {target.proxy_url}")
        return
    for address in report.addresses[:_ADDRESSES_MAX]:
        if why := _cannot_connect(address):
            yield Finding(
                "broker-unreachable",
                Severity.WARNING,
                address,
                f"{address}: {_HERE} doesn't reach that broker: {why}; clients that need its"
                " topics won't either (advertisedAddress, firewalls)",
                "magnetar admin brokers get-runtime-config",
            )


def _cannot_connect(address: str) -> str:
    """Why no connection can be made; "": it can."""
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), _CONNECT_S).close()
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return ""


# --- text


def lines_of(report: Report, now_ms: int) -> Iterator[str]:
    """The report for people."""
    where = " ".join(filter(None, ("cluster", report.cluster)))
    where += f", seen by {report.broker_id}" if report.broker_id else ""
    counts = [
        f"{count} {severity}{'s' if count > 1 and severity is not Severity.CRITICAL else ''}"
        for severity in Severity
        if (count := sum(each.severity is severity for each in report.findings))
    ]
    yield f"{where}: {', '.join(counts) or 'nothing is wrong'}"
    for each in report.findings:
        yield ""
        yield f"{each.severity.upper():<9} {each.sentence}"
        if each.since_ms is not None:
            yield f"          since {_time(each.since_ms)}, {_age(now_ms - each.since_ms)}"
        if each.command:
            yield f"          $ {each.command}"
    if report.not_looked_at:
        yield ""
        yield "not looked at:"
        yield from (f"  {each}" for each in report.not_looked_at)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _age(ms: int) -> str:
    seconds = max(0, ms) // 1000
    for unit, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"
