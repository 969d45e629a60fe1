"""What a user did or met; printed as a message, exit code 1."""


class CliError(Exception):
    """The command failed for a reason the user can understand; no traceback."""


class UnreachableError(CliError):
    """A server gave no answer; `magnetar.broker.cli.advice` says what to do.

    ``named_by``: the server that gave its address; "": the user did.
    """

    def __init__(self, text: str, url: str, named_by: str = "") -> None:
        super().__init__(text)
        self.url, self.named_by = url, named_by


class RefusedError(CliError):
    """A server said no; ``status`` is HTTP's, also where the binary protocol was spoken."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status
