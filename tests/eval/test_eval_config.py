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


def test_defaults_are_the_papers() -> None:
    config, memory, embedder, environment = parse_arguments(arguments("some/model"))
    assert (config.temperature, config.top_p, config.samples_per_task, config.limit) == (0.7, 1.0, 1, None)
    assert memory == MemoryConfig()
    assert embedder == EmbedderConfig()
    assert environment == environment_config("longdoc")


def test_checkpoint_settings_are_the_defaults_of_its_evaluation(checkpoint: Path) -> None:
    _, memory, embedder, environment = parse_arguments(arguments(checkpoint))
    assert (memory.dialect, memory.templates, memory.capacity) == ("released", "compact", 20)
    assert memory.disabled_actions == ["delete"]
    assert embedder.embedder == "hashing"
    assert environment.chunk_tokens == 96


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


def test_checkpoint_is_found_when_the_file_names_it(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "eval.yaml"
    file.write_text(yaml.safe_dump({"policy": str(checkpoint), "data": "d", "out": "o", "disabled_actions": []}))
    config, memory, _, _ = parse_arguments(["--config", str(file)])
    assert config.policy == [str(checkpoint)]
    assert memory.dialect == "released"
    assert memory.disabled_actions == []


def test_longest_completion_and_chat_arguments_come_with_the_checkpoint(checkpoint: Path) -> None:
    path = checkpoint / "atommem_config.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "max_tokens": 48, "chat_template_kwargs": {"a": 1}, "learning_rate": 1}))
    config = parse_arguments(arguments(checkpoint))[0]
    assert config.max_tokens == 48
    assert config.template_kwargs == {"a": 1}


def test_chat_template_kwargs_on_the_command_line() -> None:
    config = parse_arguments(arguments("m", "--chat_template_kwargs", '{"enable_thinking": false}'))[0]
    assert config.template_kwargs == {"enable_thinking": False}
    assert parse_arguments(arguments("m"))[0].template_kwargs == {}
    for wrong in ("{", "[1]"):
        with pytest.raises(ConfigError, match="give a JSON object"):
            parse_arguments(arguments("m", "--chat_template_kwargs", wrong))


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


def test_server_needs_a_tokenizer() -> None:
    with pytest.raises(ConfigError, match="--tokenizer"):
        parse_arguments(arguments("http://localhost:8000"))
    assert parse_arguments(arguments("http://localhost:8000", "--tokenizer", "x"))[0].is_server


@pytest.mark.parametrize("content", ["- a list", "{", "unknown_key: 1"])
def test_broken_files_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "eval.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError):
        parse_arguments(arguments("model", "--config", str(file)))


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
