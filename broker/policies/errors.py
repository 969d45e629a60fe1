"""What a policy's value is refused with; nothing was changed.

BrokerError (broker)
└── PolicyError
    ├── InvalidPolicyError        not a value of this policy (HTTP 400)
    ├── PolicyRangeError          out of its range (HTTP 412)
    ├── PolicyConflictError       contradicts another policy (HTTP 412)
    ├── UnsupportedPolicyError    asks for a feature that this version lacks (HTTP 412)
    └── PartitionCountError       more partitions than a topic may have (HTTP 406)
"""

from magnetar.broker.errors import BrokerError


class PolicyError(BrokerError):
    """A value that a policy can't have."""


class InvalidPolicyError(PolicyError, status=400): ...


class PolicyRangeError(PolicyError, status=412): ...


class PolicyConflictError(PolicyError, status=412): ...


class UnsupportedPolicyError(PolicyError, status=412): ...


class PartitionCountError(PolicyError, status=406): ...
