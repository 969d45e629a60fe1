"""A topic's name in its parts, as addresses of the console and of the admin API have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from magnetar.broker.console.formats import segment


@dataclass(frozen=True, slots=True)
class TopicPath:
    """Any text is a part: what no topic can be called is refused by the admin API."""

    domain: str
    tenant: str
    namespace: str
    local: str

    @classmethod
    def parse(cls, name: str) -> Self:
        """Of ``persistent://tenant/namespace/topic``."""
        domain, _, rest = name.partition("://")
        tenant, namespace, local = (*rest.split("/", 2), "", "")[:3]
        return cls(domain, tenant, namespace, local)

    @classmethod
    def typed(cls, text: str) -> Self:
        """Of a name as people type it: also without the domain, and without the namespace."""
        domain, mark, rest = text.rpartition("://")
        space = "" if mark or rest.count("/") > 1 else "public/default/"
        return cls.parse(f"{domain or 'persistent'}://{space}{rest}")

    @classmethod
    def of(cls, names: Mapping[str, str]) -> Self:
        """Of the parts of a page's address."""
        return cls(names["domain"], names["tenant"], names["namespace"], names["topic"])

    def __str__(self) -> str:
        return f"{self.domain}://{self.path}"

    @property
    def path(self) -> str:
        """Without the domain."""
        return f"{self.tenant}/{self.namespace}/{self.local}"

    @property
    def rest(self) -> str:
        """Below ``/admin/v2``, encoded."""
        parts = (self.domain, self.tenant, self.namespace, self.local)
        return "/".join(segment(part) for part in parts)

    @property
    def is_volatile(self) -> bool:
        return self.domain == "non-persistent"

    def partition(self, number: int) -> TopicPath:
        return TopicPath(
            self.domain, self.tenant, self.namespace, f"{self.local}-partition-{number}"
        )
