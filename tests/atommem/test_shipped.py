from pathlib import Path

import pytest

from atommem.arguments import load_yaml, split_config
from atommem.cli import list_configs
from atommem.errors import ConfigError
from atommem.plugins import find_file, shipped_files

RECIPE = "train/qwen3_0.6b_lora_1gpu"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", [RECIPE, Path(RECIPE).name, f"configs/{RECIPE}.yaml"])
def test_find_file_shipped_name_returns_its_path(name: str) -> None:
    assert find_file("config", name, "train") == shipped_files()[RECIPE]


def test_find_file_users_file_wins_over_a_shipped_one() -> None:
    Path("smoke").write_text("title: mine\n")
    assert find_file("suite", "smoke", "eval") == Path("smoke")


@pytest.mark.parametrize(
    ("folder", "name", "message"),
    [
        ("train", "qwen3_8b_hotpot", r"did you mean qwen3_8b_hotpotqa\?\).*`atommem configs`"),
        ("eval", "nonsense", "Shipped are .*table1"),
    ],
)
def test_find_file_unknown_name_is_refused(folder: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_file("config", name, folder)


def test_split_config_reads_files_in_order_and_keeps_flags() -> None:
    Path("own.yaml").write_text("base: smollm2_cpu\nseed: 7\n")
    rest, values = split_config(["--seed", "1", "--config=own.yaml", "--use_cpu"], "train")
    assert rest == ["--seed", "1", "--use_cpu"]
    assert values == load_yaml(shipped_files()["train/smollm2_cpu"], "train") | {"seed": 7}
    for words in (["--config"], ["--config="], ["--config", "--use_cpu"]):
        with pytest.raises(ConfigError, match="expected a file"):
            split_config(words, "train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1, 2\nb: }", "not a readable YAML file"),
        (b"- 1\n", "expected settings, NAME: VALUE"),
        (b"base: nowhere\n", "base=nowhere: no such file"),
    ],
)
def test_load_yaml_broken_file_is_refused(content: bytes, message: str) -> None:
    Path("broken.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_yaml(Path("broken.yaml"), "train")


def test_configs_command_lists_files_and_prints_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_configs([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_files())
    assert all(len(line.split()) > 3 for line in lines), "each has a summary"
    assert max(map(len, lines)) <= 80
    assert list_configs(["accelerate/fsdp2"]) == 0
    assert capsys.readouterr().out == f"{shipped_files()['accelerate/fsdp2']}\n"
    with pytest.raises(ConfigError, match="did you mean fsdp2"):
        list_configs(["fsdp"])
