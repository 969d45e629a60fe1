"""``magnetar console``: the web console in front of any cluster of Magnetar or Apache Pulsar."""

import argparse
import asyncio
import socket

from magnetar.broker.cli.errors import CliError, RefusedError, UnreachableError
from magnetar.broker.cli.profiles import target_of


def run_console(options: argparse.Namespace) -> int:
    """Serves until a signal comes. Raises CliError: nothing answers at the admin URL."""
    asyncio.run(_serve(options))
    return 0


async def _serve(options: argparse.Namespace) -> None:
    import uvicorn

    from magnetar.broker.console.admin_api import AdminError
    from magnetar.broker.console.server import console_app

    target = target_of(options)
    # An address that only stands beside a cluster that wasn't asked for may be another cluster's.
    is_its = options.url or options.profile
    try:
        async with console_app(
            target.admin_url,
            target.access,
            bind_address=options.bind,
            say=lambda step, result: print(f"{step:<8} {result}", flush=True),
            service_url=target.service_url if is_its else "",
            environment=options.environment,
            read_only=options.read_only,
            contents=options.messages,
            masked_fields=options.masked_fields,
        ) as app:
            config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
            # Who reads the line below may come at once.
            with _listener(options.bind, options.port) as listener:
                print(
                    f"console of {target.admin_url}: http://{options.bind}:{options.port}/console/",
                    flush=True,
                )
                await uvicorn.Server(config).serve(sockets=[listener])
    except AdminError as error:
        if error.status == 503:
            raise UnreachableError(str(error), target.admin_url) from error
        if error.status in (401, 403):
            text = f"login    HTTP {error.status}\nReason: {error}"
            raise RefusedError(text, error.status) from error
        raise CliError(f"{target.admin_url} is no admin API: {error}") from error


def _listener(address: str, port: int) -> socket.socket:
    """Raises CliError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        raise CliError(f"--bind {address} --port {port}: {error.strerror or error}") from error
