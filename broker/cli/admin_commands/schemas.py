"""Words of ``schemas``."""

from __future__ import annotations

from magnetar.broker.cli.admin_commands.model import AdminCommand, Option

_PATH = "/admin/v2/schemas/{plain_topic}"
_T = ("topic",)
_FILE = Option(
    ("-f", "--filename"),
    "body",
    'JSON file: {"type": ..., "schema": ..., "properties": {}}',
    "json-file",
    required=True,
)

WORDS: dict[str, dict[str, AdminCommand]] = {
    "schemas": {
        "get": AdminCommand(
            "GET",
            _PATH + "/schema",
            "the newest version, one, or all",
            _T,
            (
                Option(("-v", "--version"), "step:version", "this one", "int", group="which"),
                Option(("-a", "--all-version"), "step:all", "all of them", "true", group="which"),
            ),
            step="get_schema",
        ),
        "metadata": AdminCommand("GET", _PATH + "/metadata", "how its versions are stored", _T),
        "upload": AdminCommand("POST", _PATH + "/schema", "register a version", _T, (_FILE,)),
        "delete": AdminCommand(
            "DELETE",
            _PATH + "/schema",
            "mark it deleted",
            _T,
            (Option(("-f", "--force"), "query:force", "with all versions", "true"),),
        ),
        "compatibility": AdminCommand(
            "POST", _PATH + "/compatibility", "would it be accepted", _T, (_FILE,)
        ),
        "test-compatibility": AdminCommand(
            "POST", _PATH + "/compatibility", "the same by its old name", _T, (_FILE,)
        ),
        "version": AdminCommand(
            "POST", _PATH + "/version", "which version it is, -1: none", _T, (_FILE,)
        ),
    }
}
