"""A namespace's policies, each as its row of broker/policies/table.py says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter

from magnetar.broker.http.dependencies import Namespace, Service
from magnetar.broker.http.policies.policy_access import namespace_policies, read_strictly
from magnetar.broker.http.policies.policy_routes import PolicyScope, ScopeConfig, add_policy_routes
from magnetar.broker.policies.documents import change_namespace, change_quota, in_namespace
from magnetar.broker.policies.quotas import QUOTAS

if TYPE_CHECKING:
    from magnetar.broker.policies.effective import EffectivePolicies
    from magnetar.broker.policies.table import Policy

router = APIRouter(prefix="/admin/v2/namespaces/{tenant}/{namespace}", tags=["namespaces"])


class NamespacePolicyScope(PolicyScope):
    async def policies(self) -> EffectivePolicies:
        return await namespace_policies(self.service, self.namespace)

    def stored(self, policies: EffectivePolicies, policy: Policy) -> Any:
        return in_namespace(policies.document, policy, self.service.cluster)

    async def store(self, policy: Policy, value: Any) -> None:
        cluster = self.service.cluster
        await self.service.resources.update_policies(
            self.namespace, lambda document: change_namespace(document, policy, cluster, value)
        )

    def stored_quotas(self, policies: EffectivePolicies) -> dict[str, Any]:
        return policies.document.get(QUOTAS) or {}

    async def store_quota(self, kind: str, quota: dict[str, Any] | None) -> None:
        await self.service.resources.update_policies(
            self.namespace, lambda document: change_quota(document, kind, quota)
        )


async def _holder(service: Service, namespace: Namespace) -> PolicyScope:
    return NamespacePolicyScope(service, namespace)


add_policy_routes(
    router,
    ScopeConfig(
        policy_scope=_holder, body=read_strictly, at=lambda row: row.namespace, is_topic=False
    ),
)
