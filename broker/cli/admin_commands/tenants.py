"""Words of ``tenants``."""

from __future__ import annotations

from magnetar.broker.cli.admin_commands.model import AdminCommand, Option

_PATH = "/admin/v2/tenants/{tenant}"
_T = ("tenant",)
_OPTIONS = (
    Option(("-r", "--admin-roles"), "field:adminRoles", "roles that may administer it", "list"),
    Option(
        ("-c", "--allowed-clusters"),
        "field:allowedClusters",
        "clusters it may use (create: all of them)",
        "list",
    ),
)
_FORCE = Option(("-f", "--force"), "query:force", "with everything in it", "true")

WORDS: dict[str, dict[str, AdminCommand]] = {
    "tenants": {
        "list": AdminCommand("GET", "/admin/v2/tenants", "names of all tenants"),
        "get": AdminCommand("GET", _PATH, "one tenant's settings", _T),
        "create": AdminCommand("PUT", _PATH, "create one", _T, _OPTIONS, step="create_tenant"),
        "update": AdminCommand(
            "POST", _PATH, "change the settings given", _T, _OPTIONS, update=True
        ),
        "delete": AdminCommand("DELETE", _PATH, "delete some", _T, (_FORCE,), many=True),
    }
}
