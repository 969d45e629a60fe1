"""Writes broker/cli/admin_commands.json: ``python scripts/admin_commands.py``.

The JSON file has the commands of ``magnetar admin``. The OpenAPI document of the routes, and so the
table of policies, says which calls there are, what each does and what it takes;
scripts/admin_commands.txt says what pulsar-admin calls them. It is a file because the command line
starts fast and is installed without the server. A test compares.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parents[1]
_NAMES: Final = Path(__file__).with_suffix(".txt")
FILE: Final = _ROOT / "broker" / "cli" / "admin_commands.json"
_KINDS: Final = {"integer": "int", "number": "float", "boolean": "true", "array": "list"}
_PLACES: Final = {"{topic}": "{}/{}/{}/{}", "{plain_topic}": "{}/{}/{}", "{namespace}": "{}/{}"}
_SWITCH: Final = "body -e --enable / -d --disable ! | switch it on / switch it off"

Document = dict[str, Any]


@dataclass(slots=True)
class Row:
    """A line of the names: words up to " | ", help behind it, rows that are indented below it."""

    words: list[str]
    help: str
    rows: "list[Row]" = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Parameter:
    """``to``: as `magnetar.broker.cli.admin_commands.Option`."""

    name: str
    to: str
    schema: Document
    description: str = ""
    required: bool = False


def parse_names(text: str) -> list[Row]:
    """The groups, each with its commands, each with its options."""
    top = Row([], "")
    path = [top]
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        depth = (len(line) - len(line.lstrip())) // 4
        words, _, help = line.strip().partition(" | ")
        row = Row(words.split(), help.strip())
        del path[depth + 1 :]
        path[-1].rows.append(row)
        path.append(row)
    return top.rows


class Commands:
    """Makes the commands of names and a document."""

    def __init__(self, names: str, document: Document) -> None:
        self._definitions: Document = dict(document["components"]["schemas"])
        self._calls = {
            (method.upper(), _shape(path)): operation
            for path, item in document["paths"].items()
            for method, operation in item.items()
        }
        options, *self._groups = parse_names(names)
        self._options = {row.words[0]: row for row in options.rows}

    def all(self) -> Document:
        """Group -> its help and its commands by name."""
        made: Document = {}
        for group in self._groups:
            name, prefix = group.words
            commands: Document = {}
            made[name] = {"help": group.help, "commands": commands}
            rows = {row.words[0]: row for row in group.rows}
            for row in group.rows:
                match row.words:
                    case ["policy", *_]:
                        commands.update(self._policy(prefix, row))
                    case [word, "=", other, its_word]:
                        commands[word] = made[other]["commands"][its_word]
                    case [word, *_]:
                        for like in [each for each in row.rows if each.words[0] == "like"]:
                            row.rows.remove(like)
                            row.rows += rows[like.words[1]].rows
                        commands[word] = self._command(prefix, row)
        return made

    def _policy(self, prefix: str, row: Row) -> Iterator[tuple[str, Document]]:
        """What reads it, sets it and takes it away, as far as there are routes."""
        path, stem, more = row.words[1], _kebab(row.words[1]), row.words[2:]
        words = {"GET": "get", "POST": "set", "PUT": "set", "DELETE": "remove"}
        for word in more:
            key, sign, value = word.partition("=")
            words["DELETE"] = value if key == "remove" else words["DELETE"]
            stem = stem if sign else word
        for method, word in words.items():
            if word and (method, _whole(f"{prefix}/{path}")) in self._calls:
                rows = row.rows if word == "set" else []
                each = Row([f"{word}-{stem}", method, f"./{path}"], "", rows)
                yield each.words[0], self._command(prefix, each)

    def _command(self, prefix: str, row: Row) -> Document:
        name, method, *words = row.words
        paths = [prefix + word[1:] if word[0] == "." else word for word in words if word[0] in "./"]
        try:
            operations = [self._calls[method, _whole(path)] for path in paths]
        except KeyError as error:
            raise LookupError(f"{name}: no route {error}") from None
        filled = {word[1:] for word in words if word[0] == "="}
        places = dict.fromkeys(re.findall(r"\{(\w+)\}", " ".join(reversed(paths))))
        places = dict.fromkeys(place for place in places if place not in filled)
        always = {place for place in places if all(f"{{{place}}}" in path for path in paths)}
        options = list(self._options_of(row, self._parameters(places, always, operations)))
        taken = {option["to"].removeprefix("path:") for option in options}
        more = {word[0]: word[1:] for word in words if word[0] in "@+"}
        command = {
            "method": method,
            "paths": paths,
            "help": row.help or _help(operations[-1]["summary"]),
            "positionals": [
                place.removeprefix("plain_") if place in always else f"[{place}]"
                for place in places
                if place not in taken
            ],
            "options": options,
            "step": more.get("@"),
            more.get("+", ""): "+" in more,
        }
        return {name: value for name, value in command.items() if value}

    def _parameters(
        self, places: Iterable[str], always: set[str], operations: list[Document]
    ) -> Iterator[Parameter]:
        for place in places:
            yield Parameter(f"{{{place}}}", f"path:{place}", {}, required=place in always)
        for operation in operations:
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            self._definitions |= schema.get("$defs", {})
            body = self._resolved(schema)
            yield Parameter("body", "body", body)
            yield from self._fields("", body)
            for each in operation.get("parameters", ()):
                if each["in"] == "query":
                    schema = self._resolved(each["schema"])
                    description = each.get("description", "")
                    yield Parameter(each["name"], f"query:{each['name']}", schema, description)

    def _fields(self, above: str, schema: Document) -> Iterator[Parameter]:
        for name, found in schema.get("properties", {}).items():
            below = self._resolved(found)
            description = found.get("description", "")
            yield Parameter(above + name, f"field:{above}{name}", below, description)
            yield from self._fields(f"{above}{name}.", below)

    def _resolved(self, schema: Document) -> Document:
        """Without references, and without the null of what may be left out."""
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[1]
            return self._resolved(self._definitions[name])
        for each in () if "type" in schema else schema.get("anyOf", ()):
            if each.get("type") != "null":
                return self._resolved(each)
        return schema

    def _options_of(self, row: Row, parameters: Iterator[Parameter]) -> Iterator[Document]:
        own: dict[str, list[Row]] = {}
        for each in row.rows:
            own.setdefault(each.words[0], []).append(each)
        whole = "body" in own
        seen: set[str] = set()
        for parameter in parameters:
            if parameter.to in seen:  # of the path before, too
                continue
            seen.add(parameter.to)
            rows = own.pop(parameter.name, [])
            if not rows and not (whole and parameter.to.startswith("field:")):
                rows = [self._options[parameter.name]] if parameter.name in self._options else []
            if not rows and parameter.to == "body" and parameter.schema.get("type") == "boolean":
                rows = parse_names(_SWITCH)
            for each in rows:
                yield from _options(each, parameter)
        for name, rows in own.items():
            if ":" not in name:
                raise LookupError(f"{row.words[0]}: the route has no {name}")
            for each in rows:
                yield from _options(each, Parameter(name, name, {}))


def _options(row: Row, parameter: Parameter) -> Iterator[Document]:
    """One option; two of a switch."""
    words = row.words[1:]
    if words == ["-"]:
        return
    if "/" in words:
        at, required = words.index("/"), "!" in words
        helps = row.help.split(" / ")
        for flags, kind, help in zip(
            (words[:at], words[at + 1 :]), ("true", "false"), helps, strict=True
        ):
            more = ["!"] * required + ["^switch"]
            switch = [row.words[0], *(each for each in flags if each != "!"), kind, *more]
            yield from _options(Row(switch, help), parameter)
        return
    schema = parameter.schema
    option: Document = {
        "flags": [word for word in words if word[0] == "-"],
        "to": parameter.to,
        "help": row.help or _help(parameter.description),
    }
    if schema.get("type") in _KINDS:
        option["kind"] = _KINDS[schema["type"]]
    elif "additionalProperties" in schema and "properties" not in schema:
        option["kind"] = "map"
    elif "enum" in schema:
        option["choices"] = schema["enum"]
    if parameter.required:
        option["required"] = True
    for word in words:
        match word[0]:
            case "-":
                pass
            case "!":
                option["required"] = True
            case "=":
                option["default"] = _value(word[1:])
            case "^":
                option["group"] = word[1:]
            case ":":
                option["const"] = _value(word[1:])
            case _ if "|" in word:
                option["choices"] = [each for each in word.split("|") if each]
            case _:
                option["kind"] = word
                option.pop("choices", None)
    yield option


def _shape(path: str) -> str:
    """The same for each name that a place of a path may have."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def _whole(path: str) -> str:
    """With the places that names of topics and namespaces stand for."""
    for name, parts in _PLACES.items():
        path = path.replace(name, parts)
    return _shape(path)


def _value(text: str) -> Any:
    """JSON, or a text that is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def _help(summary: str) -> str:
    text = summary.replace("`", "").removeprefix("Get: ")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def written() -> str:
    """What the file is to hold: a line a command, so that changes can be read."""
    from magnetar.broker.config import BrokerConfig
    from magnetar.broker.http.server.app import create_app

    service: Any = SimpleNamespace(config=BrokerConfig(), access=None, schemas=None)
    made = Commands(_NAMES.read_text(), create_app(service).state.openapi()).all()
    return "{\n" + ",\n".join(_group_text(name, group) for name, group in made.items()) + "\n}\n"


def _group_text(name: str, group: Document) -> str:
    lines = [f"{json.dumps(each)}: {json.dumps(row)}" for each, row in group["commands"].items()]
    commands = ",\n".join(lines)
    return (
        f'{json.dumps(name)}: {{"help": {json.dumps(group["help"])}, "commands": {{\n{commands}}}}}'
    )


if __name__ == "__main__":
    FILE.write_text(written())
