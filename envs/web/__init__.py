"""The web environment: a policy that searches and reads pages, and keeps nothing but its memory."""

from atommem.envs.web.environment import WebEnvironments as Environments

__all__ = ["Environments"]
