"""`atommem ask` as a command: against servers on this machine, and a model folder."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atommem import ask as ask_cli
from atommem.errors import ConfigError
from atommem.eval.audit import main as audit_cli
from atommem.trace import read_trace
from tests.loopback import serving


def script(text: str) -> str:
    part = re.search(r"Part (\d+) of", text)
    if part is not None:
        return f"<create_memory>part {part[1]}</create_memory><read_memory>part</read_memory>"
    shown = re.findall(r"Memory \d+: (part \d+)", text)
    answer = ", ".join(sorted(shown))
    return f"<final_answer>\\boxed{{{answer}}}</final_answer>" if shown else "no idea"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(script) as url:
        yield url


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("Ann lives in Port. " * 3)
    return path


def ask(url: str, *arguments: Any) -> int:
    settings = ["--policy", url, "--api", "chat", "--embedder", "hashing", "--chunk_tokens", "7"]
    return ask_cli.main([*map(str, arguments), *settings])


def test_help_names_the_default_policy_and_what_a_reader_needs(capsys):
    with pytest.raises(SystemExit):
        ask_cli.main(["--help"])
    printed = capsys.readouterr().out
    for words in ("It is smollm2,", "--no_reading", "--base_model", "--policy"):
        assert words in printed
    assert "--reward" not in printed
    assert printed.count("\n") <= 40


@pytest.mark.slow
def test_ask_with_memory_folder_continues_it(url, book, capsys, monkeypatch):
    folder = book.parent / "memory"
    assert ask(url, book, "Where?", "--memory", folder) == 0
    captured = capsys.readouterr()
    assert captured.out == "part 1, part 2, part 3\n"
    assert "shown: part 1 (book.txt, chunk 1/3)" in captured.err
    assert captured.err.index("reading:   0%") < captured.err.index("2 actions, 1 entries")
    assert ask(url, book, "Where?", "Who?", "--memory", folder, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["entries"], found["steps"]) == (3, 6)  # the book was not read again
    assert [item["answer"] for item in found["answers"]] == ["part 1, part 2, part 3"] * 2
    # With the policy and the settings that it was saved with.
    assert ask_cli.main(["--memory", str(folder), "--no_reading", "Who?"]) == 0
    assert capsys.readouterr().out == "part 1, part 2, part 3\n"
    assert audit_cli([str(folder)]) == 0  # with its embedder
    assert capsys.readouterr().out.startswith("3 entries")
    with pytest.raises(ConfigError, match="needs a saved memory"):
        ask_cli.main(["--memory", str(book.parent / "nope"), "--no_reading", "Who?"])
    assert not (book.parent / "nope").exists()
    monkeypatch.setattr(sys, "stdin", book.open())
    trace = book.parent / "trace.jsonl"
    assert ask(url, "-", "Where?", "--trace", trace) == 0
    assert capsys.readouterr().out == "part 1, part 2, part 3\n"
    steps = read_trace(trace).episode.steps
    assert len(steps) == 4
    assert "You change your memory by writing" in str(steps[0].prompt)


@pytest.mark.slow
def test_ask_interrupted_continues_with_the_same_command(book, capsys):
    book.write_text("Ann lives in Port. " * 15)
    folder, prompts = book.parent / "memory", []

    def interrupt(text: str) -> str:
        prompts.append(text)
        if len(prompts) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return script(text)

    with serving(interrupt) as url:
        assert ask(url, book, "Where?", "--memory", folder, "--json") == 130
        assert "holds the finished steps; the same command continues" in capsys.readouterr().err
        (reading,) = json.loads((folder / "memory.json").read_text())["readings"]
        assert 3 <= len(reading["steps"]) < reading["chunks"]
        assert ask(url, book, "Where?", "--memory", folder, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    read = found["readings"][0]["steps"]
    # An interrupted step leaves the memory as it was; its number is not used again.
    assert len(read) == len(set(read)) == reading["chunks"]
    assert found["steps"] <= reading["chunks"] + 2
