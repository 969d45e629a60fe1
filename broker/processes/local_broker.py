"""One of several brokers of this machine, over its storage process."""

import dataclasses
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from starlette.applications import Starlette

from magnetar.broker.config import BrokerConfig
from magnetar.broker.http.metrics.metrics import metrics_of
from magnetar.broker.processes.places import folder_of, socket_of, token_file_of
from magnetar.broker.processes.plan import FIRST_BROKER
from magnetar.broker.processes.shared_metrics import MetricsSocket, pages_of_others
from magnetar.broker.processes.states import read_states
from magnetar.broker.server.cluster_broker import ClusterBroker, run_broker
from magnetar.broker.server.embedded_storage import with_place_of_copies
from magnetar.broker.service.broker_service import BrokerService
from magnetar.metadata.factory import UNIX_SCHEME

_SESSION_MS: Final = 6_000
"""Of a process that hangs: one that dies is missed at once."""


class LocalBroker(ClusterBroker):
    """A broker of a cluster whose only bookie is the storage process's."""

    has_auto_recovery = False  # there is no second copy

    def __init__(self, config: BrokerConfig, name: str) -> None:
        """``name``: of this process, in the log and in metrics."""
        super().__init__(config)
        self._name = name

    async def _show_metrics(
        self, stack: AsyncExitStack, service: BrokerService, app: Starlette
    ) -> None:
        """The first broker's page has the series of all processes."""
        folder, service.process_name = folder_of(self.config), self._name
        service.doctor.processes = partial(read_states, folder)
        if self._name == FIRST_BROKER:
            service.other_metrics = partial(pages_of_others, folder)
            return
        socket = MetricsSocket(folder, self._name, lambda: metrics_of(app, service))
        await socket.listen()
        stack.push_async_callback(socket.close)


def broker_settings(config: BrokerConfig) -> BrokerConfig:
    """``config`` of the whole as one of its brokers needs it."""
    token = token_file_of(config).as_uri() if config.authentication_enabled else ""
    return dataclasses.replace(
        with_place_of_copies(config),
        metadata_store_url=f"{UNIX_SCHEME}{socket_of(config)}",
        metadata_store_session_timeout_millis=_SESSION_MS,
        managed_ledger_default_ensemble_size=1,
        managed_ledger_default_write_quorum=1,
        managed_ledger_default_ack_quorum=1,
        bookkeeper_client_authentication_plugin="token" if token else "",
        bookkeeper_client_authentication_parameters=token,
    )


def run(config: BrokerConfig, name: str) -> int:
    """Run until SIGTERM, SIGINT or a fatal error. Exit codes: docs/internals/failures.md."""
    settings = broker_settings(config)
    return run_broker(settings, lambda: LocalBroker(settings, name))
