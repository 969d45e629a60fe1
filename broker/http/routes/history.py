"""What was in the last hours: of the cluster, and of single topics. Our own routes.

``broker/index/figure_recorder.py`` has the figures, in memory.
"""

from typing import Annotated, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.cluster.broker_client import BrokerCall
from magnetar.broker.http.dependencies import Flag, Service, Topic, flag
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.routing.scatter_gather import Spread
from magnetar.broker.http.streamed_answers import long_json
from magnetar.broker.http.topics.topic_access import NOT_FOUND, TOPIC, loaded, not_found
from magnetar.broker.index.figure_recorder import SUBSCRIPTION_SERIES, TOPIC_SERIES, TOTALS
from magnetar.broker.index.history_answer import (
    broker_history,
    merged_brokers,
    merged_partitions,
    topic_history,
)
from magnetar.broker.protocol.topic_name import TopicName
from magnetar.metadata.loop_turns import run_in_turns

routes = Routes(tag="index", access=Access.SUPERUSER, mode=RoutingMode.LOCAL)

_PATH: Final = "/admin/v2/history"
_ANSWER_S: Final = 2.0
"""Until another broker is named as silent."""
_TIMES: Final = {"since": 1795867250000, "times": [1795867250000, 1795867260000]}


@routes.get(
    _PATH,
    example={
        **_TIMES,
        "series": {field: [0.0, 12.5] for field in TOTALS},
        "brokers": {
            "10.0.0.7:8080": {"since": 1795867250000, **dict.fromkeys(TOTALS, 12.5)},
        },
        "silentBrokers": {"10.0.0.8:8080": "Broker 10.0.0.8:8080 can't be reached"},
    },
)
async def history(
    service: Service,
    spread: Spread,
    local: Annotated[str | None, Flag(False, "`true`: only of the asked broker")] = None,
) -> Response:
    """Totals of the last five hours, of all brokers together.

    A point a minute, in the last ten minutes every ten seconds as long as somebody asks for lists
    with figures. Each broker keeps its own in memory: `brokers` says since when, and has its latest
    ones. Before that time it counts nothing. Latencies are of what was published between two
    points, those of the slowest broker; null: nothing was published.
    """

    async def here() -> dict[str, Any]:
        return broker_history(service.figure_recorder, service.broker_id)

    if flag(local) or service.sharing is None:
        return JsonResponse({**await here(), "silentBrokers": {}})
    call = BrokerCall("GET", _PATH, "local=true")
    found = await spread.brokers(here, call, answer_s=_ANSWER_S)
    if not found.values:
        found.check()
    return JsonResponse({**merged_brokers(found.values), "silentBrokers": found.failures()})


@routes.get(
    TOPIC + "/history",
    access=Access.LOOKUP_401,
    mode=RoutingMode.TOPIC,
    statuses=NOT_FOUND,
    example={
        **_TIMES,
        "series": {field: [0.0, 12.5] for field in TOPIC_SERIES},
        "subscriptions": {
            "billing": {**_TIMES, "series": {field: [0.0, 12.5] for field in SUBSCRIPTION_SERIES}}
        },
    },
)
async def history_of_topic(
    request: Request,
    service: Service,
    topic: Topic,
    spread: Spread,
    subscriptions: Annotated[str | None, Flag(True, "Also of its subscriptions")] = None,
) -> Response:
    """What a topic and its subscriptions did in the last five hours.

    A point a minute, in the last ten minutes every ten seconds as long as somebody asks for lists
    with figures. Of a partitioned topic it is the sum of its partitions. A broker keeps the 2,000
    topics and the 2,000 subscriptions that are busiest or furthest behind, in memory, as long as it
    serves them; others have no points, and `since` is null.
    """

    async def one(name: TopicName) -> dict[str, Any]:
        found = await loaded(service, name)
        names = found.subscriptions if flag(subscriptions, default=True) else ()
        return await run_in_turns(topic_history(service.figure_recorder, found.full_name, names))

    answers = (await spread.parts(topic, one)).found(not_found(topic)).values
    if len(answers) == 1:
        return await long_json(request, answers[0])
    return await long_json(request, await run_in_turns(merged_partitions(answers)))
