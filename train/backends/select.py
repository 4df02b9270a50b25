"""Which backend the settings ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atommem.config import MemoryConfig
from atommem.embedding.base import Embedder
from envs.longdoc import LongDocConfig
from train.backends.base import Backend
from train.backends.local import local_backend
from train.backends.runner import Rollouts
from train.config import TrainConfig


def select_backend(
    args: TrainConfig, tokenizer: Any, embedder: Embedder, memory: MemoryConfig, environment: LongDocConfig
) -> Callable[[Any], Backend]:
    """What `MemoryGRPOTrainer` calls with its model: local, or by ``use_vllm`` and ``vllm_mode``.

    The arguments are those of `train.backends.local.local_backend`.
    """
    if not args.use_vllm:
        return local_backend(args, tokenizer, embedder, memory, environment)
    rollouts = Rollouts(args, tokenizer, embedder, memory, environment)
    if args.vllm_mode == "server":
        from train.backends.server import server_backend

        return server_backend(rollouts)
    from train.backends.colocate import colocate_backend

    return colocate_backend(rollouts)
