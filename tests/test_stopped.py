"""Commands that are stopped at their first write, and disks that are full: one line, nothing half written, and again.

Training, serving and `ask --memory` on SIGKILL have tests of their own, evaluation scripts/bench_eval_resume.py. What a
command writes goes through `open`, here that of Python in Python, whose lowest layer can be replaced.
"""

from __future__ import annotations

import _pyio
import builtins
import errno
import io
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from atommem import cli
from tests.envs.benchmark_rows import hotpot_row

_TEXTS = [
    f"in {1990 + i} Ann moved to town number {i}" if i % 3 == 0 else f"oh well {i}"
    for i in range(30)
]
_HASHING = ("--embedder", "hashing")
COMMANDS: dict[str, tuple[str, ...]] = {
    "data build": (
        "--benchmark",
        "hotpotqa",
        "--split",
        "dev",
        "--input",
        "hotpot.json",
        "--docs",
        "8",
        "--n",
        "2",
    ),
    "data synthetic": ("--n", "3"),
    "corpus build": ("--input", "pages.jsonl"),
    "audit": ("texts.jsonl", *_HASHING, "--budget", "3"),
}
OUT = {
    "data": "out/made.jsonl",
    "corpus": "out",
    "audit": "out/made.json",
}


def line(command: str) -> list[str]:
    words = command.split()
    return [*words, *COMMANDS[command], "--out", OUT.get(words[0], "out")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hotpot.json").write_text(json.dumps([hotpot_row(number) for number in range(4)]))
    rows = [
        {"stream": str(i % 2), "text": text, "needed": int(i % 3 == 0)}
        for i, text in enumerate(_TEXTS)
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pages = [{"title": f"Ann {i}", "text": text} for i, text in enumerate(_TEXTS)]
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def at_a_write(below: Path, act: Callable[[], object]) -> Iterator[None]:
    """`act` is called before each write of a file below a folder that Python opens by name."""
    write = _pyio.FileIO.write

    def noted(file: Any, data: Any) -> Any:
        if isinstance(file.name, (str, os.PathLike)) and Path(file.name).absolute().is_relative_to(
            below
        ):
            act()
        return write(file, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_pyio.FileIO, "write", noted)
        for module in (io, builtins):
            patch.setattr(module, "open", _pyio.open)
        yield


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_at_its_first_write(
    command: str, number: signal.Signals, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder)
    sent: list[int] = []

    def stop() -> None:
        if not sent:
            sent.append(number)
            signal.raise_signal(number)

    with at_a_write(folder, stop):
        assert cli.main(line(command)) == 130
    assert sent
    assert (
        capfd.readouterr().err.strip().splitlines()[-1]
        == f"atommem {command.split()[0]}: interrupted"
    )
    left = contents(folder).keys() - before.keys()
    assert not [name for name in left if ".tmp" in name or Path(name).name.startswith(".")]
    assert not [
        name for name in left if name.endswith((".json", ".jsonl")) and not _whole(folder / name)
    ]
    assert cli.main(line(command)) == 0, "the same command does it"
    assert contents(folder).keys() > before.keys()


def _whole(path: Path) -> bool:
    try:
        for text in [path.read_text()] if path.suffix == ".json" else path.read_text().splitlines():
            json.loads(text)
    except ValueError:
        return False
    return path.stat().st_size > 0


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk(command: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with at_a_write(folder, full):
        assert cli.main(line(command)) == 2
    said = [text for text in capfd.readouterr().err.splitlines() if text.strip()]
    assert sum("No space" in text for text in said) == 1
    # Which command, where there was no room, and what to do.
    expected = rf"atommem {command.split()[0]}: .*(\.jsonl: |out).*No space left on device.*free some space"
    assert re.match(expected, said[-1]), said
    assert contents(folder) == before
    assert cli.main(line(command)) == 0, "with room again"
