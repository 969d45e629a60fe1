"""Words of ``bookies``, ``resource-quotas`` and ``resourcegroups``."""

from __future__ import annotations

from magnetar.broker.cli.admin_commands.model import AdminCommand, Option

_RACKS = "/admin/v2/bookies/racks-info"
_GROUPS = "/admin/v2/resourcegroups"
_QUOTAS = "/admin/v2/resource-quotas"
_BOOKIE = Option(("-b", "--bookie"), "path:bookie", "host:port", required=True)
_NAMESPACE = Option(("-n", "--namespace"), "path:namespace", "tenant/namespace")
_BUNDLE = Option(("-b", "--bundle"), "path:bundle", "0x00000000_0x40000000")


def _rate(short: str, long: str, name: str, what: str) -> Option:
    return Option((short, long), f"field:{name}", what, "float", required=True)


_LIMITS = (
    Option(("-mr", "--msg-publish-rate"), "field:publishRateInMsgs", "messages a second", "int"),
    Option(("-br", "--bytes-publish-rate"), "field:publishRateInBytes", "bytes a second", "int"),
    Option(("-dr", "--msg-dispatch-rate"), "field:dispatchRateInMsgs", "messages a second", "int"),
    Option(("-dbr", "--bytes-dispatch-rate"), "field:dispatchRateInBytes", "bytes a second", "int"),
)

WORDS: dict[str, dict[str, AdminCommand]] = {
    "bookies": {
        "list-bookies": AdminCommand("GET", "/admin/v2/bookies/all", "all storage nodes"),
        "racks-placement": AdminCommand("GET", _RACKS, "racks of all of them"),
        "get-bookie-rack": AdminCommand("GET", _RACKS + "/{bookie}", "rack of one", (), (_BOOKIE,)),
        "set-bookie-rack": AdminCommand(
            "POST",
            _RACKS + "/{bookie}",
            "put one into a rack",
            (),
            (
                _BOOKIE,
                Option(("-g", "--group"), "query:group", "group of racks (default)"),
                Option(("-r", "--rack"), "field:rack", "rack", required=True),
                Option(("-hn", "--hostname"), "field:hostname", "its host"),
            ),
        ),
        "delete-bookie-rack": AdminCommand(
            "DELETE", _RACKS + "/{bookie}", "forget its rack", (), (_BOOKIE,)
        ),
    },
    "resource-quotas": {
        "get": AdminCommand(
            "GET",
            _QUOTAS,
            "of a bundle, or what holds by default",
            (),
            (_NAMESPACE, _BUNDLE),
            step="of_quota",
        ),
        "set": AdminCommand(
            "POST",
            _QUOTAS,
            "of a bundle, or what holds by default",
            (),
            (
                _NAMESPACE,
                _BUNDLE,
                _rate("-mi", "--msgRateIn", "msgRateIn", "messages a second that come"),
                _rate("-mo", "--msgRateOut", "msgRateOut", "messages a second that go"),
                _rate("-bi", "--bandwidthIn", "bandwidthIn", "bytes a second that come"),
                _rate("-bo", "--bandwidthOut", "bandwidthOut", "bytes a second that go"),
                _rate("-mem", "--memory", "memory", "megabytes"),
                Option(
                    ("-d", "--dynamic"),
                    "field:dynamic",
                    "the load manager may change it",
                    "true",
                    default=False,
                ),
            ),
            step="of_quota",
        ),
        "reset-namespace-bundle-quota": AdminCommand(
            "DELETE",
            _QUOTAS + "/{namespace}/{bundle}",
            "back to what holds by default",
            (),
            (
                Option(_NAMESPACE.flags, _NAMESPACE.to, _NAMESPACE.help, required=True),
                Option(_BUNDLE.flags, _BUNDLE.to, _BUNDLE.help, required=True),
            ),
        ),
    },
    "resourcegroups": {
        "list": AdminCommand("GET", _GROUPS, "names of all groups"),
        "get": AdminCommand(
            "GET", _GROUPS + "/{resourcegroup}", "limits of one", ("resourcegroup",)
        ),
        "create": AdminCommand(
            "PUT", _GROUPS + "/{resourcegroup}", "create one", ("resourcegroup",), _LIMITS
        ),
        "update": AdminCommand(
            "PUT", _GROUPS + "/{resourcegroup}", "change its limits", ("resourcegroup",), _LIMITS
        ),
        "delete": AdminCommand(
            "DELETE", _GROUPS + "/{resourcegroup}", "delete one", ("resourcegroup",)
        ),
    },
}
