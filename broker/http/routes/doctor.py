"""What is wrong with the cluster; own paths, below none of Pulsar's, whose names are clusters'."""

from starlette.responses import Response

from magnetar.broker.http.dependencies import Service
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode

routes = Routes("/admin/v2/doctor", tag="brokers", access=Access.SUPERUSER, mode=RoutingMode.LOCAL)

_FINDINGS = {
    "findings": [
        {
            "check": "bookie-lost",
            "severity": "warning",
            "subject": "bookie-2:3181",
            "sentence": "bookie-2:3181: the bookie isn't there, and still belongs to the cluster",
            "command": "magnetar bookie-shell decommissionbookie bookie-2:3181",
            "sinceMs": None,
            "more": 0,
        }
    ],
    "notLookedAt": [],
}


@routes.get(
    "",
    example={
        "cluster": "main",
        "brokerId": "broker-1:8080",
        "checkedMs": 1_800_000_000_000,
        "brokers": ["broker-1:8080", "broker-2:8080"],
        "addresses": ["pulsar://broker-1:6650", "pulsar://broker-2:6650"],
        **_FINDINGS,
    },
)
async def examine_cluster(service: Service) -> Response:
    """What is wrong with the cluster, the worst first, with the commands that mend it.

    `severity`: `critical`, `warning` or `note`. `notLookedAt` says what couldn't be looked at, and
    why. An answer is given again for five seconds, what brokers with
    many topics know of them for up to a minute.
    """
    return JsonResponse((await service.doctor.cluster_report()).as_json())


@routes.get(
    "/broker",
    example={
        "cluster": "main",
        "brokerId": "broker-1:8080",
        "checkedMs": 1_800_000_000_000,
        "brokers": ["broker-1:8080"],
        "addresses": ["pulsar://broker-1:6650"],
        "clockMs": 1_800_000_000_000,
        "settings": {"clusterName": "main"},
        **_FINDINGS,
    },
)
async def examine_broker(service: Service) -> Response:
    """The part of it that this broker knows by itself, with its settings and its clock.

    Brokers ask each other for it.
    """
    return JsonResponse(await service.doctor.broker_report())
