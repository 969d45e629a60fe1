"""The arguments of ``produce``, ``consume`` and ``read``: pulsar-client's words."""

import argparse

from magnetar.broker.cli.global_options import CLIENTS, VERIFY, add_globals


def add_produce(parser: argparse.ArgumentParser) -> None:
    add_globals(parser, CLIENTS)
    add = parser.add_argument
    add("topic", metavar="TOPIC", help="where they go")
    _repeated(parser, "-m", "--messages", "TEXT", "contents; may be repeated")
    _repeated(parser, "-f", "--files", "FILE,...", "their contents, a message each")
    add("-s", "--separator", default=",", help="splits TEXT into messages; '': never (,)")
    add("-n", "--num-produce", type=int, default=1, metavar="COUNT", help="times to send all (1)")
    add("-r", "--rate", type=float, default=0.0, help="messages a second, 0: as fast as possible")
    add("-k", "--key", help="key of every message")
    _repeated(parser, "-p", "--properties", "KEY=VALUE,...", "properties of every message")
    add("-db", "--disable-batching", action="store_true", help="send each message alone")
    add("-c", "--chunking", action="store_true", help="cut messages that are too large in pieces")
    add(
        *("-vs", "--value-schema"),
        default="bytes",
        metavar="SCHEMA",
        help="bytes, string, avro:{...} or json:{...} (bytes)",
    )
    add(
        *("-ks", "--key-schema"),
        default="string",
        metavar="SCHEMA",
        help="the same for the key, with -kvet (string)",
    )
    add(
        *("-kvet", "--key-value-encoding-type"),
        default="",
        choices=("separated", "inline"),
        metavar="separated|inline",
        help="messages are pairs of -k and TEXT",
    )
    add("-kvk", "--key-value-key", metavar="TEXT", help="key of the pairs (-k)")
    add("-kvkf", "--key-value-key-file", metavar="FILE", help="a file that holds it")
    add("-ekn", "--encryption-key-name", metavar="NAME", help="encrypt, with the key of this name")
    _encryption(parser, "public key to encrypt with: file:///path or data:...;base64,...")
    add("-dr", "--disable-replication", action="store_true", help="keep them in this cluster")


def add_consume(parser: argparse.ArgumentParser) -> None:
    add_globals(parser, CLIENTS)
    add = parser.add_argument
    add("topic", metavar="TOPIC", help="where they come from; with --regex a pattern of names")
    add("-s", "--subscription-name", required=True, metavar="NAME", help="made when it is new")
    add(
        *("-t", "--subscription-type"),
        default="Exclusive",
        choices=("Exclusive", "Shared", "Failover", "Key_Shared"),
        metavar="Exclusive|Shared|Failover|Key_Shared",
        help="how consumers share it (Exclusive)",
    )
    add(
        *("-m", "--subscription-mode"),
        default="Durable",
        choices=("Durable", "NonDurable"),
        metavar="Durable|NonDurable",
        help="NonDurable: gone with its consumers (Durable)",
    )
    add(
        *("-p", "--subscription-position"),
        type=str.capitalize,
        default="Latest",
        choices=("Latest", "Earliest"),
        metavar="Latest|Earliest",
        help="where a new one starts (Latest)",
    )
    add("--regex", action="store_true", help="all topics whose names match, also new ones")
    add("-rs", "--replicated", action="store_true", help="keep the subscription in all clusters")
    add(
        *("-stp", "--start-timestamp"),
        type=_milliseconds,
        default=0,
        metavar="MS",
        help="move the subscription to this publish time first, in ms since 1970",
    )
    add(
        *("-etp", "--end-timestamp"),
        type=_milliseconds,
        default=0,
        metavar="MS",
        help="end at the first message that was published later",
    )
    _receiving(parser)
    add("--timeout", type=float, default=0.0, metavar="SECONDS", help="give up after this silence")


def add_read(parser: argparse.ArgumentParser) -> None:
    add_globals(parser, CLIENTS)
    add = parser.add_argument
    add("topic", metavar="TOPIC", help="where they come from")
    add(
        *("-m", "--start-message-id"),
        default="latest",
        metavar="ID",
        help="latest, earliest or ledger:entry (latest)",
    )
    add("-i", "--start-message-id-inclusive", action="store_true", help="that message too")
    add("-rc", "--readCompacted", action="store_true", help="only the last message of each key")
    _receiving(parser)
    add("--timeout", type=float, default=0.0, metavar="SECONDS", help="give up after this silence")


def add_verify(parser: argparse.ArgumentParser) -> None:
    add_globals(parser, VERIFY)
    add = parser.add_argument
    add(
        "--namespace",
        default="public/default",
        metavar="TENANT/NAMESPACE",
        help="where its topics are created and removed (public/default)",
    )
    add(
        "--seconds",
        type=float,
        default=30.0,
        help="rounds begin until then, at least one does (30)",
    )
    add(
        "--messages",
        type=int,
        default=1000,
        metavar="COUNT",
        help="of each topic in each round (1000)",
    )
    add("--seed", type=int, metavar="NUMBER", help="of what is drawn; printed (another each time)")
    add("--report", metavar="FILE.html", help="write a page that tells everything")
    add(
        "--known-faults",
        action="store_true",
        help="also do what Apache Pulsar is known to get wrong",
    )


def _receiving(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-n", "--num-messages", type=int, default=1, metavar="COUNT", help="0: forever (1)")
    add("--hex", action="store_true", help="show contents in hexadecimal")
    add("--hide-content", action="store_true", help="show only the number of messages")
    add("-r", "--rate", type=float, default=0.0, help="messages a second, 0: as fast as possible")
    add(
        *("-q", "--queue-size"),
        type=int,
        default=1000,
        metavar="COUNT",
        help="messages fetched ahead (1000)",
    )
    add(
        *("-st", "--schema-type"),
        default="bytes",
        choices=("bytes", "auto_consume"),
        metavar="bytes|auto_consume",
        help="auto_consume: show values by their schemas (bytes)",
    )
    add(
        *("-mc", "--max_chunked_msg"),
        type=int,
        default=0,
        metavar="COUNT",
        help="messages in pieces that may be incomplete at once, 0: no limit",
    )
    add(
        *("-ac", "--auto_ack_chunk_q_full"),
        action="store_true",
        help="acknowledge what is dropped above that number",
    )
    add(
        *("-ca", "--crypto-failure-action"),
        default="FAIL",
        choices=("FAIL", "DISCARD", "CONSUME"),
        metavar="FAIL|DISCARD|CONSUME",
        help="what can't be decrypted ends the command, is skipped, or shown as it is (FAIL)",
    )
    _encryption(parser, "private key to decrypt with: file:///path or data:...;base64,...")
    add("-mp", "--print-metadata", action="store_true", help="show what else messages carry")
    add("-pm", "--pool-messages", action="store_true", help="for Java's sake; changes nothing")


def _encryption(parser: argparse.ArgumentParser, help: str) -> None:
    parser.add_argument("-ekv", "--encryption-key-value", metavar="URI", help=help)


def _milliseconds(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no time in milliseconds since 1970")
    return int(text)


def _repeated(parser: argparse.ArgumentParser, short: str, long: str, form: str, help: str) -> None:
    parser.add_argument(short, long, action="append", default=[], metavar=form, help=help)
