"""The pages of transactions: coordinators, what hasn't ended, and one transaction."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from magnetar.broker.console.actions import Action, Call
from magnetar.broker.console.admin_api import AdminApi, AdminError
from magnetar.broker.console.formats import plural, segment
from magnetar.broker.console.source import TRANSACTIONS, OpenTransactions
from magnetar.broker.console.topic_path import TopicPath
from magnetar.broker.console.views import Ask, Panel, View, panel, row_id

Json = Mapping[str, Any]

_OFF: Final = "transactionCoordinatorEnabled"
"""A broker without transactions refuses every call with this setting's name."""
_SLOW_MS: Final = 60_000
"""A transaction that is open for longer, or an end that takes longer, is marked."""


@dataclass(frozen=True, slots=True)
class CoordinatorRow:
    id: str
    number: int
    broker: str
    stats: Json
    """Empty: it told none."""
    why: str = ""
    """It told none."""

    @property
    def kind(self) -> str:
        """Of the mark in front: ``o``, ``w`` or ``e``."""
        if not self.stats:
            return "w"
        return "e" if self.stats.get("stuckEnds") else "o"


@dataclass(frozen=True, slots=True)
class TransactionRow:
    id: str
    name: str
    path: str
    """``0/39``."""
    status: str
    start_ms: int
    end_ms: int
    """When it times out."""
    owner: str
    where: str
    is_slow: bool
    is_stuck: bool

    @property
    def kind(self) -> str:
        return "e" if self.is_stuck else "w" if self.is_slow else "o"


@dataclass(frozen=True, slots=True)
class Participant:
    """A topic or subscription of a transaction, and what it says."""

    id: str
    topic: TopicPath
    subscription: str
    text: str
    """Where the transaction begins there."""
    error: str
    """Why it doesn't tell, or couldn't take the end."""


@dataclass(frozen=True, slots=True)
class TransactionSubject:
    """What a step is about."""

    most: int
    least: int
    metadata: Json = field(default_factory=dict)
    menu: str = "transactions"

    @property
    def name(self) -> str:
        return f"({self.most},{self.least})"

    @property
    def path(self) -> str:
        return f"{self.most}/{self.least}"

    @property
    def url(self) -> str:
        return f"transactions/{self.path}"

    @property
    def trail(self) -> tuple[tuple[str, str], ...]:
        return (("Transactions", "transactions"), (self.name, self.url))


async def transactions(ask: Ask) -> View:
    """Coordinators, and what hasn't ended, the oldest first."""
    shown = _number_of(ask.query.get("coordinator", ""))
    found, listed = await asyncio.gather(
        panel("Coordinators", _coordinators(ask.source.api), list),
        panel(
            "Transactions", ask.source.open_transactions(ask.query.get("after", ""), shown), _listed
        ),
    )
    if found.error is not None and _OFF in found.error.reason:
        text = f"Transactions are off: no broker has the setting {_OFF}=true."
        return View("message.html", "Transactions", "transactions", {"text": text})
    content: dict[str, Any] = {"coordinators": found, "open": listed, "shown": shown}
    content |= {"address": ask.address, "asked_after": ask.query.get("after", "")}
    if shown is not None:
        call = ask.source.api.call("GET", f"{TRANSACTIONS}/coordinatorInternalStats/{shown}")
        content["log"] = await panel("Log", call, _log)
    return View("transactions.html", "Transactions", "transactions", content)


def _number_of(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


async def _coordinators(api: AdminApi) -> list[CoordinatorRow]:
    """Raises AdminError: the list is refused; one that is silent is a row."""
    listed = await api.call("GET", f"{TRANSACTIONS}/coordinators")

    async def one(each: Json) -> CoordinatorRow:
        number, broker = int(each["id"]), str(each.get("brokerServiceUrl") or "")
        call = api.call("GET", f"{TRANSACTIONS}/coordinatorStats", {"coordinatorId": number})
        stats, why = dict[str, Any](), ""
        try:
            stats = await call
        except AdminError as error:
            why = "it isn't open" if error.status == 404 else str(error)
        return CoordinatorRow(row_id(str(number)), number, broker, stats, why)

    return list(await asyncio.gather(*map(one, listed)))


def _log(found: Json) -> dict[str, Any]:
    log = found["transactionLogStats"]
    stats = log["managedLedgerInternalStats"]
    return {"name": log["managedLedgerName"], **{key: stats.get(key) for key in _LOG}}


_LOG: Final = ("numberOfEntries", "totalSize", "lastConfirmedEntry", "ledgers")


def _listed(found: OpenTransactions) -> dict[str, Any]:
    now_ms = round(time.time() * 1000)
    rows = [transaction_row(each, now_ms) for each in found.rows]
    return {"rows": rows, "next": found.next, "silent": found.silent, "note": found.note}


def transaction_row(found: Json, now_ms: int) -> TransactionRow:
    """Of a line of ``openTransactions``."""
    name, start_ms = str(found["txnId"]), int(found["openTimestamp"])
    topics, subscriptions = found["partitions"], found["subscriptions"]
    parts = [plural(topics, "topic")] if topics else []
    parts += [plural(subscriptions, "subscription")] if subscriptions else []
    return TransactionRow(
        row_id(name),
        name,
        name.strip("()").replace(",", "/"),
        str(found["status"]),
        start_ms,
        start_ms + int(found["timeoutAt"]),
        str(found.get("owner", "")),
        ", ".join(parts),
        now_ms - start_ms >= _SLOW_MS,
        bool(found.get("errors")),
    )


async def transaction(ask: Ask) -> View:
    """One that hasn't ended."""
    try:
        subject = await read_transaction(ask)
    except AdminError as error:
        if error.status not in (400, 404):
            found: Panel[Any] = await panel("Transaction", _again(error), dict)
            return View("transaction.html", "Transaction", "transactions", {"found": found})
        text = "It has ended, or never was: coordinators forget what has ended."
        return View("message.html", "Not found", "transactions", {"text": text}, 404, live=0)
    found = Panel({"subject": subject, "row": _described(subject), "parts": _parts(subject)})
    return View("transaction.html", subject.name, "transactions", {"found": found})


async def _again(error: AdminError) -> Any:
    raise error


async def read_transaction(ask: Ask) -> TransactionSubject:
    """Raises AdminError."""
    most, least = (_number_of(ask.names[each]) for each in ("most", "least"))
    if most is None or least is None:
        raise AdminError(404, "there is no such transaction")
    path = f"{TRANSACTIONS}/transactionMetadata/{most}/{least}"
    return TransactionSubject(most, least, await ask.source.api.call("GET", path))


def _described(subject: TransactionSubject) -> TransactionRow:
    return transaction_row(listed_row(subject.metadata), round(time.time() * 1000))


def listed_row(metadata: Json) -> dict[str, Any]:
    """Of TransactionMetadata, a line as ``openTransactions`` has it."""
    acked = metadata.get("ackedPartitions") or {}
    return {
        **metadata,
        "partitions": len(metadata.get("producedPartitions") or {}),
        "subscriptions": sum(map(len, acked.values())),
        "errors": len((metadata.get("end") or {}).get("errors", ())),
    }


def _parts(subject: TransactionSubject) -> list[Participant]:
    return [*_participants(subject.metadata)]


def _participants(metadata: Json) -> Iterator[Participant]:
    late: Json = (metadata.get("end") or {}).get("errors", {})

    def of(topic: str, subscription: str, known: Json, text: str) -> Participant:
        error = known.get("error") or late.get(f"{topic} {subscription}".rstrip(), "")
        return Participant(
            *(row_id(topic, subscription), TopicPath.parse(topic), subscription, text, str(error))
        )

    for topic, known in (metadata.get("producedPartitions") or {}).items():
        start = known.get("startPosition")
        yield of(topic, "", known, f"messages from {start} on" if start else "no message yet")
    for topic, subscriptions in (metadata.get("ackedPartitions") or {}).items():
        for name, known in subscriptions.items():
            upto = known.get("cumulativeAckPosition")
            yield of(topic, name, known, f"all up to {upto}" if upto else "acknowledgements")


def _abort(subject: TransactionSubject, _: Any) -> Call:
    words = f"magnetar admin transactions abort-transaction -m {subject.most} -l {subject.least}"
    path = f"transactions/abortTransaction/{subject.path}"
    return Call("POST", path, words, then="transactions", version="v3")


def _lost(subject: TransactionSubject) -> str:
    row = _described(subject)
    return (
        f"Its messages are never delivered, and what it acknowledged comes again: {row.where}. "
        "Its client can't commit any more."
        if row.where
        else "Its client can't commit any more."
    )


TRANSACTION_ACTIONS: Final[tuple[Action[TransactionSubject], ...]] = (
    Action("abort", "Abort", _lost, _abort),
)


async def buffer_of(api: AdminApi, topic: TopicPath) -> Json | None:
    """What a topic knows of transactions; None: it had none, or the cluster has none."""
    found = await _known(api, f"transactionBufferStats/{topic.rest.partition('/')[2]}")
    return None if found is None or found["state"] == "NoSnapshot" else found


async def pending_acks_of(api: AdminApi, topic: TopicPath, subscription: str) -> Json | None:
    """What a subscription knows of them, as ``buffer_of``."""
    name = f"{topic.rest.partition('/')[2]}/{segment(quote(subscription, safe=''))}"
    found = await _known(api, f"pendingAckStats/{name}")
    return None if found is None or found["state"] == "None" else found


async def _known(api: AdminApi, path: str) -> Json | None:
    """None: it is refused, as where transactions are off; the page shows the topic all the same."""
    try:
        found: Json = await api.call("GET", f"{TRANSACTIONS}/{path}")
    except AdminError:
        return None
    return found
