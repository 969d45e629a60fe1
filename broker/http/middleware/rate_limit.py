"""How many requests an address may send: token buckets, as one number an address. No clock."""

import ipaddress
from typing import Final

_ADDRESSES_MAX: Final = 10_000


class AddressLimiter:
    """Admits ``per_second`` requests of each address, and as many at once after a silence.

    Kept an address: the moment its bucket is full again, in seconds of the caller's clock (the
    generic cell rate algorithm). Addresses whose bucket is full are forgotten.
    """

    def __init__(self, per_second: float, addresses_max: int = _ADDRESSES_MAX) -> None:
        assert per_second > 0
        self._cost_s = 1 / per_second
        self._burst_s = max(1.0, self._cost_s)
        self._addresses_max = addresses_max
        self._full_at: dict[str, float] = {}

    def take(self, address: str, now_s: float) -> float:
        """Seconds until a request of ``address`` is welcome; 0.0: it is now, and was counted."""
        group = address_group(address)
        full_at = max(self._full_at.pop(group, now_s), now_s) + self._cost_s
        wait_s = full_at - now_s - self._burst_s
        if wait_s > 1e-9:
            self._full_at[group] = full_at - self._cost_s
            return wait_s
        self._full_at[group] = full_at
        if len(self._full_at) > self._addresses_max:
            self._forget(now_s)
        return 0.0

    def _forget(self, now_s: float) -> None:
        self._full_at = {each: full for each, full in self._full_at.items() if full > now_s}
        while len(self._full_at) > self._addresses_max:  # a crowd: the longest unused goes
            del self._full_at[next(iter(self._full_at))]


def address_group(address: str) -> str:
    """The name of one client: an IPv4 address, or the /64 network of an IPv6 address.

    A client with one IPv6 address has 2**64 of them.
    """
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(parsed) >> 64 << 64))
