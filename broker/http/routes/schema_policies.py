"""A namespace's policies about schemas (http-api 2.3): strategy, auto update, enforcement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Response

from broker.http.dependencies import Namespace, Service, body_doc, flag, read_json
from broker.http.errors import ApiError
from broker.http.responses import JsonResponse, no_content
from broker.service.schemas.admission import LEGACY_STRATEGIES, STRATEGIES, rules_of

if TYPE_CHECKING:
    from broker.policies.effective import Policies
    from broker.service.broker_service import BrokerService

__all__ = ["check_schema_policies", "router"]

router = APIRouter(prefix="/admin/v2/namespaces/{tenant}/{namespace}", tags=["namespaces"])

_UNDEFINED: Final = "UNDEFINED"
_STRATEGY: Final = "schema_compatibility_strategy"
_LEGACY: Final = "schema_auto_update_compatibility_strategy"
_AUTO_UPDATE: Final = "is_allow_auto_update_schema"
_ENFORCED: Final = "schema_validation_enforced"

_ABSENT: dict[int | str, dict[str, Any]] = {404: {"description": "No such namespace"}}
_BAD: dict[int | str, dict[str, Any]] = {400: {"description": "Not one of the values"}, **_ABSENT}

Body = Annotated[Any, Depends(read_json)]


def _text_doc(values: list[str]) -> dict[str, Any]:
    return body_doc({"type": "string", "enum": values}, values[0])


_FLAG_DOC = body_doc({"type": "boolean"}, True, required=True)


def check_schema_policies(document: dict[str, Any]) -> None:
    """The schema policies of a Policies document that a client gave.

    Raises:
        ApiError: 400 a value that isn't one of the policy's.
    """
    for key, values in ((_STRATEGY, {_UNDEFINED, *STRATEGIES}), (_LEGACY, LEGACY_STRATEGIES)):
        value = document.get(key)
        if value is not None and not (isinstance(value, str) and value in values):
            raise ApiError(400, f"{key}: {value!r:.60} is not one of {', '.join(sorted(values))}")
    for key in (_AUTO_UPDATE, _ENFORCED):
        value = document.get(key)
        if value is not None and not isinstance(value, bool):
            raise ApiError(400, f"{key}: {value!r:.60} is neither true nor false")


async def _policies(service: BrokerService, namespace: str) -> Policies:
    if (policies := await service.resources.policies(namespace)) is None:
        raise ApiError(404, "Namespace does not exist")
    return policies


async def _set(service: BrokerService, namespace: str, key: str, value: Any) -> Response:
    check_schema_policies({key: value})
    await service.resources.update_policies(namespace, lambda old: {**old, key: value})
    return no_content()


@router.get("/schemaCompatibilityStrategy", summary="Its strategy", responses=_ABSENT)
async def get_strategy(
    service: Service,
    namespace: Namespace,
    applied: Annotated[str | None, Query(description="`true`: what holds in the end")] = None,
) -> Response:
    policies = await _policies(service, namespace)
    if flag(applied):
        return JsonResponse(rules_of(policies, service.config).strategy.value)
    return JsonResponse(policies.document.get(_STRATEGY) or _UNDEFINED)


@router.put(
    "/schemaCompatibilityStrategy",
    status_code=204,
    summary="Set its strategy; `UNDEFINED` or nothing: the broker's",
    responses=_BAD,
    openapi_extra=_text_doc([*STRATEGIES, _UNDEFINED]),
)
async def put_strategy(service: Service, namespace: Namespace, body: Body) -> Response:
    return await _set(service, namespace, _STRATEGY, _UNDEFINED if body is None else body)


@router.get(
    "/schemaAutoUpdateCompatibilityStrategy",
    summary="The strategy's old form",
    responses={204: {"description": "Not set"}, **_ABSENT},
)
async def get_legacy_strategy(service: Service, namespace: Namespace) -> Response:
    value = (await _policies(service, namespace)).document.get(_LEGACY)
    return no_content() if value is None else JsonResponse(value)


@router.put(
    "/schemaAutoUpdateCompatibilityStrategy",
    status_code=204,
    summary="Set the strategy in its old form; it holds while the new one is `UNDEFINED`",
    responses=_BAD,
    openapi_extra=_text_doc([*LEGACY_STRATEGIES]),
)
async def put_legacy_strategy(service: Service, namespace: Namespace, body: Body) -> Response:
    return await _set(service, namespace, _LEGACY, body)


@router.get(
    "/isAllowAutoUpdateSchema",
    summary="Whether producers and consumers may add schema versions",
    responses=_ABSENT,
)
async def get_auto_update(service: Service, namespace: Namespace) -> Response:
    policies = await _policies(service, namespace)
    return JsonResponse(rules_of(policies, service.config).auto_update)


@router.post(
    "/isAllowAutoUpdateSchema",
    status_code=204,
    summary="Let producers and consumers add schema versions, or not",
    responses=_BAD,
    openapi_extra=_FLAG_DOC,
)
async def post_auto_update(service: Service, namespace: Namespace, body: Body) -> Response:
    return await _set_flag(service, namespace, _AUTO_UPDATE, body)


@router.get(
    "/schemaValidationEnforced",
    summary="Whether producers without a schema are refused on topics with one",
    responses=_ABSENT,
)
async def get_enforced(
    service: Service,
    namespace: Namespace,
    applied: Annotated[str | None, Query(description="`true`: what holds in the end")] = None,
) -> Response:
    policies = await _policies(service, namespace)
    if flag(applied):
        return JsonResponse(rules_of(policies, service.config).validation_enforced)
    return JsonResponse(policies.document.get(_ENFORCED) is True)


@router.post(
    "/schemaValidationEnforced",
    status_code=204,
    summary="Refuse producers without a schema on topics with one, or not",
    responses=_BAD,
    openapi_extra=_FLAG_DOC,
)
async def post_enforced(service: Service, namespace: Namespace, body: Body) -> Response:
    return await _set_flag(service, namespace, _ENFORCED, body)


async def _set_flag(service: BrokerService, namespace: str, key: str, body: Any) -> Response:
    if body is None:
        raise ApiError(400, "Request body is missing: true or false")
    return await _set(service, namespace, key, body)
