"""The command `atommem`, and sub-commands of other packages."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, version
from pathlib import Path

import pytest

from atommem import cli
from atommem.cli import find_extra


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


Add = Callable[[str, str], None]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Add:
    """Install a package with the commands ``fly`` and ``trace``: ``add(module's text, name)``."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(text: str, module: str) -> None:
        (tmp_path / f"{module}.py").write_text(text)
        info = tmp_path / "flights-2.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flights\nVersion: 2.0\n")
        lines = ["[atommem.commands]", f"fly = {module}:main", f"trace = {module}:main"]
        (info / "entry_points.txt").write_text("\n".join(lines))

    return install


def test_cli_plugin_cannot_replace_builtin_command(
    add: Add, capsys: pytest.CaptureFixture[str]
) -> None:
    add("def main(argv):\n    print('up', *argv)\n", "flights")
    assert cli.main(["fly", "north"]) == 0
    assert capsys.readouterr().out == "up north\n"
    assert cli.main(["--help"]) == 0
    assert "  fly                  (flights:main)\n" in capsys.readouterr().out
    assert cli.main(["trace", "/nowhere/at/all.jsonl"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "/nowhere/at/all.jsonl" in captured.err  # an error of ours is a message, not a traceback


def test_cli_broken_plugin_leaves_other_commands_working(add: Add) -> None:
    add("1 / 0", "broken_flights")
    with pytest.raises(ZeroDivisionError):
        cli.main(["fly"])
    assert cli.main(["--help"]) == 0
    with pytest.raises(SystemExit) as stopped:
        cli.main(["trace", "--help"])
    assert stopped.value.code == 0


def test_cli_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fly(module: str) -> int:
        entry = EntryPoint("fly", f"{module}:main", "atommem.commands")
        monkeypatch.setattr(cli, "registered", lambda group: [entry])
        return cli.main(["fly"])

    with pytest.raises(ModuleNotFoundError, match=r"atommem\.gone"):
        fly("atommem.gone")
    monkeypatch.setitem(sys.modules, "rich.console", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "atommem.trace_view", raising=False)
    assert fly("atommem.trace_view") == 2
    assert "atommem fly: needs the package rich: pip install" in capsys.readouterr().err
    wanted = {
        ("sqlalchemy", "serve"): "serve",
        ("torch", "serve"): "train",
        ("mcp", "data"): "web",
    }
    assert {given: find_extra(*given) for given in wanted} == wanted
