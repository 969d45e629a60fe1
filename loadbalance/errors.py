"""Errors of the load balancer.

    LoadBalanceError
    ├── InvalidDocumentError    a load report, an average or a policy that can't be read
    └── InvalidSettingError     a setting that makes no sense, or names an unknown strategy

"No broker may serve this bundle" is an answer (None), not an error.
"""


class LoadBalanceError(Exception):
    """Base of all errors that this package raises."""


class InvalidDocumentError(LoadBalanceError):
    """A stored document can't be parsed. The reader keeps the last one that it could parse."""


class InvalidSettingError(LoadBalanceError):
    """The operator has to change a setting."""
