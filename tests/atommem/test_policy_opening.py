"""Which policy an evaluation opens, and what it needs for that; a hub may be out of reach."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from atommem import hub
from atommem.config import PolicyConfig, is_server
from atommem.errors import ConfigError
from atommem.policy import opening as policies
from atommem.policy.local import LocalPolicy
from atommem.policy.server import ServerPolicy
from atommem.policy.server_pool import ServerPool
from tests.fakes import WordTokenizer
from tests.loopback import Quiet, listening


def config_of(*policy: str, model: str | None = None) -> PolicyConfig:
    return PolicyConfig(list(policy), model=model, tokenizer="t" if is_server(policy) else None)


async def test_open_policy_one_url_or_several(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(
        transformers.AutoTokenizer, "from_pretrained", lambda name, **_: WordTokenizer()
    )
    one = policies.open_policy(config_of("http://a"))
    assert isinstance(one, ServerPolicy)
    several = policies.open_policy(config_of("http://a", "http://b/v1", model="m"))
    assert isinstance(several, ServerPool)
    assert [server.url for server in several.servers] == ["http://a", "http://b"]
    assert await policies.policy_identity(
        config_of("http://a", "http://b", model="m"), several
    ) == {
        "model": "m",
        "tokenizer": "t",
    }
    with pytest.raises(ConfigError, match="each only once"):
        policies.open_policy(config_of("http://a", "http://a"))
    for names in ([], ["folder", "http://a"], ["a", "b"]):
        with pytest.raises(ConfigError, match="one model folder, or URLs"):
            policies.open_policy(config_of(*names))


async def test_policy_identity_hub_name_records_commit(
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
    identity = await policies.policy_identity(settings, policies.open_policy(settings))
    assert (identity["path"], identity["commit"]) == ("Qwen/Qwen3-8B@v1.0", "c0ffee")
    policies.load_tokenizer("Qwen/Qwen3-8B@v1.0")
    assert asked == [("Qwen/Qwen3-8B", "v1.0")] * 3
    with pytest.raises(ConfigError, match="no revision after the @"):
        policies.load_tokenizer("Qwen/Qwen3-8B@")


# Models by their names on a hub -------------------------------------------------------------------


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
