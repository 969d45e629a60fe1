"""LocalClusterError: the cluster on this machine can't start, or can't go on."""


class LocalClusterError(Exception):
    """The text says what is wrong and what to do about it."""
