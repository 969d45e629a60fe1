"""People who look at a cluster while it is hurt: the console, and the calls behind its pages."""

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from urllib.parse import quote

from tests.nightly import NIGHTLY
from tests.waiting import wait_until

LIMIT_S = 40.0
"""No answer takes longer, whatever was killed: ``metadataStoreOperationTimeoutSeconds`` is
30. The longest of 800 took 3.5 s."""
_CLEAN = frozenset({502, 503, 504})
"""What an answer may be while a server is away; 500 is an error that nobody has thought of."""
_NO_ANSWER = 0
_CLUSTER = (
    *("console/", "console/topics?sort=msgBacklog", "console/subscriptions", "console/namespaces"),
    *("console/brokers", "console/bookies", "console/settings", "console/audit"),
    *("admin/v2/doctor", "admin/v2/history", "admin/v2/audit", "admin/v2/whoami"),
    *("admin/v2/topics-index?sort=storageSize", "admin/v2/subscriptions-index?view=backlog"),
    *("admin/v2/namespaces-index", "admin/v2/bookies/state", "admin/v2/roles"),
    *("admin/v2/broker-stats/connections", "metrics"),
)
_OF_TOPIC = (
    *("console/topic/{topic}", "console/topic/{topic}/subscriptions"),
    *("console/topic/{topic}/messages", "console/topic/{topic}/storage"),
    *("console/topic/{topic}/policies", "admin/v2/{topic}/explain"),
    "admin/v2/{topic}/subscription/keeper/explain",
    "admin/v2/{topic}/messages?filter=value%20~%20%22[37]%22&limit=20",
    "admin/v2/{topic}/messages?subscription=keeper",
    "admin/v2/{topic}/policies?applied=true",
)


def paths_of(topics: Sequence[str]) -> list[str]:
    """Everything that there is to see, below a broker's web address."""
    local = [quote(each.replace("://", "/")) for each in topics]
    return [*_CLUSTER, *(each.format(topic=topic) for topic in local for each in _OF_TOPIC)]


class Visits(threading.Thread):
    """Asks any broker for any page, one after the other.

    What it sees is right, or an error that says that a server is away: there is no 500, no 404 of
    what exists, and no answer that takes longer than ``LIMIT_S``. A broker that is stopped with
    SIGSTOP can't answer at all; nor need one that is killed.
    """

    def __init__(self, web_urls: Sequence[str], topics: Sequence[str], seed: int) -> None:
        super().__init__(daemon=True)
        self.wrong: list[str] = []
        self.answers: Counter[int] = Counter()
        self.longest_s = 0.0
        self._urls, self._paths, self._rng = list(web_urls), paths_of(topics), Random(seed)
        self._topics = topics
        self._end = threading.Event()
        self._stopped_urls: set[str] = set()

    def run(self) -> None:
        while not self._end.wait(0.25):
            url = self._rng.choice(self._urls)
            self._visit(url, self._rng.choice(self._paths))

    def _visit(self, url: str, path: str) -> None:
        could_stop = bool(self._stopped_urls)
        begun_s = time.monotonic()
        status, text = answer_of(f"{url}/{path}", LIMIT_S + 10)
        took_s = time.monotonic() - begun_s
        self.answers[status] += 1
        if could_stop or self._stopped_urls:
            return
        self.longest_s = max(self.longest_s, took_s)
        if status not in (200, _NO_ANSWER, *_CLEAN) or took_s > LIMIT_S:
            self.wrong.append(f"{url}/{path}: {status} after {took_s:.1f} s: {text[:300]}")

    @contextmanager
    def stopped(self, url: str) -> Iterator[None]:
        """That broker doesn't run: who is redirected to it waits for as long as it likes."""
        self._stopped_urls.add(url)
        try:
            yield
        finally:
            self._stopped_urls.clear()

    def all_answer(self, what: str) -> None:
        """Every page is there again, those of two topics, without anybody's help.

        At every broker (`make nightly`), or at any.
        """
        paths = paths_of(self._rng.sample(self._topics, 2))
        asked = self._urls if NIGHTLY else self._rng.sample(self._urls, 1)
        left = [(url, path) for path in paths for url in asked]
        seen = ""

        def done() -> bool:
            nonlocal seen
            while left:
                url, path = left[-1]
                status, text = answer_of(f"{url}/{path}", LIMIT_S)
                if status != 200:
                    seen = f"{url}/{path}: {status} {text[:300]}"
                    return False
                left.pop()
            return True

        wait_until(done, lambda: f"all pages are there after {what}: {seen}", 120)
        assert self.wrong == [], f"{what}: " + "\n".join(self.wrong)

    def stop(self) -> None:
        self._end.set()
        self.join(LIMIT_S + 20)
        assert self.wrong == [], "\n".join(self.wrong)
        assert self.answers[200] > 0


def check_nothing_moved(web_url: str, topics: Sequence[str], names: set[str]) -> None:
    """Subscriptions are those that were made, and "keeper", which nobody consumes, has it all."""
    for topic in topics:
        base = f"{web_url}/admin/v2/{topic.replace('://', '/')}"
        status, text = answer_of(f"{base}/internalStats", LIMIT_S)
        assert status == 200, text
        stored = json.loads(text)
        assert stored["cursors"].keys() == names, topic
        cursor = stored["cursors"]["keeper"]
        assert cursor["individuallyDeletedMessages"] == "[]", topic
        status, text = answer_of(f"{base}/stats", LIMIT_S)
        assert status == 200, text
        backlog = json.loads(text)["subscriptions"]["keeper"]["msgBacklog"]
        assert 0 < stored["numberOfEntries"] <= backlog, topic


def answer_of(url: str, timeout_s: float) -> tuple[int, str]:
    """Status, where redirects lead to, and the text; status 0: the connection has ended."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return _NO_ANSWER, repr(error)
