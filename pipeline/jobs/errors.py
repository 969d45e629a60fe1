"""What ends a job; every text says what to do."""

from __future__ import annotations

from magnetar.pipeline.errors import PipelineError


class JobError(PipelineError):
    """Base of what jobs raise beside what the source and the sink raise."""


class SetupError(JobError):
    """Java or a package is missing or too old."""


class BrokenExportError(JobError):
    """A directory isn't an export, or isn't what its manifests say."""


class ExportBusyError(JobError):
    """Another process exports to, or replays from, the same directory."""
