"""The committed renderings are what the chart makes, and fit Kubernetes and our rules."""

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import kubernetes_validate.utils  # type: ignore[import-untyped]
import pytest
import yaml

from tests.charts.policies import amount, containers_of, faults, pods_of, workloads
from tests.charts.renderings import CHART, RELEASE, RENDERINGS, VALUES, Object, Rendering, digest_of

VERSIONS = kubernetes_validate.utils.all_versions()[-3:]
# Kinds that others define.
FOREIGN = {
    ("monitoring.coreos.com/v1", "PodMonitor"),
    ("monitoring.coreos.com/v1", "ServiceMonitor"),
    ("cert-manager.io/v1", "Certificate"),
    ("cert-manager.io/v1", "Issuer"),
}
# Secrets that a user has to make, by docs/guides/kubernetes.md, and their keys.
USERS_SECRETS: dict[str, dict[str, set[str]]] = {
    "secured": {
        f"{RELEASE}-token-asymmetric-key": {"PUBLICKEY"},
        f"{RELEASE}-token-broker-admin": {"TOKEN"},
        f"{RELEASE}-token-admin": {"TOKEN"},
        f"{RELEASE}-token-bookkeeper": {"TOKEN"},
    },
    "secrets": {
        f"{RELEASE}-token-symmetric-key": {"SECRETKEY"},
        f"{RELEASE}-token-broker-admin": {"TOKEN"},
        f"{RELEASE}-token-storage": {"TOKEN"},
        "registry": {".dockerconfigjson"},
    },
    "odd": {
        "1e3": {"PUBLICKEY"},
        "103-token-0": {"TOKEN"},
        "103-token-true": {"TOKEN"},
        "103-token-1e3": {"TOKEN"},
        "1234": {".dockerconfigjson"},
    },
    "standalone-secured": {
        "standalone-certificate": {"tls.crt", "tls.key"},
        "toolset-certificate": {"tls.crt", "tls.key"},
        "company-ca": {"ca.crt"},
        "key-of-tokens": {"SECRETKEY"},
        "tokens-admin": {"TOKEN"},
    },
}
CERTIFICATE_KEYS = {"tls.crt", "tls.key", "ca.crt"}

each_rendering = pytest.mark.parametrize("rendering", VALUES, ids=lambda each: each.name)


@pytest.fixture(scope="module", autouse=True)
def schemas_are_read_once() -> Iterator[None]:
    """A megabyte of definitions for each object would take minutes."""
    utils = kubernetes_validate.utils
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        yield


def test_there_is_a_rendering_of_each_file_of_values() -> None:
    assert {path.stem for path in RENDERINGS.glob("*")} == {each.name for each in VALUES}
    assert len(VALUES) >= 8


@each_rendering
def test_a_rendering_is_of_this_chart(rendering: Rendering) -> None:
    of_input, of_text = rendering.digests
    assert of_input == rendering.input_digest(), "the chart changed: make chart-renderings"
    assert of_text == digest_of(rendering.text), "edited by hand: make chart-renderings"


@pytest.mark.parametrize("version", VERSIONS)
@each_rendering
def test_objects_fit_the_schemas_of_kubernetes(rendering: Rendering, version: str) -> None:
    for each in rendering.objects():
        if (each["apiVersion"], each["kind"]) not in FOREIGN:
            kubernetes_validate.utils.validate(each, version, strict=True)


def test_a_wrong_object_does_not_fit() -> None:
    [statefulset] = [
        each
        for each in VALUES[0].objects()
        if each["kind"] == "StatefulSet" and each["metadata"]["name"].endswith("broker")
    ]
    statefulset["spec"]["replicaCount"] = 3
    with pytest.raises(kubernetes_validate.utils.ValidationError, match="replicaCount"):
        kubernetes_validate.utils.validate(statefulset, VERSIONS[-1], strict=True)


@each_rendering
def test_objects_obey_our_rules(rendering: Rendering) -> None:
    assert faults(rendering.objects()) == []


@each_rendering
def test_secrets_are_made_by_cert_manager_or_named_in_the_manual(rendering: Rendering) -> None:
    objects = rendering.objects()
    made: dict[str, set[str]] = {}
    for each in objects:
        if each["kind"] == "Certificate":
            formats = each["spec"].get("additionalOutputFormats", [])
            combined = {"tls-combined.pem"} if {"type": "CombinedPEM"} in formats else set()
            made[each["spec"]["secretName"]] = CERTIFICATE_KEYS | combined
    wanted: dict[str, set[str]] = {}
    for name, keys in _secrets(objects):
        wanted.setdefault(name, set()).update(keys)
    for name in wanted.keys() & made.keys():
        assert wanted.pop(name) <= made[name]
    assert wanted == USERS_SECRETS.get(rendering.name, {})


def _secrets(objects: list[Object]) -> Iterator[tuple[str, set[str]]]:
    """Secrets that objects name, and the keys they take."""
    for _, pod in pods_of(objects):
        for each in pod.get("imagePullSecrets", ()):
            yield each["name"], {".dockerconfigjson"}
        for volume in pod.get("volumes", ()):
            if "secret" in volume:
                source = volume["secret"]
                assert source["defaultMode"] == 0o440, "others than the group may read it"
                yield source["secretName"], {item["key"] for item in source["items"]}
            for source in volume.get("projected", {}).get("sources", ()):
                assert volume["projected"]["defaultMode"] == 0o440
                yield source["secret"]["name"], {item["key"] for item in source["secret"]["items"]}
    for each in objects:
        for end in [
            *each.get("spec", {}).get("podMetricsEndpoints", ()),
            *each.get("spec", {}).get("endpoints", ()),
        ]:
            if (tls := end.get("tlsConfig")) is not None:
                yield tls["ca"]["secret"]["name"], {tls["ca"]["secret"]["key"]}


@each_rendering
def test_certificates_name_who_shows_them(rendering: Rendering) -> None:
    """Clients compare the name they connected to, which is a pod's or a Service's."""
    objects = rendering.objects()
    for each in objects:
        if each["kind"] != "Certificate" or each["spec"]["isCA"]:
            continue
        component = each["metadata"]["labels"]["app.kubernetes.io/component"]
        names = each["spec"]["dnsNames"]
        for other in objects:
            labels = other["metadata"].get("labels", {})
            if labels.get("app.kubernetes.io/component") != component:
                continue
            if other["kind"] == "StatefulSet":
                assert any(n.startswith(f"*.{other['spec']['serviceName']}.") for n in names)
            if other["kind"] == "Service" and other["spec"].get("clusterIP") != "None":
                service = other["metadata"]["name"]
                assert service in names or service.endswith("-external")
        issuers = {each["metadata"]["name"] for each in objects if each["kind"] == "Issuer"}
        assert each["spec"]["issuerRef"]["name"] in issuers | {"company"}


def test_the_default_fits_on_a_small_node() -> None:
    [rendering] = [each for each in VALUES if each.name == "default"]
    totals = {"cpu": 0.0, "memory": 0.0}
    objects = rendering.objects()
    for each in workloads(objects):
        for _, container in containers_of([each]):
            for kind, text in container["resources"]["requests"].items():
                totals[kind] += amount(text) * each["spec"]["replicas"]
    # Two cores and 4 GiB, less what the system and Kubernetes' own pods take.
    assert totals["cpu"] <= 1.0
    assert totals["memory"] <= 3 * 2**30
    assert all(
        "requiredDuringSchedulingIgnoredDuringExecution"
        not in pod.get("affinity", {}).get("podAntiAffinity", {})
        for _, pod in pods_of(objects)
    ), "one node must be enough"


def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    return schema


@functools.cache
def _values() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    return values


def test_the_schema_of_values_knows_each_value_and_no_other() -> None:
    schema = _schema()
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(_values(), schema, jsonschema.Draft7Validator)
    assert set(_leaves(_values())) <= set(_known(schema, schema))
    top = schema["properties"].keys() - {"global", "enabled"}
    assert top == _values().keys()
    for key, part in schema["properties"].items():
        if "properties" in part:
            optional = {"nodeAffinity", "podAffinity"}
            assert part["properties"].keys() - optional == _values()[key].keys(), key


def _leaves(value: Any, path: str = "") -> Iterator[str]:
    if not isinstance(value, dict) or not value:
        yield path
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{path}.{key}")


def _known(part: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Paths of all values, where a free map knows whatever the default has."""
    if "$ref" in part:
        part = schema["definitions"][part["$ref"].rpartition("/")[2]]
    if "properties" not in part:
        yield path
        value: Any = _values()
        for key in filter(None, path.split(".")):
            value = value.get(key, {}) if isinstance(value, dict) else {}
        yield from _leaves(value, path)
        return
    for key, inner in part["properties"].items():
        yield from _known(inner, schema, f"{path}.{key}")


def test_the_manual_names_values_that_exist() -> None:
    """Its table has every group of values, and no value of it is misspelt."""
    text = (CHART.parents[1] / "docs" / "guides" / "kubernetes.md").read_text("utf-8")
    table = text.partition("\n## Values\n")[2].partition("\n## ")[0]
    values = _values()
    named: set[str] = set()
    for row in table.splitlines():
        if not row.startswith("| `"):
            continue
        last = ""
        for path in re.findall(r"`([^`]+)`", row.split("|")[1]):
            full = last.rpartition(".")[0] + path if path.startswith(".") else path
            last = full
            owners = COMPONENTS if full.startswith("<component>") else [full.partition(".")[0]]
            inner = full.partition(".")[2]
            found = [each for each in owners if _has(values[each], inner)]
            assert found, f"{full} is no value"
            named |= {full.partition(".")[0]} if owners != COMPONENTS else set(COMPONENTS)
    assert named == values.keys()


COMPONENTS = [
    *("zookeeper", "bookkeeper", "autorecovery", "broker"),
    *("toolset", "standalone"),
]


def _has(value: Any, path: str) -> bool:
    for key in filter(None, path.split(".")):
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"brokers": {}}, "brokers"),
        ({"broker": {"replicas": 3}}, "replicas"),
        ({"broker": {"replicaCount": "3"}}, "integer"),
        ({"broker": {"configData": {"managedLedgerCacheSizeMB": 128}}}, "string"),
        ({"images": {"broker": {"tag": "latest"}}}, "latest"),
        ({"topology": {"placement": "anywhere"}}, "anywhere"),
        ({"zookeeper": {"podManagementPolicy": "OrderedReady"}}, "Parallel"),
        ({"bookkeeper": {"volumes": {"ledgers": {"size": None}}}}, "size"),
        ({"broker": {"resources": {"limits": None}}}, "limits"),
        ({"broker": {"external": {"domain": "not a name"}}}, "not a name"),
        ({"labels": {"app.kubernetes.io/name": "x"}}, "app.kubernetes.io/name"),
        ({"tls": {"toolset": {"allowPlain": True}}}, "allowPlain"),
        ({"console": {"ingress": {"host": "a.example.com"}}}, "host"),
        ({"auth": {"superUsers": {"broker": "a_b"}}}, "a_b"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(wrong: dict[str, Any], where: str) -> None:
    with pytest.raises(jsonschema.ValidationError, match=where):
        jsonschema.validate(_laid_over(_values(), wrong), _schema(), jsonschema.Draft7Validator)


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """As helm does it: maps are merged, and null takes away."""
    merged = below | {
        key: _laid_over(below[key], value)
        if isinstance(value, dict) and isinstance(below.get(key), dict)
        else value
        for key, value in above.items()
    }
    return {key: value for key, value in merged.items() if value is not None}


def test_groups_that_templates_rely_on_can_not_be_taken_away() -> None:
    """Without, helm would speak of a nil pointer in a template."""
    validator, values = jsonschema.Draft7Validator(_schema()), _values()
    groups = list(_groups(values, ()))
    assert len(groups) > 100
    for path in groups:
        wrong: dict[str, Any] = {path[-1]: None}
        for key in reversed(path[:-1]):
            wrong = {key: wrong}
        [error] = validator.iter_errors(_laid_over(values, wrong))
        assert error.validator == "required"
        assert path[-1] in error.message


def _groups(value: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    free = {"securityContext", "containerSecurityContext", "configData", "resources", "labels"}
    for key, inner in value.items():
        if isinstance(inner, dict) and inner and not {*path, key} & free:
            yield (*path, key)
            yield from _groups(inner, (*path, key))
