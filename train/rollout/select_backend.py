"""Which backend the settings ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atommem.train.rollout.backend import Backend
from atommem.train.rollout.episodes import Rollouts
from atommem.train.rollout.local_backend import local_backend
from atommem.train.train_config import TrainConfig


def select_backend(rollouts: Rollouts) -> Callable[[Any], Backend]:
    """What `MemoryGRPOTrainer` calls with its model: local, or by ``use_vllm`` and ``vllm_mode``."""
    args: TrainConfig = rollouts.args
    if not args.use_vllm:
        return local_backend(rollouts)
    if args.vllm_mode == "server":
        from atommem.train.rollout.server_backend import server_backend

        return server_backend(rollouts)
    from atommem.train.rollout.colocate_backend import colocate_backend

    return colocate_backend(rollouts)
