"""The arguments of ``magnetar tokens``: those of Pulsar's ``pulsar tokens``."""

import argparse

_KEY_FORMS = "file:///path, a path, data:;base64,... or base64"


def add_tokens(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, help: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=help, description=help, allow_abbrev=False)

    secret = action("create-secret-key", "make a secret key of HMAC")
    _algorithm(secret, "HS256")
    secret.add_argument("-o", "--output", metavar="FILE", help="a new file (standard output)")
    secret.add_argument("-b", "--base64", action="store_true", help="as base64, not raw bytes")

    pair = action("create-key-pair", "make a private and a public key")
    _algorithm(pair, "RS256")
    pair.add_argument("--output-private-key", metavar="FILE", required=True, help="a new file")
    pair.add_argument("--output-public-key", metavar="FILE", required=True, help="a new file")

    create = action("create", "make a token")
    _algorithm(create, None)
    create.add_argument("-s", "--subject", metavar="ROLE", required=True, help="whose it is")
    create.add_argument("-e", "--expiry-time", metavar="DURATION", help="1h, 3d, 10y (never)")
    create.add_argument("-sk", "--secret-key", metavar="KEY", help=_KEY_FORMS)
    create.add_argument("-pk", "--private-key", metavar="KEY", help=_KEY_FORMS)
    create.add_argument(
        *("-hs", "--headers"),
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="more headers of it, kid for one",
    )

    validate = action("validate", "check a token and print its claims")
    _algorithm(validate, None)
    validate.add_argument("-sk", "--secret-key", metavar="KEY", help=_KEY_FORMS)
    validate.add_argument("-pk", "--public-key", metavar="KEY", help=_KEY_FORMS)
    _token(validate)
    _token(action("show", "print what a token says, without checking it"))


def _algorithm(parser: argparse.ArgumentParser, default: str | None) -> None:
    parser.add_argument(
        *("-a", "--signature-algorithm"),
        metavar="NAME",
        default=default,
        help=f"({default or 'the usual one of the key'})",
    )


def _token(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("token", metavar="TOKEN", nargs="?", help="the token")
    add("-i", "--stdin", action="store_true", help="read it from standard input")
    add("-f", "--token-file", metavar="FILE", help="read it from a file")
