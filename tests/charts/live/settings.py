"""What a container is told: its environment, and its command with the variables in it."""

import re
from collections.abc import Mapping
from typing import Final

from tests.charts.live.api import ApiServer
from tests.charts.live.network import API_ADDRESS
from tests.charts.live.volumes import NotThereYet, content_of, value_of_field
from tests.charts.renderings import Object

_REFERENCE: Final = re.compile(r"\$\$|\$\(([-._a-zA-Z0-9]+)\)")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """``$(NAME)`` is its value, if there is one; ``$$`` is a dollar."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return _REFERENCE.sub(value, text)


def command_of(container: Object, variables: Mapping[str, str]) -> list[str]:
    """What runs: the chart names the command of each container, so an image's is never asked."""
    words = [*container["command"], *(container.get("args") or [])]
    return [expand(word, variables) for word in words]


def variables_of(
    api: ApiServer, pod: Object, container: Object, image: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment; a later variable may contain earlier ones.

    Raises:
        NotThereYet: a ConfigMap, a Secret or a key of it is missing.
    """
    namespace = pod["metadata"]["namespace"]
    variables = {
        **image,
        "HOSTNAME": pod["metadata"]["name"],
        "KUBERNETES_SERVICE_HOST": API_ADDRESS,
        "KUBERNETES_SERVICE_PORT": "443",
    }
    for source in container.get("envFrom") or ():
        for kind in ("configMap", "secret"):
            if reference := source.get(f"{kind}Ref"):
                content = _content(api, namespace, kind, reference)
                prefix = source.get("prefix", "")
                variables |= {prefix + key: value.decode() for key, value in content.items()}
    for each in container.get("env") or ():
        source = each.get("valueFrom")
        if source is None:
            variables[each["name"]] = expand(each.get("value", ""), variables)
        elif field := source.get("fieldRef"):
            variables[each["name"]] = value_of_field(pod, field["fieldPath"])
        else:
            kind = "secret" if "secretKeyRef" in source else "configMap"
            reference = source[f"{kind}KeyRef"]
            content = _content(api, namespace, kind, reference)
            if reference["key"] in content:
                variables[each["name"]] = content[reference["key"]].decode()
            elif not reference.get("optional"):
                raise NotThereYet(f"{kind} {reference['name']}: {reference['key']}")
    return variables


def _content(api: ApiServer, namespace: str, kind: str, reference: Object) -> dict[str, bytes]:
    try:
        return content_of(api, namespace, kind, reference["name"])
    except NotThereYet:
        if reference.get("optional"):
            return {}
        raise
