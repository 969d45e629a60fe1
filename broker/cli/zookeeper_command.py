"""``magnetar zookeeper``: one ZooKeeper server in the foreground, or (``--check``) its probe.

The server is Apache ZooKeeper: this writes its files and becomes it, so that the signals of a
container's runtime reach Java itself.
"""

import argparse
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Final, NoReturn

from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.node_options import given_settings

_ANSWER_S_MAX: Final = 5.0
_SAID_MAX: Final = 4096


def run_zookeeper(options: argparse.Namespace) -> int:
    """Returns only for ``--check``: 0 yes, 1 no."""
    if options.check is not None:
        return _check(options)
    # Not among the data: volumes are copied and kept, keys should not be.
    copies = Path(tempfile.mkdtemp(prefix="zookeeper-")) if options.certificates else None
    try:
        _become(options, copies)
    finally:  # it could not
        if copies is not None:
            shutil.rmtree(copies, ignore_errors=True)


def _become(options: argparse.Namespace, copies: Path | None) -> NoReturn:
    """
    Args:
        copies: a folder for the certificates; None: the settings say all about TLS.
    """
    from magnetar.broker.config import ConfigError, read_properties
    from magnetar.broker.local_cluster.certificate_copies import (
        copy_certificates,
        follow_certificates,
        tls_settings,
    )
    from magnetar.broker.local_cluster.errors import LocalClusterError
    from magnetar.broker.local_cluster.java import (
        SECURITY_PROPERTIES,
        find_jars,
        find_java,
        log4j_properties,
        server_command,
    )
    from magnetar.broker.local_cluster.zookeeper_server import (
        heap_flags,
        own_id,
        parse_servers,
        server_cfg,
    )

    data = Path(options.data).absolute()
    try:
        settings = read_properties(Path(options.config)) if options.config else {}
        settings |= {} if copies is None else tls_settings(copies)
        settings |= given_settings(options)
        servers = parse_servers(options.server)
        number = own_id(options.id, socket.gethostname(), servers) if servers else None
        text = server_cfg(data, options.bind, options.client_port, servers, settings)
        flags = heap_flags(options.heap)
        java, jars = find_java(os.environ), find_jars()
    except (ConfigError, LocalClusterError) as error:
        raise CliError(str(error)) from error
    try:
        data.mkdir(parents=True, exist_ok=True)
        config = data / "zoo.cfg"
        config.write_text(text)
        if number is not None:
            (data / "myid").write_text(f"{number}\n")
        log_config = data / "log4j2.properties"
        log_config.write_text(log4j_properties(as_json=options.log_format == "json"))
        sys.stdout.flush()
        if copies is not None:
            copy_certificates(Path(options.certificates), copies)
            follow_certificates(Path(options.certificates), copies)
        security = data / "java.security"
        security.write_text(SECURITY_PROPERTIES)
        command = server_command(java, jars, config, flags, log_config, security)
        os.execv(java, command)
    except OSError as error:
        raise CliError(str(error)) from error


def _check(options: argparse.Namespace) -> int:
    """``live``: the process answers. ``ready``: it serves clients, so it has a quorum."""
    host = "127.0.0.1" if options.bind in ("0.0.0.0", "::", "") else options.bind
    words, good = {"live": (b"ruok", b"imok"), "ready": (b"srvr", b"Zookeeper version")}[
        options.check
    ]
    said = b""
    try:
        with socket.create_connection((host, options.client_port), _ANSWER_S_MAX) as connection:
            connection.sendall(words)
            while len(said) < _SAID_MAX and (more := connection.recv(_SAID_MAX)):
                said += more
    except OSError as error:
        raise CliError(f"{host}:{options.client_port}: {error}") from error
    if not said.startswith(good):
        raise CliError(f"{host}:{options.client_port}: {said.decode(errors='replace').strip()}")
    return 0
