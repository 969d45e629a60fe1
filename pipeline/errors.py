"""Errors between Spark and a cluster; each text says what failed and where."""


class PipelineError(Exception):
    """Base of all errors of this package."""


class OptionsError(PipelineError, ValueError):
    """An option is missing, malformed, or contradicts another one."""


class DataLossError(PipelineError):
    """Messages that were asked for are not stored any more (``failOnDataLoss``)."""


class SegmentsUnavailableError(PipelineError):
    """No broker said which ledgers hold a topic, or the bookies that hold them can't be reached."""


class UndecodableError(PipelineError):
    """A stored entry holds no messages that can be shown."""


class WriteError(PipelineError):
    """A row can't be sent as a message, or a broker didn't store it."""


class PartlyWrittenError(WriteError):
    """A batch of the exactly-once sink may be written in part: its transactions timed out between
    two commits.
    """


class JobError(PipelineError):
    """Base of what jobs raise beside what the source and the sink raise."""


class SetupError(JobError):
    """Java or a package is missing or too old."""


class BrokenExportError(JobError):
    """A directory isn't an export, or isn't what its manifests say."""


class ExportBusyError(JobError):
    """Another process exports to, or replays from, the same directory."""
