"""How FSDP2 and ZeRO-3 load must not reach: the reference (that it is right, test_fsdp2.py holds) and the embedder."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.integrations import deepspeed, is_deepspeed_zero3_enabled

from atommem.config import EmbedderConfig
from atommem.errors import ConfigError
from atommem.train.loops import models
from tests.train.toys import make_model


def test_shard_reference_refuses_lost_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lossy(accelerator: Any, model: Any) -> Any:
        with torch.no_grad():
            model.lm_head.weight[20:] = 0  # what a rank that loaded zeros would contribute
        return model

    monkeypatch.setattr(models, "fsdp2_prepare_model", lossy)
    monkeypatch.setattr(models, "broadcast", lambda tensor: tensor)
    plugin = SimpleNamespace(mixed_precision_policy=None)
    accelerator = SimpleNamespace(
        is_fsdp2=True, device="cpu", state=SimpleNamespace(fsdp_plugin=plugin)
    )
    with pytest.raises(
        ConfigError, match=r"differs from what rank 0 loaded: lm_head\.weight and 0 others"
    ):
        models.shard_reference(make_model(), accelerator)


def test_load_embedder_is_whole_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the launchers' settings transformers leaves zeros in it, on all ranks but the first, or shares it out."""

    def settings(_: Any = None) -> tuple[str, bool]:
        return os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"], is_deepspeed_zero3_enabled()

    launcher = SimpleNamespace(is_zero3=lambda: True)
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", lambda: launcher)
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    monkeypatch.setattr(models, "make_embedder", settings)
    assert models.load_embedder(EmbedderConfig()) == ("false", False)  # type: ignore[comparison-overlap]
    assert settings() == ("true", True)
