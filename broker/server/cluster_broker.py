"""A broker of a cluster: metadata in ZooKeeper, bookies elsewhere, nothing on its own disk."""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import httpx  # noqa: F401  # for the first call to a broker, whose turn of the loop it would hold

from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.login import (
    PLUGINS,
    SECTION,
    SECTION_SETTING,
    SaslLogin,
)
from magnetar.bookkeeper.client.placement import EnsemblePlacementPolicy
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.client.pool_placement import placement_for
from magnetar.bookkeeper.cluster_bookies import open_pool
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.layout.find_layout import find_layout, open_layout
from magnetar.bookkeeper.malloc import keep_freed_memory
from magnetar.bookkeeper.tls import TlsFiles, client_context
from magnetar.broker.bookie_client_settings import bookie_health, placement_config
from magnetar.broker.cluster.load_sharing import LoadSharing
from magnetar.broker.config import BrokerConfig, ConfigError
from magnetar.broker.migration.errors import MigrationError
from magnetar.broker.migration.marker import check_may_serve
from magnetar.broker.server.bookie_transport_settings import bookie_token, transport_config
from magnetar.broker.server.standalone import Standalone, run_node
from magnetar.broker.service.bookie_access import BookieAddressResolver, RegisteredBookies
from magnetar.broker.service.bookie_cluster import BookieCluster
from magnetar.broker.service.broker_service import BrokerService
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.sasl.jaas import read_credentials
from magnetar.metadata.store import MetadataStore, SessionEvent

_MIB = 1024 * 1024
_RETRY_S = 1.0
_FRAME_OVERHEAD_BYTES = 10 * 1024


class ClusterBroker(Standalone):
    """The parts of one broker process; see ``Standalone``."""

    word = "broker"
    has_auto_recovery = True  # of its bookies
    _looking: asyncio.Task[None] | None = None

    async def _open_store(self) -> MetadataStore:
        if not self.config.metadata_store_url:
            raise ConfigError("metadataStoreUrl is not set: zk:HOST:PORT of the cluster")
        tls_files(self.config)  # mistakes are told before anything is opened
        if self.config.apache_store_url is None:
            bookie_token(self.config)
        else:
            bookie_login(self.config)
        store = await super()._open_store()
        try:
            await check_may_serve(store)
        except BaseException:
            await store.close()
            raise
        store.on_session_event(partial(self._on_store_session_event, store))
        return store

    def _on_store_session_event(self, store: MetadataStore, event: SessionEvent) -> None:
        # Without a session it wasn't among the live brokers that a swap looks for.
        if event is SessionEvent.SESSION_REESTABLISHED:
            if self._looking is not None:
                self._looking.cancel()
            self._looking = asyncio.get_running_loop().create_task(self._look_at_swaps(store))

    async def _look_at_swaps(self, store: MetadataStore) -> None:
        """End if the cluster was given to Pulsar's brokers: they don't see what this one stores."""
        while True:
            try:
                return await check_may_serve(store)
            except MigrationError as error:
                return self._on_fatal(error)
            except MetadataError:
                await asyncio.sleep(_RETRY_S)

    async def _open_bookies(self, stack: AsyncExitStack, store: MetadataStore) -> BookieCluster:
        config = self.config
        if config.apache_store_url is None:
            layout = await open_layout(store)
        else:
            store = await self._connect_store(config.apache_store_url)
            stack.push_async_callback(store.close)
            layout = await find_layout(store) or BookKeeperLayout()
        pool = await open_pool(
            *(stack, store, layout, transport_config(config), tls_files(config)),
            protocol=protocol_config(config),
            health=bookie_health(config, _monotonic_ms, random.Random()),
        )
        return BookieCluster(pool, store, layout, has_auto_recovery=self.has_auto_recovery)

    async def _open_placement(
        self, stack: AsyncExitStack, pool: BookiePool, rng: random.Random
    ) -> EnsemblePlacementPolicy:
        settings = placement_config(self.config)
        return await stack.enter_async_context(placement_for(settings, pool, rng))

    def _directory(self, stack: AsyncExitStack, bookies: BookieCluster) -> BookieAddressResolver:
        return RegisteredBookies(bookies.store, bookies.pool)

    def _with_place_of_copies(self, config: BrokerConfig) -> BrokerConfig:
        return config  # brokers must share it: nobody but an operator knows such a place

    def _share_load(self, service: BrokerService) -> None:
        from magnetar.broker.http.server.app import (
            product_version,  # loaded already, before the store was opened
        )

        service.sharing = LoadSharing(service, product_version())

    def give_up_waiting(self) -> None:
        """Nothing of ours waits for a disk."""


def _monotonic_ms() -> int:
    return int(time.monotonic() * 1000)


def protocol_config(config: BrokerConfig) -> ProtocolConfig:
    """How Apache's bookies are talked to, out of the broker's settings."""
    of_ours, tls = transport_config(config), tls_files(config)
    return ProtocolConfig(
        tls=None if tls is None else partial(client_context, tls),
        login=None if config.apache_store_url is None else bookie_login(config),
        add_timeout_s=of_ours.add_timeout_s,
        read_timeout_s=of_ours.read_timeout_s,
        backlog_bytes=of_ours.backlog_bytes,
        pending_bytes_max=of_ours.pending_bytes_max,
        # As Pulsar sets it, whose bookies are configured to it.
        frame_bytes_max=config.max_message_size + _FRAME_OVERHEAD_BYTES,
    )


def bookie_login(config: BrokerConfig) -> SaslLogin | None:
    """How Apache's bookies are logged in to; None: without.

    Raises:
        ConfigError: not SASL DIGEST-MD5, or there is no name and password for it.
    """
    plugin = config.bookkeeper_client_authentication_plugin
    kind = config.bookkeeper_client_authentication_parameters_name
    section = config.bookkeeper_client_authentication_parameters or SECTION
    path = config.bookkeeper_client_login_config_path
    if not plugin:
        if path:
            raise ConfigError(
                "bookkeeperClientLoginConfigPath goes with bookkeeperClientAuthenticationPlugin"
            )
        return None
    if plugin not in PLUGINS:
        raise ConfigError(
            f"bookkeeperClientAuthenticationPlugin={plugin}: Apache's bookies are logged in to by"
            f" SASL, {PLUGINS[-1]}"
        )
    if kind not in ("", SECTION_SETTING):
        raise ConfigError(
            f"bookkeeperClientAuthenticationParametersName={kind}: {SECTION_SETTING} is expected"
        )
    if not path:
        raise ConfigError(f"bookkeeperClientLoginConfigPath must name the JAAS file of {section}")
    read = partial(read_credentials, Path(path), section)
    try:
        read()  # mistakes are told at the start
    except (ValueError, OSError) as error:
        raise ConfigError(f"bookkeeperClientLoginConfigPath: {error}") from error
    return SaslLogin(read)


def tls_files(config: BrokerConfig) -> TlsFiles | None:
    """None: bookies are talked to without TLS.

    Raises:
        ConfigError: files that don't go together.
    """
    trust = config.bookkeeper_tls_trust_certs_file_path
    certificate = config.bookkeeper_tls_certificate_file_path
    if not trust and not certificate:
        if config.bookkeeper_tls_client_authentication:
            raise ConfigError("bookkeeperTLSClientAuthentication=true needs a certificate")
        return None
    try:
        files = TlsFiles(certificate, config.bookkeeper_tls_key_file_path, trust)
        files.stamps()
    except (ValueError, OSError) as error:
        raise ConfigError(f"bookkeeperTLS...: {error}") from error
    return files


def run(config: BrokerConfig) -> int:
    """Run until SIGTERM, SIGINT or a fatal error. Exit codes: docs/internals/failures.md."""
    return run_broker(config, lambda: ClusterBroker(config))


def run_broker(config: BrokerConfig, new_broker: Callable[[], ClusterBroker]) -> int:
    """As ``run``."""
    keep_freed_memory()
    return run_node(config, new_broker)
