"""Which web pages may use a broker's web port: its settings, without the framework's weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.bookkeeper.origin_check import OriginCheck, names_to_answer
from magnetar.broker.advertised_listeners import hosts_of, parse_listeners

if TYPE_CHECKING:
    from magnetar.broker.config import BrokerConfig


def site_check(config: BrokerConfig) -> OriginCheck:
    hosts = names_to_answer(
        config.web_service_allowed_hosts,
        bind_address=config.bind_address,
        own=(config.advertised_host, *hosts_of(parse_listeners(config.advertised_listeners))),
        is_authenticated=config.authentication_enabled,
    )
    origins = (each.strip() for each in config.cors_allowed_origins.split(","))
    return OriginCheck(
        hosts=hosts,
        hosts_setting="webServiceAllowedHosts",
        origins=filter(None, origins),
        origins_setting="corsAllowedOrigins",
    )
