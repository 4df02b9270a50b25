"""The policy that a configuration opens, and models by their names on a hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from atommem.config import PolicyConfig, is_server
from atommem.errors import ConfigError, PolicyError
from atommem.policy import opening
from atommem.policy.server import ServerPolicy
from atommem.policy.server_pool import ServerPool
from tests.fakes import WordTokenizer


def config_of(*policy: str, model: str | None = None) -> PolicyConfig:
    return PolicyConfig(list(policy), model=model, tokenizer="t" if is_server(policy) else None)


async def test_open_policy_one_url_or_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "load_tokenizer", lambda name: WordTokenizer())
    assert isinstance(opening.open_policy(config_of("http://a")), ServerPolicy)
    several = config_of("http://a", "http://b/v1", model="m")
    pool = opening.open_policy(several)
    assert isinstance(pool, ServerPool)
    assert [server.url for server in pool.servers] == ["http://a", "http://b"]
    assert await opening.policy_identity(several, pool) == {"model": "m", "tokenizer": "t"}
    with pytest.raises(ConfigError, match="one model folder, or URLs"):
        config_of("folder", "http://a")


def test_model_folder_refuses_paths_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "run" / "grpo").mkdir(parents=True)
    (tmp_path / "run" / "grpo" / "config.json").write_text('{"max_position_embeddings": 64}')
    grpo = str(tmp_path / "run" / "grpo")
    assert opening.model_folder("policy", grpo) == grpo
    with pytest.raises(PolicyError, match=f"Give one of the models in it: {grpo}"):
        opening.model_folder("policy", str(tmp_path / "run"))
    with pytest.raises(PolicyError, match=r"there is no such folder \(did you mean .*/run/grpo\?"):
        opening.model_folder("policy", str(tmp_path / "run" / "grop"))
    with pytest.raises(PolicyError, match="max_tokens=64: leaves no room"):
        opening.check_window("max_tokens", 64, grpo)
    (tmp_path / "run" / "grpo" / "model.safetensors").write_bytes(bytes(100))
    with pytest.raises(PolicyError, match=r"model\.safetensors is cut off or damaged"):
        opening.model_folder("policy", grpo)
