"""CliError: what a user did or met; printed as one line, exit code 1."""


class CliError(Exception):
    """The command failed for a reason the user can understand; no traceback."""
