"""The options of the source, checked before Spark contacts any server. Pure.

Names and meanings follow Spark's Kafka source where they are the same; names are case-insensitive,
as everywhere in Spark. docs/guides/spark.md has the table.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from magnetar.broker.auth.client_auth import ClientAuth
from magnetar.broker.auth.client_auth_error import ClientAuthError
from magnetar.broker.protocol.topic_name import InvalidTopicNameError, TopicName
from magnetar.pipeline.errors import OptionsError
from magnetar.pipeline.offsets import BEGINNING, END, Offset, parse_offset

_MIB: Final = 1024 * 1024
_CHOICES: Final = ("subscribe", "subscribePattern", "assign")
_PATTERN_NAMESPACE: Final = re.compile(
    r"(?:persistent://)?([^/\\.*+?()\[\]|]+)/([^/\\*+?()\[\]|]+)/"
)


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Which topics; exactly one of the three is given.

    Attributes:
        names: full names, without partition numbers or with (then just that partition).
        assigned: full name -> partitions of it.
        pattern: matches full names; ``namespaces`` are where it is tried.
    """

    names: tuple[str, ...] = ()
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pattern: str = ""
    namespaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of what is read.

    Attributes:
        point: of partitions that ``points`` and ``times_ms`` don't name; None: all must be named.
        time_ms: publish time in place of ``point``; None: there is none.
        points: by full name of the partition, or of the topic for all of its partitions.
        times_ms: the same.
    """

    point: Offset | None
    time_ms: int | None = None
    points: Mapping[str, Offset] = field(default_factory=dict)
    times_ms: Mapping[str, int] = field(default_factory=dict)

    def of(self, partition: str) -> Offset | int:
        """A point, or a publish time in milliseconds since the epoch.

        Raises:
            OptionsError: nothing is said of this partition.
        """
        base = str(TopicName.parse(partition).base)
        for name in (partition, base):
            if name in self.times_ms:
                return self.times_ms[name]
            if name in self.points:
                return self.points[name]
        if self.time_ms is not None:
            return self.time_ms
        if self.point is None:
            raise OptionsError(f"{partition}: the offsets given by topic don't name it")
        return self.point


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of batch and streaming sources.

    Attributes:
        partitions_min: at least so many Spark partitions, if there are as many entries; 0: any.
        partition_bytes: of a batch: what one Spark partition reads at most, about.
        fail_on_data_loss: False: what is gone is left out, with a warning.
        encrypted: what an encrypted message is: an error, left out, or its bytes as they are.
        clock_skew_ms: how far clocks of producers may be from the broker's; bounds by publish time
            spare only ledgers that are out of range by more. -1: none is ever spared.
        cursor: subscription that a stream moves when a batch is done; "": none.
        read_compacted: what a consumer with ``readCompacted`` reads.
    """

    topics: TopicChoice
    starting: Bound
    ending: Bound
    partitions_min: int = 0
    partition_bytes: int = 128 * _MIB
    fail_on_data_loss: bool = True
    encrypted: Literal["fail", "skip", "raw"] = "fail"
    clock_skew_ms: int = 3_600_000
    cursor: str = ""
    read_compacted: bool = False


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """How much one batch of a stream takes; 0: no limit.

    Attributes:
        delay_max_ms: a batch smaller than ``messages_min`` is taken all the same after this time.
    """

    messages_max: int = 0
    bytes_max: int = 0
    messages_min: int = 0
    delay_max_ms: int = 900_000


def parse_read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Check the options of a source.

    Args:
        options: as Spark gives them, a case-insensitive mapping.
    Raises:
        OptionsError: names the option.
    """
    lowered = {name.lower(): text for name, text in options.items()}
    encrypted = lowered.get("encrypted", "fail").lower()
    if encrypted not in ("fail", "skip", "raw"):
        raise OptionsError(f"option encrypted: fail, skip or raw, not {encrypted!r}")
    ending = _bound(lowered, "ending", END)
    if streaming and ending != Bound(END):
        raise OptionsError("a stream has no end: endingOffsets and endingTimestamp are for batches")
    cursor = lowered.get("cursor", "")
    if cursor and not streaming:
        raise OptionsError("option cursor: only streams move one")
    return ReadOptions(
        topics=_topics(lowered),
        starting=_bound(lowered, "starting", END if streaming else BEGINNING),
        ending=ending,
        partitions_min=positive(lowered, "minPartitions", 0),
        partition_bytes=positive(lowered, "maxBytesPerPartition", 128 * _MIB),
        fail_on_data_loss=flag(lowered, "failOnDataLoss", True),
        encrypted=encrypted,  # type: ignore[arg-type]  # checked above
        clock_skew_ms=_clock_skew(lowered),
        cursor=cursor,
        read_compacted=flag(lowered, "readCompacted", False),
    )


def parse_trigger_limits(options: Mapping[str, str]) -> TriggerLimits:
    """Check the limits of a stream's batches.

    Raises:
        OptionsError: names the option.
    """
    lowered = {name.lower(): text for name, text in options.items()}
    limits = TriggerLimits(
        positive(lowered, "maxOffsetsPerTrigger", 0),
        positive(lowered, "maxBytesPerTrigger", 0),
        positive(lowered, "minOffsetsPerTrigger", 0),
        _duration_ms(lowered, "maxTriggerDelay", 900_000),
    )
    if 0 < limits.messages_max < limits.messages_min:
        raise OptionsError("minOffsetsPerTrigger is above maxOffsetsPerTrigger")
    return limits


def choose_topics(pattern: str, names: list[str]) -> list[str]:
    """The full names that the pattern matches as a whole.

    Raises:
        OptionsError: no regular expression.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise OptionsError(f"option subscribePattern: {error}") from error
    short = "persistent://"
    return [
        name
        for name in names
        if expression.fullmatch(name) or expression.fullmatch(name.removeprefix(short))
    ]


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    """A boolean option; ``options`` has names in lower case. Raises OptionsError."""
    text = options.get(name.lower())
    if text is None:
        return default
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    raise OptionsError(f"option {name}: true or false, not {text!r}")


def client_access(options: Mapping[str, str]) -> ClientAuth:
    """The credentials for brokers; ``options`` has names in lower case. Raises OptionsError."""
    access = ClientAuth(
        plugin=options.get("authplugin", ""),
        params=options.get("authparams", ""),
        trusted=options.get("tlstrustcertsfilepath", ""),
        insecure=flag(options, "tlsAllowInsecureConnection", False),
    )
    try:
        access.method  # noqa: B018 - an unknown plugin is told now
    except ClientAuthError as error:
        raise OptionsError(str(error).replace("--auth-plugin", "option authPlugin")) from error
    return access


def positive(options: Mapping[str, str], name: str, default: int) -> int:
    """An option that is a whole number above 0; ``options`` has names in lower case.

    Raises:
        OptionsError: it isn't.
    """
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise OptionsError(f"option {name}: a whole number above 0, not {text!r}")
    return value


_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}


def _duration_ms(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    found = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h)", text.strip().lower())
    if found is None:
        raise OptionsError(f"option {name}: a time as 500ms, 30s, 15m or 1h, not {text!r}")
    return int(found[1]) * _UNITS[found[2]]


def _clock_skew(options: Mapping[str, str]) -> int:
    text = options.get("maxclockskew", "")
    if text.strip().lower() == "none":
        return -1
    return _duration_ms(options, "maxClockSkew", 3_600_000)


def _topics(options: Mapping[str, str]) -> TopicChoice:
    given = [name for name in _CHOICES if options.get(name.lower(), "").strip()]
    if len(given) != 1:
        raise OptionsError(
            f"exactly one of {', '.join(_CHOICES)} says which topics to read, "
            f"but there is {' and '.join(given) or 'none'}"
        )
    text = options[given[0].lower()].strip()
    if given == ["subscribe"]:
        names = tuple(_full_name(each, "subscribe") for each in text.split(",") if each.strip())
        if not names:
            raise OptionsError(f"option subscribe: no topic in {text!r}")
        return TopicChoice(names=tuple(dict.fromkeys(names)))
    if given == ["assign"]:
        return TopicChoice(assigned=_assigned(text))
    choose_topics(text, [])  # a broken expression is told now
    return TopicChoice(pattern=text, namespaces=_namespaces(text, options.get("namespace", "")))


def _namespaces(pattern: str, given: str) -> tuple[str, ...]:
    """Where topics may match: namespaces that alternatives begin with, else those of the option.

    Raises:
        OptionsError: they can't be told; what isn't looked at would be missing silently.
    """
    others = [each.strip().replace("\\", "") for each in given.split(",") if each.strip()]
    found: dict[str, None] = {}
    for alternative in _alternatives(pattern):
        if (begin := _PATTERN_NAMESPACE.match(alternative)) is not None:
            found[f"{begin[1]}/{begin[2]}"] = None
        elif not others and "/" in alternative.removeprefix("persistent://"):
            raise OptionsError(
                f"option subscribePattern: {alternative!r} doesn't begin with a namespace; the "
                "option namespace says where it is tried (one, or several with commas)"
            )
        else:
            found.update(dict.fromkeys(others or ["public/default"]))
    return tuple(found)


def _alternatives(pattern: str) -> list[str]:
    """The parts between the bars outside of brackets."""
    parts, depth, in_class = [""], 0, False
    for token in re.findall(r"\\.|.", pattern, re.DOTALL):
        if token == "|" and not depth and not in_class:
            parts.append("")
            continue
        if in_class or token == "[":
            in_class = token != "]"
        else:
            depth += (token == "(") - (token == ")")
        parts[-1] += token
    return parts


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    assigned = {}
    for name, partitions in _json_object(text, "assign").items():
        if not isinstance(partitions, list) or not all(
            isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in partitions
        ):
            raise OptionsError(f"option assign: {name}: a list of partitions, not {partitions!r}")
        assigned[_full_name(name, "assign")] = tuple(sorted(set(partitions)))
    return assigned


def _full_name(text: str, option: str) -> str:
    try:
        name = TopicName.parse(text.strip())
    except InvalidTopicNameError as error:
        raise OptionsError(f"option {option}: {error}") from error
    if not name.is_persistent:
        raise OptionsError(f"option {option}: {name}: only persistent topics are stored")
    return str(name)


def _bound(options: Mapping[str, str], side: str, default: Offset) -> Bound:
    """As in Spark's Kafka source: one time for all, else times by topic, else offsets."""
    text = options.get(f"{side}timestamp")
    if text is not None:
        return Bound(None, time_ms=_time(text, f"{side}Timestamp"))
    option = f"{side}OffsetsByTimestamp"
    text = options.get(option.lower())
    if text is not None:
        times = {name: _time(value, option) for name, value in _by_partition(text, option).items()}
        return Bound(None, times_ms=times)
    option = f"{side}Offsets"
    text = options.get(option.lower(), "").strip()
    if not text:
        return Bound(default)
    if not text.startswith("{"):
        return Bound(_point(text, option))
    points = {name: _point(value, option) for name, value in _by_partition(text, option).items()}
    return Bound(None, points=points)


def _by_partition(text: str, option: str) -> dict[str, Any]:
    """``{"topic": value}`` or ``{"topic": {"0": value}}`` by full name of topic or partition."""
    found: dict[str, Any] = {}
    for name, value in _json_object(text, option).items():
        full = _full_name(name, option)
        if not isinstance(value, dict):
            found[full] = value
            continue
        for number, each in value.items():
            if number == "-1":  # as the column "partition" has it
                found[full] = each
            elif number.isdecimal():
                found[str(TopicName.parse(full).partition(int(number)))] = each
            else:
                raise OptionsError(f"option {option}: {name}: no partition {number!r}")
    return found


def _point(value: Any, option: str) -> Offset:
    if value == -2:
        return BEGINNING
    if value == -1:
        return END
    if isinstance(value, list) and len(value) in (2, 3):
        value = ":".join(map(str, value))
    if not isinstance(value, str):
        raise OptionsError(f"option {option}: not a message id: {value!r}")
    try:
        return parse_offset(value)
    except OptionsError as error:
        raise OptionsError(f"option {option}: {error}") from error


def _time(value: Any, option: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise OptionsError(f"option {option}: milliseconds since 1970, not {value!r}")
    try:
        time_ms = int(value)
    except ValueError:
        time_ms = -1
    if time_ms < 0:
        raise OptionsError(f"option {option}: milliseconds since 1970, not {value!r}")
    return time_ms


def _json_object(text: str, option: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionsError(f"option {option}: not JSON: {error}") from error
    if not isinstance(value, dict) or not value:
        raise OptionsError(f"option {option}: a JSON object by topic, not {text!r}")
    return value
