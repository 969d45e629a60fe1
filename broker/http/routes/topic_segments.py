"""Where a topic's entries are, for readers that go to the bookies themselves. Our own route."""

from typing import Annotated, Any

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.http.dependencies import Flag, Service, Topic, flag
from magnetar.broker.http.parameters import Query
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode
from magnetar.broker.http.streamed_answers import in_pieces
from magnetar.broker.http.topics.topic_access import NOT_FOUND, OF_PARTITIONED, TOPIC, persistent
from magnetar.broker.http.topics.topic_segments import topic_segments

routes = Routes(
    TOPIC,
    tag="persistent topics",
    access=Access.CONSUME_401,
    mode=RoutingMode.TOPIC,
    statuses=NOT_FOUND,
)

_EXAMPLE: dict[str, Any] = {
    "topic": "persistent://public/default/orders-partition-0",
    "headBytes": 0,
    "terminated": False,
    "first": {"ledgerId": 5, "entryId": 0},
    "lastConfirmed": {"ledgerId": 9, "entryId": 41},
    "ledgers": [
        {
            "ledgerId": 5,
            "entries": 1000,
            "size": 123456,
            "createdAt": 1700000000000,
            "closedAt": 1700000600000,
            "copy": {
                "uuid": "0d8c7c3e-7b4e-4a66-8d5f-0f6f3f0f8a11",
                "driver": "filesystem",
                "location": {"fileSystemURI": "file:///mnt/copies"},
                "isOnly": True,
                "size": 124000,
            },
        },
        {
            "ledgerId": 9,
            "entries": 42,
            "size": 5120,
            "createdAt": 1700000600000,
            "closedAt": 0,
            "metadata": {
                "ensembleSize": 3,
                "writeQuorum": 3,
                "ackQuorum": 2,
                "ensembles": [{"firstEntry": 0, "bookies": ["b1", "b2", "b3"]}],
            },
        },
    ],
    "bookies": {"b1": {"host": "10.0.0.1", "port": 3181}},
    "instanceId": "4c4f7d4e-92c4-4d08-9a54-0c2c2bd5e3f1",
}


@routes.get(
    "/segments",
    statuses={
        200: {
            "description": "The topic at one moment",
            "content": {"application/json": {"example": _EXAMPLE}},
        },
        **OF_PARTITIONED,
        503: "The topic moves, or the port for readers can't be opened",
    },
)
async def segments(
    request: Request,
    service: Service,
    topic: Topic,
    fromLedger: Annotated[int, Query(ge=-1, lt=2**63, description="Leave out ledgers below")] = -1,
    locations: Annotated[
        str | None, Flag(True, "`false`: without `metadata`, `copy`, `bookies`: much cheaper")
    ] = None,
    compacted: Annotated[
        str | None, Flag(False, "`true`: with `compacted`, the ledger that a compaction left")
    ] = None,
) -> Response:
    """Where the entries are: ledgers, their bookies and copies, up to the last confirmed.

    For readers that take entries from bookies and copies themselves. All of it is as of one moment:
    no ledger reaches beyond `lastConfirmed`, and `first` is the first entry that is still there
    (behind `lastConfirmed`: nothing is). `closedAt` 0: may still be written; `createdAt` -1: not
    known. `metadata` is missing where bookies must not be asked any more, `copy` where there is no
    complete one. `compacted` is null where no compaction ran; its entries stand for those of the
    topic up to `horizon`. `bookies` has those that can be reached now; `bookieToken`, if it is
    there, has to be shown to them.
    """
    found = await persistent(service, topic, "Listing segments")
    pieces = await topic_segments(
        *(found, service.bookie_directory, fromLedger),
        locations=flag(locations, default=True),
        compacted=flag(compacted, default=False),
    )
    return await in_pieces(request, pieces)
