"""AtomMem: LLM agents that learn by reinforcement learning to manage their own memory.

`Memory` reads texts and answers questions with a policy; `AsyncMemory` is the same to be awaited. What is imported by
name is loaded when it is used: ``import atommem`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atommem.face.answers import Answer as Answer
    from atommem.face.answers import Reading as Reading
    from atommem.face.async_memory import AsyncMemory as AsyncMemory
    from atommem.face.blocking import Memory as Memory

    __version__: str

_HOMES = {
    "Answer": "atommem.face.answers",
    "AsyncMemory": "atommem.face.async_memory",
    "Memory": "atommem.face.blocking",
    "Reading": "atommem.face.answers",
}
__all__ = ["Answer", "AsyncMemory", "Memory", "Reading", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("atommem")
    raise AttributeError(f"module 'atommem' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
