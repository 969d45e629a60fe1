"""How a broker's ledger client reads and writes, out of the broker's settings. Pure."""

from magnetar.bookkeeper.client.config import (
    ClientConfig,
    ReadConfig,
    SpeculationConfig,
    WriteConfig,
)
from magnetar.bookkeeper.network_location import place
from magnetar.broker.config import BrokerConfig, ConfigError


def client_config(config: BrokerConfig) -> ClientConfig:
    """Settings of the ledger client.

    Raises:
        ConfigError: a figure is out of range.
    """
    try:
        return ClientConfig(
            reads=ReadConfig(
                reorder=config.bookkeeper_client_reorder_read_sequence_enabled,
                pending_max=config.bookkeeper_reorder_threshold_pending_requests,
                network_location=place(
                    config.bookkeeper_network_location, config.zone, config.upgrade_domain
                ),
                slow_memory_ms=config.bookkeeper_bookie_failure_history_expiration_m_sec,
                sticky=config.bookkeeper_enable_sticky_reads,
                speculation=SpeculationConfig(
                    config.bookkeeper_client_speculative_read_timeout_in_millis,
                    config.bookkeeper_max_speculative_read_timeout,
                ),
            ),
            writes=WriteConfig(
                explicit_lac_interval_ms=config.bookkeeper_explicit_lac_interval_in_mills,
                # BookKeeper's -1 is off.
                add_quorum_timeout_ms=max(0, config.bookkeeper_add_entry_quorum_timeout_sec) * 1000,
                ensemble_changes_max=config.bookkeeper_max_allowed_ensemble_changes,
                delay_ensemble_change=config.bookkeeper_delay_ensemble_change,
            ),
        )
    except ValueError as error:
        raise ConfigError(f"bookkeeper...: {error}") from error
