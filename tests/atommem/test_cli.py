"""The command `atommem`, and sub-commands of other packages."""

import subprocess
import sys
from importlib.metadata import EntryPoint, version

import pytest

from atommem import cli


def test_cli_prints_commands_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    out = capsys.readouterr().out
    for name in ("ask", "demo", "data", "train", "eval", "compare", "report", "trace", "env"):
        assert name in out
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"atommem {version('atommem')}\n"
    assert cli.main(["fly"]) == 2
    assert "fly: not a command" in capsys.readouterr().err


@pytest.mark.slow
def test_cli_closed_pipe_prints_no_traceback() -> None:
    line = f"{sys.executable} -m atommem.cli configs | sleep 0"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def command(name: str, target: str) -> EntryPoint:
    return EntryPoint(name, target, "atommem.commands")


def test_cli_plugin_cannot_replace_builtin_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = command("trace", "atommem.trace_view:main")
    entries = [ours, command("fly", "builtins:print"), command("trace", "builtins:print")]
    monkeypatch.setattr(cli, "registered", lambda group: entries)
    cli.main(["fly", "north"])
    assert capsys.readouterr().out == "['north']\n"
    assert cli.main(["trace", "/nowhere/at/all.jsonl"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "/nowhere/at/all.jsonl" in captured.err  # an error of ours is a message, not a traceback


def test_cli_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "atommem.trace_view", raising=False)
    assert cli.main(["trace", "x"]) == 2
    assert "atommem trace: needs the package rich: pip install" in capsys.readouterr().err
