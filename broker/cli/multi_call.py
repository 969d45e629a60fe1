"""Words that are more than one plain call: several calls, another path, a message to show."""

import itertools
import json
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from magnetar.broker.cli.admin_command import CommandRun
from magnetar.broker.cli.argument_values import parse_time
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.output import print_message
from magnetar.broker.cli.progress import progress
from magnetar.broker.cli.request import AdminRequest, topic_parts

_PARTITIONED = "application/vnd.partitioned-topic-metadata+json"
_POLL_S = 1.0


# --- tenants, clusters, brokers


def create_tenant(run: CommandRun) -> int:
    """Without clusters it may use all that there are, as pulsar-admin does."""
    request = run.request()
    body = {"adminRoles": [], **(request.body or {})}
    if "allowedClusters" not in body:
        body["allowedClusters"] = run.get("/admin/v2/clusters")
    return run.finish(replace(request, body=body))


def list_clusters(run: CommandRun) -> int:
    names = run.send(run.request())
    if not run.arguments.given("current"):
        run.show(names)
        return 0
    current = run.get("/admin/v2/brokers/configuration/runtime").get("clusterName", "")
    run.show([f"{name}(*)" if name == current else name for name in names])
    return 0


def delete_cluster(run: CommandRun) -> int:
    """With -a: first every namespace that lives in this cluster alone."""
    cluster = run.arguments.positionals["cluster"]
    if run.arguments.given("all"):
        tenants = run.get("/admin/v2/tenants")
        with progress("tenants", len(tenants)) as advance:
            for tenant in tenants:
                _delete_namespaces(run, tenant, cluster)
                advance(1)
    return run.finish(run.request())


def _delete_namespaces(run: CommandRun, tenant: str, cluster: str) -> None:
    for namespace in run.get(f"/admin/v2/namespaces/{quote(tenant, safe='')}"):
        path = f"/admin/v2/namespaces/{quote(namespace, safe='/')}"
        if run.send(AdminRequest("GET", f"{path}/replication", {})) == [cluster]:
            run.send(AdminRequest("DELETE", path, {}))


# --- namespaces


def split_bundle(run: CommandRun) -> int:
    request = run.request()
    if request.body is None:
        return run.finish(request)
    try:
        positions = [int(text, 0) for text in request.body]
    except ValueError:
        raise CliError("-sbn: positions are numbers") from None
    return run.finish(replace(request, body=positions))


def clear_namespace_backlog(run: CommandRun) -> int:
    if not run.arguments.given("force"):
        _confirm(f"Acknowledge everything in {run.arguments.positionals['namespace']}?")
    return run.finish(run.request())


def _confirm(question: str) -> None:
    """Raises CliError: the answer is no, or there is nobody to ask."""
    if not sys.stdin.isatty():
        raise CliError("nobody to ask: give -f")
    if input(f"{question} (yes/no) ").strip().lower() not in ("y", "yes"):
        raise CliError("nothing done")


# --- topics


def list_topics(run: CommandRun) -> int:
    """Of both domains, unless one is asked for."""
    domain = run.arguments.given("domain")
    domains = [domain.replace("_", "-")] if domain else ["persistent", "non-persistent"]
    names: list[str] = []
    for name in domains:
        names += run.send(run.request(run.arguments.word.path.replace("{domain}", name)))
    run.show(names)
    return 0


def create_partitioned_topic(run: CommandRun) -> int:
    request = run.request()
    properties = run.arguments.given("properties")
    if not properties:
        return run.finish(request)
    body = {"partitions": request.body, "properties": properties}
    return run.finish(replace(request, body=body), _PARTITIONED)


def _partitions(run: CommandRun) -> list[str]:
    """Full names of a topic's partitions; of the topic itself when it has none."""
    domain, tenant, namespace, local = topic_parts(run.arguments.positionals["topic"])
    base = f"{domain}://{tenant}/{namespace}/{local}"
    count = run.get("/admin/v2/{topic}/partitions").get("partitions", 0)
    return [f"{base}-partition-{index}" for index in range(count)] if count else [base]


def each_partition(run: CommandRun) -> int:
    """One call a partition: each is long work, and one that fails keeps none of the others."""
    names = _partitions(run)
    failed: list[str] = []
    with progress("partitions", len(names)) as advance:
        for name in names:
            part = run.at_topic(name)
            answer = part.answer(part.request())
            if not answer.ok:
                failed.append(f"{name}: HTTP {answer.status}: {answer.reason}")
                if len(names) == 1:
                    answer.check()
            advance(1)
    if failed:
        raise CliError(f"{len(failed)} of {len(names)} partitions failed\n" + "\n".join(failed))
    return 0


def partitioned_lookup(run: CommandRun) -> int:
    owners: dict[str, str] = {}
    for name in _partitions(run):
        part = run.at_topic(name)
        owners[name] = part.send(part.request())["brokerUrl"]
    if not run.arguments.given("by_broker"):
        run.show(owners)
        return 0
    by_broker: dict[str, list[str]] = {}
    for name, broker in owners.items():
        by_broker.setdefault(broker, []).append(name)
    run.show(by_broker)
    return 0


def message_id_at(run: CommandRun) -> int:
    try:
        time_ms = parse_time(run.arguments.given("datetime"))
    except ArgumentTypeError as error:
        raise CliError(f"-d: {error}") from None
    return run.finish(run.request(f"/admin/v2/{{topic}}/messageid/{time_ms}"))


def wait_for_process(run: CommandRun) -> int:
    """Show the state of a compaction or offload; -w: wait until it ends."""
    status = run.send(run.request())
    if run.arguments.given("wait"):
        with progress(run.arguments.word.path.rsplit("/", 1)[1], None):
            while status.get("status") == "RUNNING":
                time.sleep(_POLL_S)
                status = run.send(run.request())
    run.show(status)
    return 1 if status.get("status") == "ERROR" else 0


def offload(run: CommandRun) -> int:
    """Offload all ledgers but the newest, which together have at most the size to keep."""
    ledgers = run.get("/admin/v2/{topic}/internalStats").get("ledgers", [])
    keep, size, first_kept = run.arguments.given("size"), 0, None
    for ledger in reversed(ledgers):
        size += ledger.get("size", 0)
        if size > keep and first_kept is not None:
            break
        first_kept = ledger
    if first_kept is None or size <= keep:
        run.show("nothing to offload")
        return 0
    body = {"ledgerId": first_kept["ledgerId"], "entryId": 0, "partitionIndex": -1}
    request = run.request()
    return run.finish(replace(request, body=body))


# --- subscriptions


def create_subscription(run: CommandRun) -> int:
    request = run.request()
    body = dict(run.arguments.options.get("body") or {})
    properties = run.arguments.options.get("field:properties")
    if properties:
        where = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}
        body = {**where, **body, "properties": properties}
    return run.finish(replace(request, body=body or None))


def at_position(run: CommandRun) -> int:
    """By a time, which is in the path, or by a message, which is the body."""
    arguments = run.arguments
    position, has_time = arguments.given("position"), arguments.path() != arguments.word.path
    if has_time == (position is not None):
        raise CliError("give either -t or -p")
    if position is not None:
        position = {**position, "excluded": bool(arguments.given("exclude"))}
    return run.finish(replace(run.request(), body=position))


# --- schemas


def get_schema(run: CommandRun) -> int:
    every = "/admin/v2/schemas/{plain_topic}/schemas"
    return run.finish(run.request(every if run.arguments.given("all") else None))


# --- messages


def peek_messages(run: CommandRun) -> int:
    """What consumers don't get, as of aborted transactions, is left out unless it is asked for."""
    given = run.arguments.given
    left, shows_all = given("count"), given("isolation") == "READ_UNCOMMITTED"
    path = run.request("/admin/v2/{topic}/subscription/{subscription}/position/").path
    for position in itertools.count(1):
        if left <= 0:
            break
        answer = run.answer(AdminRequest("GET", f"{path}{position}", {}))
        if answer.status == 404 and position > 1:
            break  # the backlog has no more
        answer.check()
        headers = answer.headers
        if not shows_all and headers.get("x-pulsar-txn-uncommitted") == "true":
            break  # so is all that is behind it
        if not shows_all and headers.get("x-pulsar-txn-aborted") == "true":
            continue
        if "x-pulsar-marker-type" in headers and not given("markers"):
            continue
        _show_messages(run, headers, answer.body)
        left -= 1
    return 0


def show_message(run: CommandRun) -> int:
    answer = run.answer(run.request())
    answer.check()
    _show_messages(run, answer.headers, answer.body)
    return 0


_FACTS = {
    "x-pulsar-publish-time": "publishTime",
    "x-pulsar-event-time": "eventTime",
    "x-pulsar-producer-name": "producerName",
    "x-pulsar-sequence-id": "sequenceId",
    "x-pulsar-partition-key": "key",
    "x-pulsar-is-encrypted": "encrypted",
}


def _show_messages(run: CommandRun, headers: Any, body: bytes) -> None:
    """One message, or the messages of a batch."""
    message_id = headers.get("x-pulsar-message-id", "?")
    facts: dict[str, Any] = {name: headers[key] for key, name in _FACTS.items() if key in headers}
    if facts.get("encrypted") == "false":
        del facts["encrypted"]
    properties = json.loads(headers.get("x-pulsar-property", "{}"))
    if properties:
        facts["properties"] = properties
    count = int(headers.get("x-pulsar-num-batch-message", 0))
    if not count or "encrypted" in facts:
        print_message(message_id, body, facts, as_json=run.as_json)
        return
    from magnetar.broker.protocol import pulsar_api_pb2 as pb
    from magnetar.broker.protocol.messages import UndecodableEntryError, messages_in

    try:
        messages = list(messages_in(pb.MessageMetadata(num_messages_in_batch=count), body))
    except UndecodableEntryError as error:
        raise CliError(f"the batch: {error}") from error
    for message in filter(None, messages):
        own = {"key": message.key, "properties": message.properties}
        known = {**facts, **{name: value for name, value in own.items() if value}}
        shown_id = f"{message_id}:{message.batch_index}"
        print_message(shown_id, message.payload, known, as_json=run.as_json)


STEPS: dict[str, Callable[[CommandRun], int]] = {
    step.__name__: step
    for step in (
        *(create_tenant, list_clusters, delete_cluster),
        *(split_bundle, clear_namespace_backlog),
        *(list_topics, create_partitioned_topic, each_partition, partitioned_lookup),
        *(message_id_at, wait_for_process, offload),
        *(create_subscription, at_position, get_schema, peek_messages, show_message),
    )
}
