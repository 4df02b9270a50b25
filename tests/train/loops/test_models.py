"""Loading under FSDP2 and ZeRO-3 must not break the reference and the embedder."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.integrations import deepspeed, is_deepspeed_zero3_enabled

from atommem.config import EmbedderConfig
from atommem.train.loops import models


def test_load_embedder_is_whole_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:

    def settings(_: Any = None) -> tuple[str, bool]:
        return os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"], is_deepspeed_zero3_enabled()

    launcher = SimpleNamespace(is_zero3=lambda: True)
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", lambda: launcher)
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    monkeypatch.setattr(models, "make_embedder", settings)
    assert models.load_embedder(EmbedderConfig()) == ("false", False)  # type: ignore[comparison-overlap]
    assert settings() == ("true", True)
