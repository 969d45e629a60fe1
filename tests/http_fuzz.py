"""Fuzzing the HTTP port from its own OpenAPI document: cases, a broker to throw them at, verdicts.

Cases come from schemathesis (valid and invalid by the document) and are then bent: names in paths
become ones that exist, bodies become any JSON or any bytes. A verdict is about what every request
is owed, whatever it asks for: an answer in time, never a 500, an error with a reason, and no effect
of what was refused.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import requests
import uvloop
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from magnetar.broker.config import BrokerConfig
from magnetar.broker.server.standalone import Standalone
from magnetar.metadata.store import MetadataStore
from tests.stalls import STALL_MS

ANSWER_S_MAX = 30.0
_ROOTS = ("/admin", "/schemas", "/managed-ledgers")
"""What admin calls change and nothing else does: policies, partitions, schemas, logs, cursors."""
_VALUES = (
    "/admin",
    "/schemas",
)  # values of logs and cursors change with messages and by themselves
_TOPICS = ("plain", "plain", "plain", "parted", "parted-partition-0", "gone")
_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["", "0", "-1", "persistent://public/default/x", "2026-01-01", "AA=="]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
_BAD_SEGMENTS = (
    "%00",
    "%2F",
    "%FF",
    "%25",
    ".",
    "..",
    "%20",
    "a" * 300,
    "-1",
    "9" * 30,
    "%F0%9F%98%80",
)


class FuzzedBroker:
    """A standalone broker on a thread of its own, whose state can be looked at."""

    def __init__(self, data: Path) -> None:
        self._config = BrokerConfig(
            data_dir=str(data),
            broker_service_port=0,
            web_service_port=0,
            broker_delete_inactive_topics_enabled=False,  # changes come from requests alone
            loop_stall_threshold_millis=STALL_MS,
        )
        self._ready: Future[Standalone] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._dump: dict[str, bytes] | None = None
        self.url = ""

    def __enter__(self) -> "FuzzedBroker":
        self._thread.start()
        self.url = self._ready.result(60).web_url
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        standalone = Standalone(self._config)
        await standalone.start()
        standalone.watch_loop()
        store = standalone.service.store
        for root in _ROOTS:
            store.watch(root, lambda _: self._changed())
        self._ready.set_result(standalone)
        await self._stop.wait()
        await standalone.close()

    def state(self) -> dict[str, bytes]:
        """Everything that a refused request must not change."""
        return asyncio.run_coroutine_threadsafe(self._dumped(), self._loop).result(60)

    def _changed(self) -> None:
        self._dump = None

    async def _dumped(self) -> dict[str, bytes]:
        store = self._ready.result().service.store
        await store.exists("/")  # events of earlier commits come before its answer
        while (found := self._dump) is None:
            self._dump = {}  # a change meanwhile makes it None again
            found = await _dump(store)
            if self._dump is not None:
                self._dump = found
        return found


async def _dump(store: MetadataStore) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    stack = list(_ROOTS)
    while stack:
        path = stack.pop()
        stack += [f"{path}/{child}" for child in await store.children(path)]
        value = await store.get(path) if path.startswith(_VALUES) else None
        found[path] = b"" if value is None else value.value
    return found


def _changes(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """Paths whose value is another one, or that came or went.

    The bundles of a namespace are written down by whoever asks for them first, with what they were
    anyway: that is no change.
    """
    return sorted(
        path
        for path in after.keys() | before.keys()
        if after.get(path) != before.get(path)
        if path in before or not path.startswith("/admin/local-policies")
    )


@dataclass(slots=True)
class Verdict:
    what: str
    curl: str

    def __str__(self) -> str:
        return f"{self.what}\n    {self.curl}"


class Fuzzer:
    """Throws cases of one operation at a broker, and collects what was wrong."""

    def __init__(self, broker: FuzzedBroker, examples_max: int, seed_number: int) -> None:
        self._broker = broker
        self._examples_max = examples_max
        self._seed = seed_number
        self._namespaces = 0
        self._namespace: str | None = None
        self._prepared: dict[str, bytes] = {}
        self._http = requests.Session()
        self.sent = 0
        self.statuses: Counter[int] = Counter()
        self.verdicts: list[Verdict] = []

    def run(self, operation: Any) -> None:
        """Send ``examples_max`` cases of an operation of a schemathesis schema."""
        from schemathesis import GenerationMode

        if self._namespace is None or self._broker.state() != self._prepared:
            self._namespace = self._prepare()
            self._prepared = self._broker.state()
        namespace = self._namespace
        modes = st.sampled_from([GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
        strategies = {
            mode: operation.as_strategy(generation_mode=mode)
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        }

        @seed(self._seed)
        @settings(
            max_examples=self._examples_max,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(data=st.data())
        def throw(data: st.DataObject) -> None:
            try:
                case = data.draw(strategies[data.draw(modes)])
            except Exception as error:  # an operation that can't be wrong in any way
                if type(error).__name__ not in ("Unsatisfiable", "InvalidArgument"):
                    raise
                case = data.draw(strategies[GenerationMode.POSITIVE])
            self._send(*_bend(case, data, namespace, self._broker.url))

        throw()

    def _send(self, method: str, url: str, kwargs: dict[str, Any]) -> None:
        self.sent += 1
        before = self._broker.state()
        request = requests.Request(method, self._broker.url, **kwargs).prepare()
        request.url = url  # as it is: requests would tidy it up
        curl = f"{method} {url} {request.headers} {request.body!r:.300}"
        try:
            with self._http.send(request, timeout=ANSWER_S_MAX, stream=True) as answer:
                status, kind = answer.status_code, answer.headers.get("content-type", "")
                content = answer.content if status >= 400 else b""
        except requests.RequestException as error:
            self.verdicts.append(Verdict(f"no answer: {type(error).__name__}: {error}", curl))
            return
        self.statuses[status] += 1
        if status >= 500 and status not in (501, 503):
            self.verdicts.append(Verdict(f"{status} {content[:200]!r}", curl))
        if status < 400:
            return
        if content and not (kind.startswith("application/json") and b'"reason"' in content):
            self.verdicts.append(Verdict(f"{status} without a reason: {content[:100]!r}", curl))
        if changed := _changes(before, self._broker.state()):
            self.verdicts.append(Verdict(f"{status}, but it changed {changed[:5]}", curl))

    def _prepare(self) -> str:
        """A namespace with a topic, messages, a subscription and a partitioned topic."""
        self._namespaces += 1
        namespace = f"ns{self._namespaces}"
        cluster = {"allowedClusters": ["standalone"]}
        base = f"/admin/v2/persistent/fuzz/{namespace}"
        text = {"messages": [{"payload": "one"}, {"payload": "two", "key": "k"}]}
        with httpx.Client(base_url=self._broker.url, timeout=ANSWER_S_MAX) as http:
            http.put("/admin/v2/tenants/fuzz", json=cluster)
            for path, body in (
                (f"/admin/v2/namespaces/fuzz/{namespace}", None),
                (f"{base}/plain", None),
                (f"{base}/plain/subscription/sub", None),
                (f"{base}/parted/partitions", 2),
            ):
                answer = http.put(path, json=body)
                assert answer.status_code in (200, 204), answer.text
            answer = http.post(f"/topics/persistent/fuzz/{namespace}/plain", json=text)
            assert answer.status_code == 200, answer.text
        return namespace


def _bend(
    case: Any, data: st.DataObject, namespace: str, base_url: str
) -> tuple[str, str, dict[str, Any]]:
    """The request of a case: mostly with names that exist, at times with a hopeless body."""
    kwargs = case.as_transport_kwargs(base_url=base_url)
    names = {
        "domain": st.sampled_from(["persistent"] * 5 + ["non-persistent"]),
        "tenant": st.just("fuzz"),
        "namespace": st.just(namespace),
        "topic": st.sampled_from(_TOPICS),
        "subscription": st.sampled_from(["sub", "sub", "other"]),
        "cluster": st.just("standalone"),
        "bundle": st.sampled_from(["0x00000000_0xffffffff", "0x00000000_0x08000000"]),
    }
    path: str = case.path
    exact = data.draw(st.integers(0, 9)) < 7  # all names exist, or each by its own chance
    for name, value in (case.path_parameters or {}).items():
        chosen = str(value)
        if name in names and (exact or data.draw(st.integers(0, 9)) < 8):
            chosen = data.draw(names[name])
        text = quote(chosen, safe="")
        if not exact and data.draw(st.integers(0, 9)) == 0:
            text = data.draw(st.sampled_from(_BAD_SEGMENTS))
        path = path.replace(f"{{{name}}}", text or "x")
    params = dict(kwargs.get("params") or {})
    if path.endswith("/messages") and str(params.get("waitMs", "5000")).isdecimal():
        params["waitMs"] = min(int(params.get("waitMs", 50)), 50)  # a long poll is no hang
    query = requests.Request("GET", "http://h/", params=params).prepare().url or ""
    url = base_url + path + ("?" + query.partition("?")[2] if "?" in query else "")
    sent = {key: kwargs[key] for key in ("headers", "json", "data") if kwargs.get(key) is not None}
    sent["headers"] = _sendable(dict(sent.get("headers") or {}))
    if "json" in sent or "data" in sent:
        wild = data.draw(st.integers(0, 3))
        if wild == 0:
            sent.pop("data", None)
            sent["json"] = data.draw(_JSON)
        elif wild == 1 and data.draw(st.booleans()):
            sent.pop("json", None)
            sent["data"] = data.draw(st.binary(max_size=50))
    return case.method, url, sent


def _sendable(headers: dict[str, Any]) -> dict[str, str]:
    """Headers that an HTTP client can send at all; those of framing are the client's business."""
    mine = {"content-length", "transfer-encoding", "host", "connection", "expect"}
    return {
        str(name): str(value)
        for name, value in headers.items()
        if str(name).lower() not in mine and str(value).isascii() and str(value).isprintable()
    }


@contextmanager
def fuzzed_schema(data: Path) -> Iterator[tuple[FuzzedBroker, Any]]:
    """A running broker, and its document as schemathesis understands it."""
    import schemathesis

    with FuzzedBroker(data) as broker:
        document = httpx.get(f"{broker.url}/openapi.json", timeout=60).json()
        yield broker, schemathesis.openapi.from_dict(document)
