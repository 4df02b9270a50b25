from pathlib import Path

import pytest

from atommem.errors import ConfigError
from atommem.plugins import find_file, shipped_files


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


RECIPE = "train/qwen3_0.6b_lora_1gpu"


def test_where_names_are_looked_for_and_how_they_may_be_written() -> None:
    for given in (Path(RECIPE).name, RECIPE, f"{RECIPE}.yaml", f"configs/{RECIPE}.yaml"):
        for folder in ("train", None):
            found = find_file("config", given, folder)
            assert found == shipped_files()[RECIPE]
            assert found.is_absolute()
    with pytest.raises(ConfigError, match="config is 'fsdp2': there is no such file"):
        find_file("config", "fsdp2", "train")  # in the command's folder only
    paths = [
        find_file("x", *where)
        for where in (("fsdp2", "accelerate"), ("accelerate/fsdp2",), ("fsdp2",))
    ]
    assert paths == [shipped_files()["accelerate/fsdp2"]] * 3
    Path("smoke").write_text("title: mine\n")  # a file of the user wins
    assert find_file("suite", "smoke", "eval") == Path("smoke")
    Path("smoke").unlink()
    Path("smoke").mkdir()  # a folder of that name is no file
    assert find_file("suite", "smoke", "eval") == shipped_files()["eval/smoke"]


def test_a_typing_mistake_is_answered_with_the_nearest_name_or_the_list() -> None:
    for given, said, unsaid in (
        (
            ("config", "qwen3_8b_hotpot", "train"),
            r"is no such file \(did you mean qwen3_8b_hotpotqa\?\).*`atommem configs`",
            "smollm2",
        ),
        (
            ("suite", "/nowhere/smoke.yaml", "eval"),
            r"'/nowhere/smoke\.yaml'.* \(did you mean smoke",
            "fsdp2",
        ),
        (("suite", "nonsense", "eval", "data:"), "shipped are .*table1", "paper"),
    ):
        with pytest.raises(ConfigError, match=said) as raised:
            find_file(*given)
        assert unsaid not in str(raised.value)


def test_a_command_line_gets_the_path() -> None:
    path = str(shipped_files()["train/smollm2_cpu"])
    for words in (["--config", "smollm2_cpu"], ["--config=smollm2_cpu"]):
        line = with_config_path(["--seed", "1", *words, "--use_cpu"], "train")
        assert line == ["--seed", "1", "--config", path, "--use_cpu"]
    for words in (["--config"], ["--config="], ["--config", "--use_cpu"]):
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
