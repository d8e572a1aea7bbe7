"""Training logs of an agent of root, parsed in a process without rights."""

from perfd_collectors.training_log.sandboxed.sandboxed_log import ParserSettings, SandboxedTrainingLog

__all__ = ["ParserSettings", "SandboxedTrainingLog"]
