"""Training: cold start, GRPO and asynchronous GRPO over whole episodes.

`make_trainer` is loaded on first use: ``import atommem.train`` loads nothing.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atommem.train.stages import make_trainer as make_trainer

# TRL is pinned, because parts of it that are used are experimental.
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def __getattr__(name: str) -> Any:
    if name == "make_trainer":
        from atommem.train.stages import make_trainer

        return make_trainer
    raise AttributeError(f"module 'atommem.train' has no attribute {name!r}")
