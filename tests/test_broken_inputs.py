"""Broken inputs, interrupted commands and full disks: one line with a fix, nothing half-written."""

import _pyio
import builtins
import errno
import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from atommem import cli
from tests.envs.benchmark_rows import sample, write_json, write_lines

FILES = {
    "binary": bytes(range(256)) * 8,
    "latin1": "Müller sagt: naïve".encode("latin-1"),
    "empty.jsonl": b"",
    "cut.jsonl": b'{"id": "1", "questions": [{"text": "Who',
    "deep.json": b"[" * 100_000,
    "unknown.yaml": b"lerning_rate: 1\n",
    "types.yaml": b"retrieve_k: many\n",
    "old.yaml": b"max_tokens: 3\n",
    "broken.parquet": b"PAR1 and no more",
    "plain.txt": b"Ann lives in Lima.\n",
}
SIZES = ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads")
MODEL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **dict.fromkeys(SIZES, 1)}
LINES = yaml.safe_load(Path(__file__).with_name("broken_inputs.yaml").read_text())
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in LINES["slow"].items()]


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    box = tmp_path_factory.mktemp("box")
    for name, content in FILES.items():
        (box / name).write_bytes(content)
    (box / "folder").mkdir()
    for name in ("model", "bare", "bert"):
        (box / name).mkdir()
        (box / name / "config.json").write_text(json.dumps(MODEL))
    (box / "bert" / "config.json").write_text('{"architectures": ["BertModel"]}')
    (box / "bert" / "pytorch_model.bin").touch()
    (box / "model" / "model.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(box)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield box


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    ("line", "message"), [*LINES["fast"].items(), *SLOW], ids=lambda text: text[:60]
)
def test_command_with_broken_input_reports_one_line(line, message, box, capfd):
    before = contents(box)
    assert cli.main(line.split()) == 2
    lines = [text for text in capfd.readouterr().err.splitlines() if text.strip()]
    lines = [text for text in lines if not text.startswith("opening ")]
    assert message in lines[-1]
    assert len(lines) == 1
    assert len(lines[0]) < 1000
    assert contents(box) == before


COMMANDS = [
    "data build --benchmark hotpotqa --split dev --input hotpot.json --documents 8 --n 2 "
    "--out out/made.jsonl",
    "corpus build --input pages.jsonl --output_dir out",
    "audit texts.jsonl --embedder hashing --capacity 3 --out out/made.json",
]
parametrized = pytest.mark.parametrize("command", COMMANDS, ids=lambda line: line.split(" --")[0])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    texts = [f"in {1990 + i} Ann moved to town number {i}" for i in range(30)]
    write_json(tmp_path / "hotpot.json", [sample("hotpot", number) for number in range(4)])
    write_lines(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    write_lines(tmp_path / "pages.jsonl", [{"title": text, "text": text} for text in texts])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def at_a_write(below: Path, act: Callable[[], object]) -> Iterator[None]:
    """`act` is called before each write of a file below a folder.

    `open` is that of Python in Python, whose lowest layer can be replaced.
    """
    write = _pyio.FileIO.write

    def noted(file: Any, data: Any) -> Any:
        by_name = isinstance(file.name, (str, os.PathLike))
        if by_name and Path(file.name).absolute().is_relative_to(below):
            act()
        return write(file, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pyio.FileIO, "write", noted)
        for module in (io, builtins):
            patch.setattr(module, "open", _pyio.open)
        yield


@parametrized
def test_command_interrupted_at_its_first_write_leaves_no_partial_file(command, folder, capfd):
    before = contents(folder)
    sent: list[int] = []

    def stop() -> None:
        if not sent:
            sent.append(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    with at_a_write(folder, stop):
        assert cli.main(command.split()) == 130
    expected = f"atommem {command.split()[0]}: interrupted"
    assert capfd.readouterr().err.strip().splitlines()[-1] == expected
    left = contents(folder).keys() - before.keys()
    assert not [name for name in left if ".tmp" in name or Path(name).name.startswith(".")]
    for name in (name for name in left if name.endswith(".jsonl")):
        assert [json.loads(row) for row in (folder / name).read_text().splitlines()]
    assert cli.main(command.split()) == 0
    assert contents(folder).keys() > before.keys()


@parametrized
def test_command_on_a_full_disk_reports_one_line_and_leaves_nothing(command, folder, capfd):
    before = contents(folder)

    def fail() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with at_a_write(folder, fail):
        assert cli.main(command.split()) == 2
    lines = [text for text in capfd.readouterr().err.splitlines() if text.strip()]
    assert sum("No space left on device" in text for text in lines) == 1
    assert lines[-1].startswith(f"atommem {command.split()[0]}: ")
    assert "Free some space" in lines[-1]
    assert contents(folder) == before
