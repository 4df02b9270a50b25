"""Long documents that are read in chunks, then asked about."""

from atommem.envs.longdoc.environment import LongDocEnvironments as Environments

__all__ = ["Environments"]
