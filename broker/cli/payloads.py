"""The messages that ``produce`` sends, by whatever protocol: contents, properties, pace."""

import argparse
import time
from asyncio import sleep

from magnetar.broker.cli.errors import CliError


def contents_of(options: argparse.Namespace) -> list[bytes]:
    """Of -m, split, and of -f. Raises CliError: there is none, or a file can't be read."""
    texts = [
        part
        for text in options.messages
        for part in (text.split(options.separator) if options.separator else [text])
    ]
    contents = [text.encode(errors="surrogateescape") for text in texts]
    for name in [part for names in options.files for part in names.split(",")]:
        try:
            with open(name, "rb") as file:
                contents.append(file.read())
        except OSError as error:
            raise CliError(str(error)) from error
    if not contents:
        raise CliError("nothing to send: give -m TEXT or -f FILE")
    return contents


def check_options(options: argparse.Namespace) -> None:
    """Raises CliError: options that don't fit each other."""
    pair_key = options.key_value_key is not None or options.key_value_key_file is not None
    if pair_key and not options.key_value_encoding_type:
        raise CliError("-kvk and -kvkf need -kvet separated or inline")
    if options.key_value_key is not None and options.key_value_key_file is not None:
        raise CliError("-kvk and -kvkf: one of them, not both")


def pair_key_of(options: argparse.Namespace) -> str | None:
    """The key of a message: of -kvk or -kvkf where messages are pairs, else of -k.

    Raises:
        CliError: the file can't be read.
    """
    if options.key_value_key is not None:
        return str(options.key_value_key)
    if options.key_value_key_file is not None:
        try:
            with open(options.key_value_key_file, encoding="utf-8") as file:
                return file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise CliError(f"-kvkf {options.key_value_key_file}: {error}") from error
    return None if options.key is None else str(options.key)


def properties_of(options: argparse.Namespace) -> dict[str, str]:
    """Of all -p. Raises CliError: not KEY=VALUE."""
    properties: dict[str, str] = {}
    for part in [part for text in options.properties for part in text.split(",") if part]:
        key, separator, value = part.partition("=")
        if not separator:
            raise CliError(f"-p {part}: KEY=VALUE is expected")
        properties[key] = value
    return properties


async def wait_for_turn(started_s: float, count: int, rate: float) -> None:
    """Until the message after ``count`` others is due; ``rate``: messages a second, 0: at once."""
    if rate > 0:
        await sleep(max(0.0, started_s + count / rate - time.monotonic()))
