"""How bookies are talked to, out of the broker's settings."""

from magnetar.bookkeeper.auth.token_source import TokenSource, token_setting
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.broker.config import BrokerConfig, ConfigError

_MIB = 1024 * 1024
_BACKLOG_BYTES = 64 * _MIB
_ENTRY_OVERHEAD_BYTES = 64 * 1024
"""Beside a message of the largest size: its metadata and our headers."""


def transport_config(config: BrokerConfig) -> TransportConfig:
    """How bookies are talked to, out of the broker's settings."""
    timeout_s = float(config.bookkeeper_client_timeout_in_seconds)
    return TransportConfig(
        token=bookie_token(config) if config.apache_store_url is None else "",
        add_timeout_s=timeout_s,
        read_timeout_s=timeout_s,
        # A refusal would end the ledger, so above what producers may have in flight beside the
        # backlog at which their confirmations are held back.
        backlog_bytes=_BACKLOG_BYTES,
        pending_bytes_max=2
        * (config.max_message_publish_buffer_size_in_mb * _MIB + _BACKLOG_BYTES),
        entry_bytes_max=max(64 * _MIB, config.max_message_size + _ENTRY_OVERHEAD_BYTES),
    )


def bookie_token(config: BrokerConfig) -> str:
    """Where the token is that bookies are shown; "": there is none.

    Raises:
        ConfigError: there should be one, and isn't.
    """
    try:
        source = token_setting(
            config.bookkeeper_client_authentication_plugin,
            config.bookkeeper_client_authentication_parameters,
        )
        if source:
            TokenSource(source)
    except ValueError as error:
        raise ConfigError(f"bookkeeperClientAuthenticationParameters: {error}") from None
    return source
