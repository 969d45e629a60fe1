"""Settings of authentication without effect while it is off: the start warns of them."""

import dataclasses
from typing import Final

from magnetar.broker.config import BrokerConfig, key_of

_SWITCH: Final = "authentication_enabled"
_BEGIN: Final = ("authentication_", "authenticate_", "token_", "basic_auth_", "open_id_")
_OTHERS: Final = frozenset({"anonymous_user_role", "proxy_roles", "super_user_roles"})


def without_effect(config: BrokerConfig) -> str:
    """What to warn of; "": nothing.

    An operator that names keys wants them asked for; without one line every client gets in.
    """
    if config.authentication_enabled:
        return ""
    given = [
        key_of(each.name)
        for each in dataclasses.fields(config)
        if (each.name.startswith(_BEGIN) or each.name in _OTHERS)
        and each.name != _SWITCH
        and getattr(config, each.name) not in (each.default, "")
    ]
    if not given:
        return ""
    return f"{', '.join(given)}: without effect, because authenticationEnabled is not true"
