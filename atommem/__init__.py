"""AtomMem: LLM agents that learn by reinforcement learning to manage their own memory.

`Memory` reads texts and answers questions with a policy; `AsyncMemory` is its asynchronous twin.
Both are loaded on first use: ``import atommem`` loads nothing.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atommem.api import Answer, AsyncMemory, Memory, Reading

    __version__: str

# Torch's threads spin while they wait, unless this is set before it is imported: beside another
# process on the same cores a step then takes two to three times as long.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = ["Answer", "AsyncMemory", "Memory", "Reading", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("atommem")
    if name in __all__:
        return getattr(import_module("atommem.api"), name)
    raise AttributeError(f"module 'atommem' has no attribute {name!r}")
