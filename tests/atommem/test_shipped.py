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


def test_find_file_returns_users_file_or_shipped_one() -> None:
    for name in (RECIPE, Path(RECIPE).name, f"configs/{RECIPE}.yaml"):
        assert find_file("config", name, "train") == shipped_files()[RECIPE]
    Path("smoke").write_text("title: mine\n")
    assert find_file("suite", "smoke", "eval") == Path("smoke")
    with pytest.raises(ConfigError, match=r"did you mean qwen3_8b_hotpotqa\?\).*`atommem configs`"):
        find_file("config", "qwen3_8b_hotpot", "train")


def test_split_config_reads_files_in_order_and_keeps_flags() -> None:
    Path("own.yaml").write_text("base: smollm2_cpu\nseed: 7\n")
    rest, values = split_config(["--seed", "1", "--config=own.yaml", "--use_cpu"], "train")
    assert rest == ["--seed", "1", "--use_cpu"]
    assert values == load_yaml(shipped_files()["train/smollm2_cpu"], "train") | {"seed": 7}
    with pytest.raises(ConfigError, match="expected a file"):
        split_config(["--config"], "train")
    Path("broken.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="expected settings, NAME: VALUE"):
        load_yaml(Path("broken.yaml"), "train")


def test_configs_command_lists_files_and_prints_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert list_configs([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_files())
    assert all(len(line.split()) > 3 for line in lines), "each has a summary"
    assert list_configs(["accelerate/fsdp2"]) == 0
    assert capsys.readouterr().out == f"{shipped_files()['accelerate/fsdp2']}\n"
