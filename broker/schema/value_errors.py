"""What is wrong with one value: the message's fault, never the schema's."""


class ValueCodecError(ValueError):
    """The text is no value of the schema, or the bytes aren't what it writes."""
