"""What stands in place of a callback that is over."""


def no_callback() -> None:
    """Does nothing, and holds nobody who was to be told."""
