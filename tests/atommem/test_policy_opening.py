"""Which policy a configuration opens, and models by their names on a hub."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from atommem import hub
from atommem.config import PolicyConfig, is_server
from atommem.errors import ConfigError, PolicyError
from atommem.policy import opening
from atommem.policy.local import LocalPolicy
from atommem.policy.server import ServerPolicy
from atommem.policy.server_pool import ServerPool
from tests.fakes import WordTokenizer
from tests.loopback import Quiet, listening


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
    with pytest.raises(ConfigError, match="each only once"):
        opening.open_policy(config_of("http://a", "http://a"))
    for names in ([], ["folder", "http://a"], ["a", "b"]):
        with pytest.raises(ConfigError, match="one model folder, or URLs"):
            config_of(*names)


async def test_policy_identity_of_a_hub_name_has_the_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transformers = pytest.importorskip("transformers")
    asked = []

    def load(name: str, revision: str | None = None, **_: object) -> SimpleNamespace:
        asked.append((name, revision))
        return SimpleNamespace(config=SimpleNamespace(_commit_hash="c0ffee"))

    for kind in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer):
        monkeypatch.setattr(kind, "from_pretrained", load)
    monkeypatch.setattr(
        LocalPolicy, "__init__", lambda self, model, tokenizer, **_: setattr(self, "model", model)
    )
    settings = config_of("Qwen/Qwen3-8B@v1.0")
    identity = await opening.policy_identity(settings, opening.open_policy(settings))
    assert (identity["path"], identity["commit"]) == ("Qwen/Qwen3-8B@v1.0", "c0ffee")
    assert asked == [("Qwen/Qwen3-8B", "v1.0")] * 2
    with pytest.raises(ConfigError, match="no revision after the @"):
        opening.load_tokenizer("Qwen/Qwen3-8B@")


def test_model_folder_refuses_paths_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "run" / "grpo").mkdir(parents=True)
    (tmp_path / "run" / "grpo" / "config.json").write_text('{"max_position_embeddings": 64}')
    grpo = str(tmp_path / "run" / "grpo")
    assert opening.model_folder("policy", grpo) == grpo
    assert opening.model_folder("policy", "Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"
    with pytest.raises(PolicyError, match=f"Give one of the models in it: {grpo}"):
        opening.model_folder("policy", str(tmp_path / "run"))
    with pytest.raises(PolicyError, match=r"there is no such folder \(did you mean .*/run/grpo\?"):
        opening.model_folder("policy", str(tmp_path / "run" / "grop"))
    opening.check_window("max_tokens", 63, grpo)
    with pytest.raises(PolicyError, match="max_tokens=64: leaves no room"):
        opening.check_window("max_tokens", 64, grpo)
    (tmp_path / "run" / "grpo" / "model.safetensors").write_bytes(bytes(100))
    with pytest.raises(PolicyError, match=r"model\.safetensors is cut off or damaged"):
        opening.model_folder("policy", grpo)


class _Hub(Quiet):
    asked = 0

    def do_HEAD(self) -> None:  # noqa: N802
        _Hub.asked += 1
        self.send_response(404)
        self.end_headers()


def test_hub_reachability_is_checked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_reached", cache(hub._reached.__wrapped__))
    with listening(_Hub) as address:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://{address}")
        assert hub.only_here(tmp_path)
        assert _Hub.asked == 0
        assert not hub.only_here("somebody/model")
        assert not hub.only_here("somebody/another")
        assert _Hub.asked == 1
    hub._reached.cache_clear()
    assert hub.only_here("somebody/model")
