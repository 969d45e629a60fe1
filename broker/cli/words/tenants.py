"""Words of ``tenants``."""

from __future__ import annotations

from broker.cli.words.model import Option, Word

__all__ = ["WORDS"]

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

WORDS: dict[str, dict[str, Word]] = {
    "tenants": {
        "list": Word("GET", "/admin/v2/tenants", "names of all tenants"),
        "get": Word("GET", _PATH, "one tenant's settings", _T),
        "create": Word("PUT", _PATH, "create one", _T, _OPTIONS, step="create_tenant"),
        "update": Word("POST", _PATH, "change the settings given", _T, _OPTIONS, update=True),
        "delete": Word("DELETE", _PATH, "delete some", _T, (_FORCE,), many=True),
    }
}
