from pathlib import Path

import pytest

from atommem.errors import ConfigError
from atommem.shipped import find_file, main, shipped_files, with_config_path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


RECIPE = "train/qwen3_0.6b_lora_1gpu"


@pytest.mark.parametrize("given", ["qwen3_0.6b_lora_1gpu", RECIPE, f"{RECIPE}.yaml", f"configs/{RECIPE}.yaml"])
@pytest.mark.parametrize("folder", ["train", None])
def test_a_shipped_file_has_a_name_with_and_without_folder_and_ending(given: str, folder: str | None) -> None:
    found = find_file("config", given, folder)
    assert found == shipped_files()[RECIPE]
    assert found.is_absolute()


def test_a_file_of_the_user_wins() -> None:
    Path("smoke").write_text("title: mine\n")
    assert find_file("suite", "smoke", "eval") == Path("smoke")
    Path("smoke").unlink()
    Path("smoke").mkdir()  # a folder of that name is no file
    assert find_file("suite", "smoke", "eval") == shipped_files()["eval/smoke"]


def test_names_are_looked_for_in_the_command_s_folder_only() -> None:
    with pytest.raises(ConfigError, match="config is 'fsdp2': there is no such file"):
        find_file("config", "fsdp2", "train")
    found = [find_file("x", *where) for where in (("fsdp2", "accelerate"), ("accelerate/fsdp2",), ("fsdp2",))]
    assert found == [shipped_files()["accelerate/fsdp2"]] * 3


def test_a_typing_mistake_is_answered_with_the_nearest_name_and_the_list() -> None:
    with pytest.raises(ConfigError) as raised:
        find_file("config", "qwen3_8b_hotpot", "train")
    message = str(raised.value)
    assert message.startswith("config is 'qwen3_8b_hotpot': there is no such file; did you mean qwen3_8b_hotpotqa?")
    assert "smollm2_cpu" in message
    assert "fsdp2" not in message
    with pytest.raises(
        ConfigError, match=r"suite is '/nowhere/smoke\.yaml': there is no such file; did you mean smoke"
    ):
        find_file("suite", "/nowhere/smoke.yaml", "eval")
    with pytest.raises(ConfigError, match=r"shipped are .*table1") as raised:
        find_file("suite", "nonsense", "eval", "data:")
    assert "paper" not in str(raised.value)


@pytest.mark.parametrize("words", [["--config", "smollm2_cpu"], ["--config=smollm2_cpu"]])
def test_a_command_line_gets_the_path(words: list[str]) -> None:
    path = str(shipped_files()["train/smollm2_cpu"])
    assert with_config_path(["--seed", "1", *words, "--use_cpu"], "train") == [
        *("--seed", "1", "--config", path, "--use_cpu")
    ]


@pytest.mark.parametrize("words", [["--config"], ["--config="], ["--config", "--use_cpu"]])
def test_config_without_a_name(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="without its file"):
        with_config_path(words, "train")


def test_the_command_lists_and_prints_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_files())
    assert all(len(line.split()) > 3 for line in lines), "each says what it is"
    assert max(map(len, lines)) <= 120
    assert main(["accelerate/fsdp2"]) == 0
    assert capsys.readouterr().out == f"{shipped_files()['accelerate/fsdp2']}\n"
    with pytest.raises(ConfigError, match="did you mean fsdp2"):
        main(["fsdp"])
