"""Errors of the bundle layer.

    BundleError
    ├── InvalidBundleError      a range or a list of boundaries that can't be
    ├── BundleNotReadyError     retriable: unloading, or the session can't be proven to be alive
    └── BundleBusyError         another broker owns the bundle: look it up again

The broker answers the last two with ServiceNotReady, so that clients look the topic up again.
"""


class BundleError(Exception):
    """Base of all errors of this package."""


class InvalidBundleError(BundleError):
    pass


class BundleNotReadyError(BundleError):
    def __init__(self, bundle: str, reason: str) -> None:
        super().__init__(f"bundle {bundle} isn't ready: {reason}; please redo the lookup")
        self.bundle = bundle


class BundleBusyError(BundleError):
    def __init__(self, bundle: str) -> None:
        super().__init__(f"bundle {bundle} is owned by another broker; please redo the lookup")
        self.bundle = bundle
