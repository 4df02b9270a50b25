"""The command `atommem`, its shipped files and adapter, light imports, and `atommem ask`."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import EntryPoint, PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from atommem import Memory, cli, completion
from atommem import ask as ask_cli
from atommem.arguments import load_yaml, split_config
from atommem.config import SHIPPED, PolicyConfig, shipped_policy
from atommem.errors import ConfigError
from atommem.eval.audit import main as audit_cli
from atommem.plugins import shipped_files
from atommem.run import find_stored, stored_settings
from atommem.saved_memory import SavedMemory
from atommem.trace import read_trace
from tests.loopback import serving

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "trl", "vllm", "datasets", "peft", "accelerate"}
ROOMS = {"envs", "train", "eval", "serve", "demo", "integrations"}


def brought(project: str, extra: str = "") -> Iterator[tuple[str, str]]:
    """What a requirement installs: projects, each with an extra."""
    todo, found = [(project, extra)], set[tuple[str, str]]()
    while todo:
        name, extra = one = todo.pop()
        if one in found:
            continue
        found.add(one)
        yield one
        with suppress(PackageNotFoundError):
            for requirement in map(Requirement, requires(name) or []):
                if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                    project = canonicalize_name(requirement.name)
                    todo += [(project, extra) for extra in ("", *requirement.extras)]


def test_extra_that_an_error_names_brings_the_missing_package():
    rooms = (ROOT / room for room in (*ROOMS, "atommem"))
    trees = [ast.parse(path.read_text()) for room in rooms for path in room.glob("**/*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    core, projects = dict(brought("atommem")), packages_distributions()
    for package in {name.partition(".")[0] for name in names}:
        own = {canonicalize_name(name) for name in projects.get(package, [])}
        for command in ("", "ask", "serve") if own and not own & core.keys() else ():
            extra = cli._extra_of(package, command)
            assert own & dict(brought("atommem", extra)).keys(), f"{package}: not in {extra}"
    assert cli._extra_of("bs4", "ask") == "files"


def test_former_name_of_a_stored_setting_is_refused(tmp_path):
    (tmp_path / "atommem_config.json").write_text('{"max_tokens": 3}')
    with pytest.raises(ConfigError, match="called max_completion_length now"):
        stored_settings(str(tmp_path))


def test_completion_in_bash_needs_no_python(tmp_path, capsys):
    assert completion.main([]) == 0
    script = tmp_path / "atommem.sh"
    script.write_text(capsys.readouterr().out)
    ask = 'source $0; COMP_LINE="$*"; COMP_WORDS=($*); COMP_CWORD=$(($# - 1)); _atommem'
    bash = [str(shutil.which("bash")), "-c", f'{ask}; echo "${{COMPREPLY[*]}}"', str(script)]
    for line, found in {
        "atommem au": "audit",
        "atommem train gr": "grpo",
        "atommem train grpo --use_peft --learn": "--learning_rate",
        "atommem eval --suite table1 --inp": "--input",
        "atommem eval --policy ev": "",  # bash completes files
    }.items():
        done = subprocess.run([*bash, *line.split()], env={"PATH": ""}, stdout=subprocess.PIPE)
        assert done.stdout.decode().strip() == found


def test_settings_of_a_folder_reach_no_address_command_or_function(tmp_path):
    stored = {"environment": "web", "tools": ["mcp"], "retrieve_k": 3}
    strange = {"mcp_servers": ["rm -rf /tmp/x"], "embedder_url": "http://evil.test"}
    file = tmp_path / "atommem_config.json"
    file.write_text(json.dumps(stored | strange))
    assert stored_settings(str(tmp_path)) == stored
    code = {"tools": ["os:popen"], "retention": "a:Rule(k=1)", "environment": "a:Environment"}
    policy = ["--policy", str(tmp_path)]
    for name, value in code.items():
        file.write_text(json.dumps(stored | {name: value}))
        with pytest.raises(ConfigError, match=f"code to run: {name}=.*give {name} yourself"):
            find_stored(policy, {})
    with pytest.raises(ConfigError, match="this saved memory names code"):
        SavedMemory(None, {"admission": "a:Rule"}, {}, ()).open(None, {})
    file.write_text(json.dumps(stored | {"tools": ["os:popen"]}))
    assert find_stored([*policy, "--tools", "os:popen"], {})["retrieve_k"] == 3


def command(name: str, target: str) -> EntryPoint:
    return EntryPoint(name, target, "atommem.commands")


def test_cli_plugin_cannot_replace_builtin_command(monkeypatch, capsys):
    ours = command("trace", "atommem.trace_view:main")
    entries = [ours, command("fly", "builtins:print"), command("trace", "builtins:print")]
    monkeypatch.setattr(cli, "registered", lambda group: entries)
    cli.main(["fly", "north"])
    assert capsys.readouterr().out == "['north']\n"
    assert cli.main(["trace", "/nowhere/at/all.jsonl"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "/nowhere/at/all.jsonl" in captured.err  # an error of ours is a message, not a traceback


# Shipped files ---


def test_split_config_reads_files_in_order_and_keeps_flags(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("base: smollm2\nseed: 7\nchat_format: {}\n")
    rest, values = split_config(["--seed", "1", "--config=own.yaml", "--use_cpu"], "train")
    assert rest == ["--seed", "1", "--use_cpu"]
    assert values == load_yaml(shipped_files()["train/smollm2"], "train") | {"seed": 7}


# Imports: what is imported, and not only what may be (`lint-imports` holds that) ---


def test_import_atommem_loads_no_heavy_package():
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / "atommem").rglob("*.py"))]
    core = [
        ".".join(path.with_suffix("").parts)
        for path in paths
        if path.parts[1] not in ROOMS and path.stem != "__init__"
    ]
    lines = [
        "import atommem",
        "from atommem import AsyncMemory, Memory; atommem.__version__",
        f"import {','.join(core)}",
    ]
    report = "print(json.dumps([*sys.modules]))"
    script = "\n".join(["import json, sys", *(f"{line}\n{report}" for line in lines)])
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    alone, memory, whole = (set(json.loads(line)) for line in result.stdout.splitlines())
    assert not {"numpy", "faiss", "yaml", "rich", "httpx"} & alone
    assert not HEAVY & memory
    assert {"atommem.rollout", "atommem.policy.local"} <= whole
    assert not whole & (HEAVY | {f"atommem.{room}" for room in ROOMS})


# The shipped adapter, on the real SmolLM2-135M-Instruct (scripts/models.py) ---


def test_adapter_is_small_and_brings_its_settings():
    folder = Path(PolicyConfig(["smollm2"]).policy[0])
    assert sum(file.stat().st_size for file in folder.iterdir()) < 5e6
    stored = stored_settings(str(folder))
    assert (stored["embedder"], stored["templates"], stored["max_reads"]) == ("hashing", "plain", 0)
    assert shipped_policy("mine/smollm3") == "mine/smollm3"
    with pytest.raises(ConfigError, match=r"policy=smolm2: no such folder \(did you mean smollm2"):
        Memory("smolm2")


@pytest.mark.slow
def test_strangers_questions_are_answered(tmp_path):
    """Eight of tests/strangers.jsonl; all 60: `atommem eval --policy smollm2 --data ...`."""
    command = [sys.executable, "scripts/models.py", "smollm2"]
    base = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    tasks = (ROOT / "tests" / "strangers.jsonl").read_text(encoding="utf-8").splitlines()[::8]
    (tmp_path / "tasks.jsonl").write_text("\n".join(tasks) + "\n", encoding="utf-8")
    flags = ["--data", str(tmp_path / "tasks.jsonl"), "--output_dir", str(tmp_path / "eval")]
    flags += ["--policy", SHIPPED, "--base_model", base.strip(), "--temperature", "0"]
    command = [sys.executable, "-m", "atommem.cli", "eval", *flags]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    summary = json.loads((tmp_path / "eval" / "summary.json").read_text(encoding="utf-8"))
    # Measured: 4 of these 8, and 33 of all 60.
    assert summary["metrics"]["em"]["mean"] >= 0.375


# `atommem ask` against servers on this machine, and a model folder ---


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
    assert "(nothing is read again" not in captured.err
    assert captured.err.index("reading:   0%") < captured.err.index("2 actions, 1 entries")
    assert ask(url, book, "Where?", "Who?", "--memory", folder, "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["entries"], found["steps"]) == (3, 6)
    assert "(nothing is read again: what was kept is for" in captured.err
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
    assert audit_cli([str(trace)]) == 0
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
