"""Where the settings of `atommem eval` come from, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from atommem.config import EmbedderConfig, MemoryConfig, save_config
from atommem.environment import environment_config
from atommem.errors import ConfigError
from atommem.eval.eval_config import parse_arguments


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    memory = MemoryConfig(dialect="released", templates="compact", capacity=20, disabled_actions=["delete"])
    save_config(folder, memory, EmbedderConfig(embedder="hashing"), environment_config("longdoc", chunk_tokens=96))
    return folder


def arguments(policy: Path | str, *more: str) -> list[str]:
    return ["--policy", str(policy), "--data", "tasks.parquet", "--out", "runs/x", *more]


def test_flag_beats_file_beats_checkpoint_beats_default(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "eval.yaml"
    file.write_text(yaml.safe_dump({"capacity": 10, "chunk_tokens": 50, "temperature": 0.0}))
    config, memory, _, environment = parse_arguments(
        arguments(checkpoint, "--config", str(file), "--chunk_tokens", "7", "--disabled_actions", "read", "update")
    )
    assert memory.dialect == "released"  # checkpoint
    assert memory.capacity == 10  # file over checkpoint
    assert config.temperature == 0.0  # file over default
    assert environment.chunk_tokens == 7  # flag over file and checkpoint
    assert memory.disabled_actions == ["read", "update"]


def test_longest_completion_and_chat_arguments_come_with_the_checkpoint(checkpoint: Path) -> None:
    path = checkpoint / "atommem_config.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "max_tokens": 48, "chat_template_kwargs": {"a": 1}, "learning_rate": 1}))
    config = parse_arguments(arguments(checkpoint))[0]
    assert config.max_tokens == 48
    assert config.template_kwargs == {"a": 1}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--limit", "0"], "limit is 0"),
        (["--samples_per_task", "0"], "samples_per_task is 0"),
        (["--max_failed_fraction", "2"], "max_failed_fraction is 2"),
        (["--layout", "sideways"], "layout is 'sideways'"),
        (["--no_such_flag", "1"], "no_such_flag"),
        (["--tokenizer", "x"], "for servers only"),
        (["--config", "/nowhere/eval.yaml"], "eval.yaml"),
    ],
)
def test_wrong_settings_are_refused(more: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_arguments(arguments("model", *more))


def test_several_servers_or_one_folder(tmp_path: Path) -> None:
    servers = ["http://a:8000", "http://b:8000"]
    config = parse_arguments([*arguments(servers[0]), "--policy", *servers, "--tokenizer", "t"])[0]
    assert config.policy == servers
    assert config.is_server
    file = tmp_path / "eval.yaml"
    file.write_text(yaml.safe_dump({"policy": servers, "tokenizer": "t", "data": "d", "out": "o"}))
    assert parse_arguments(["--config", str(file)])[0].policy == servers
    with pytest.raises(ConfigError, match="give one model folder, or the URLs"):
        parse_arguments([*arguments("m"), "--policy", "m", "http://b"])
