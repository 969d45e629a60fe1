"""EmbeddedError: an embedded broker did not start, or did not live until its end."""


class EmbeddedError(RuntimeError):
    """The text says what happened; ``__cause__`` is the broker's own error in thread mode."""
