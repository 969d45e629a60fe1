"""``magnetar profiles list|add|use|remove``."""

import argparse
import os
from dataclasses import replace

from magnetar.broker.cli.output import print_value
from magnetar.broker.cli.profiles import DEFAULT, Profiles, with_access


def run_profiles(options: argparse.Namespace) -> int:
    """Raises CliError: no such profile, or the file can't be used."""
    profiles = Profiles.of_user(os.environ)
    match options.action:
        case "list":
            _show(profiles, as_json=options.json)
        case "add":
            known = profiles.targets.get(options.name, DEFAULT)
            target = replace(
                known,
                service_url=options.url or known.service_url,
                admin_url=options.admin_url or known.admin_url,
            )
            target = with_access(target, options)
            target.admin_client(1.0)  # refuses what is no URL, no plugin or no file
            profiles.add(options.name, target)
        case "use":
            profiles.use(options.name)
        case "remove":
            profiles.remove(options.name)
    return 0


def _show(profiles: Profiles, *, as_json: bool) -> None:
    if as_json:
        known = {name: target.as_fields() for name, target in profiles.targets.items()}
        for fields in known.values():
            if "auth_params" in fields:
                fields["auth_params"] = "******"
        print_value({"current": profiles.current, "profiles": known}, as_json=True)
        return
    for name, target in sorted(profiles.targets.items()):
        mark = "*" if name == profiles.current else " "
        who = f"  {target.auth_plugin}" if target.auth_plugin else ""
        print(f"{mark} {name}  {target.service_url}  {target.admin_url}{who}")
