"""Errors that end a training run."""

from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException

from atommem.errors import AtomMemError

WRITE_ERRORS = (OSError, RuntimeError, SafetensorError, CheckpointException)
"""Exceptions of a failed write; torch reports a full disk as a RuntimeError."""


class TrainingFault(AtomMemError):  # noqa: N818  # the family; its members are errors
    """Training cannot continue."""


class DivergedError(TrainingFault):
    """The loss or the gradient norm is NaN or infinite. The optimizer has not stepped."""


class MemoryFault(TrainingFault):
    """A device ran out of memory in an update. The optimizer has not stepped."""


class RolloutFailedError(TrainingFault):
    """Sampling broke down, or too many episodes of an update failed."""


class CheckpointError(TrainingFault):
    """A checkpoint could not be written, or is damaged."""


class TrainingInterrupted(AtomMemError):  # noqa: N818  # not an error: the run was asked to stop
    """The run was asked to stop, and stopped where it can be resumed."""
