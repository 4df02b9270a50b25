"""The built wheel in an environment of its own, used from a folder with files of our rooms' names.

The environment sees the libraries of the one that runs the tests, and no other AtomMem.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
ROOMS = ("envs", "train", "eval", "serve", "demo", "integrations")
COMMANDS = ["ask", "serve", "demo", "data", "corpus", "train", "eval", "compare"]
COMMANDS += ["judge", "audit", "report", "trace", "env", "configs", "completion"]
LAUNCH = ["-m", "accelerate.commands.launch", "--num_processes", "1", "--cpu"]
NOT_OURS = "raise SystemExit('{} is not ours, and was imported')\n"


def run(command: list[str | Path], cwd: Path, timeout: float = 120) -> str:
    """The command's standard output; fails with everything that it wrote when it fails."""
    kept = {name: os.environ[name] for name in os.environ if not name.startswith(("PYTHON", "COV"))}
    environment = {**kept, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
    how: Any = {"env": environment, "capture_output": True, "text": True, "timeout": timeout}
    result = subprocess.run(command, cwd=cwd, **how)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    checkout = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("atommem", "configs", "tests", *ROOMS):
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    return checkout


def build(kind: str, source: Path, out: Path) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(out)!r}))"
    return out / run([sys.executable, "-c", code], source).splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, which holds no tests, as `python -m build` does."""
    sdist = build("sdist", checkout, tmp_path_factory.mktemp("sdist"))
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        names = {Path(name).parts[1] for name in archive.getnames() if "/" in name}
        archive.extractall(unpacked, filter="data")
    assert names >= {"atommem", "LICENSE", "README.md", "pyproject.toml"}
    assert not names & {"tests", "scripts", "docs", *ROOMS}
    return build("wheel", next(unpacked.iterdir()), tmp_path_factory.mktemp("wheel"))


def test_wheel_holds_one_package_with_all_files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    info = f"atommem-{VERSION}.dist-info"
    assert {name.split("/")[0] for name in found} == {"atommem", info}
    assert found[f"{info}/top_level.txt"] == b"atommem\n"
    expected = {}
    for folder in ("atommem", *ROOMS, "configs"):
        prefix = "" if folder == "atommem" else "atommem/"
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts:
                expected[prefix + path.relative_to(ROOT).as_posix()] = path.read_bytes()
    assert {name: text for name, text in found.items() if name.startswith("atommem/")} == expected


def environment(folder: Path, *what: str | Path) -> Path:
    run([sys.executable, "-m", "venv", "--without-pip", folder], folder)
    python = folder / "bin" / "python"
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # A .pth file adds the folder without the .pth files in it: not the editable AtomMem.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = ["install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    install += ["--ignore-installed"]
    run([sys.executable, "-m", "pip", "--python", python, *install, *what], folder)
    (packages / "envs").mkdir()
    (packages / "envs" / "__init__.py").write_text(NOT_OURS.format("envs"))
    return python


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("environment"), wheel)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    (folder / "train.py").write_text(NOT_OURS.format("train.py"))
    for name in ("eval", "configs"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(NOT_OURS.format(name))
    return folder


def test_installed_commands_print_their_help(python, folder):
    with pytest.raises(AssertionError, match=r"train\.py is not ours"):
        run([python, "-c", "import train"], folder)
    module: list[str | Path] = [python, "-m", "atommem.cli"]
    for start in ([python.with_name("atommem")], module, [python, *LAUNCH, "-m", "atommem.cli"]):
        assert run([*start, "--version"], folder).strip() == f"atommem {VERSION}"
    listed = run([*module, "--help"], folder).splitlines()
    assert max(map(len, listed)) <= 80
    assert [line.split()[0] for line in listed if line.startswith("  ")] == COMMANDS
    others = "train grpo,train sft,train async,eval --suite,data build,data convert,corpus build"
    others += ",data build --environment web,data build --benchmark told"
    for command in (*COMMANDS, *others.split(",")):
        out = run([*module, *command.split(), "--help"], folder)
        assert f"usage: atommem {command.split()[0]}" in out
        assert out.count("\n") <= 40, out
        assert max(map(len, out.splitlines())) <= 80, out


def test_installed_recipes_launchers_and_suites_are_found_by_name(python, folder):
    atommem: list[str | Path] = [python.with_name("atommem")]
    plan = run([*atommem, "train", "--dry_run", "--config", "qwen3_0.6b_lora_1gpu"], folder)
    assert "Dry run: grpo" in plan
    launcher = Path(run([*atommem, "configs", "accelerate/ddp"], folder).strip())
    assert launcher.is_relative_to(python.parents[1])
    launch = [python, *LAUNCH, "--config_file", launcher, "--mixed_precision", "no"]
    train = "-m atommem.cli train grpo --dry_run --config train/smollm2.yaml"
    assert "Dry run: grpo" in run([*launch, *train.split()], folder)
    listed = run([*atommem, "eval", "--suite", "smoke", "--list"], folder)
    assert "oracle on synthetic, seed 0" in listed


@pytest.fixture(scope="module")
def demo(python: Path, folder: Path) -> Path:
    run([python.with_name("atommem"), "demo", "--quick"], folder, timeout=300)
    return folder / "runs" / "demo"


PAGES = r"""
import sys
sys.path.insert(0, sys.argv[1])
import json
from pathlib import Path
from tests.pages import Reader, blocks, save_tiny_model
import atommem
assert Path(atommem.__file__).is_relative_to(sys.prefix)
with Reader(Path.cwd(), sys.argv[2]) as reader:
    (_, ten_lines), known = blocks("README.md", "python")[0], {}
    assert len([line for line in ten_lines.splitlines() if line.strip()]) <= 10
    reader.do("python", ten_lines, known, "README.md")
    answer = known["answer"]
    assert (answer.text, [entry.text for entry in answer.entries]) == (
        "Porto", ["Tom has moved to Porto."]
    )
    Path("examples").symlink_to(Path(sys.argv[1]) / "examples")
    paragraphs = Path("examples/letter.txt").read_text().rstrip().split("\n\n")
    assert paragraphs == known["letter"].splitlines()
    for _, block in blocks("README.md", "bash"):
        for line in block.replace("\\\n", "").splitlines():
            if line.startswith(("atommem trace", "atommem train", "atommem ask")):
                reader.run(line)
    assert reader.printed == "Porto\n"
    save_tiny_model()
    names = {page: reader.follow(f"docs/tutorials/{page}.md") for page in sys.argv[3:]}
letter = names["letter"]
assert letter["again"].history() == letter["memory"].history()
summary = json.loads(Path("runs/letters_eval/summary.json").read_text())
assert (summary["episodes"], summary["failed"]) == (2, 0)
assert Path("runs/qwen3_0.6b_lora/adapter_model.safetensors").is_file()
assert "my_rules:LeastShown" in Path("runs/rules/mine/run.json").read_text()
print(names["own_environment"]["answer"].status)
"""
TUTORIALS = ("own_questions", "letter", "agent", "one_gpu", "own_rule", "own_environment")


def test_installed_wheel_runs_the_readme_and_every_tutorial(python, demo, tmp_path):
    (tmp_path / "tests").mkdir()
    for name in ("pages.py", "pages.yaml"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    for name in ("README.md", "docs", "examples", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    reader = tmp_path / "reader"
    shutil.copytree(demo, reader / "runs" / "demo")
    base = run([sys.executable, ROOT / "scripts" / "models.py", "smollm2"], ROOT, 300).strip()
    assert {path.stem for path in (ROOT / "docs" / "tutorials").iterdir()} == set(TUTORIALS)
    printed = run([python, "-c", PAGES, tmp_path, base, *TUTORIALS], reader, timeout=900)
    assert printed.splitlines()[-1].endswith(("completed", "incomplete"))
    assert (reader / "runs" / "mine" / "model.safetensors").is_file()
    atlas = reader / "runs" / "atlas"
    assert (atlas / "grpo" / "model.safetensors").is_file()
    lines = (atlas / "grpo" / "metrics.jsonl").read_text().splitlines()
    updates = [entry for entry in map(json.loads, lines) if "loss" in entry]
    assert [entry["step"] for entry in updates] == [1, 2]
    for entry in updates:
        assert 0 <= entry["overlap"] == pytest.approx(entry["reward"])
        assert entry["actions/lookup"] > 0
        assert entry["sampling/sampling_logp_difference/mean"] < 1e-4
    assert "lookup" in (atlas / "report" / "tables.md").read_text()


def test_core_without_the_extras_works_and_names_what_is_missing(wheel, folder, tmp_path):
    python = environment(tmp_path, wheel)
    (packages,) = (tmp_path / "lib").glob("python*/site-packages")
    heavy = "torch transformers trl peft accelerate datasets pyarrow pydantic"
    blocked = f"import sys; sys.modules.update(dict.fromkeys({heavy!r}.split()))\n"
    (packages / "without.pth").write_text(blocked)
    atommem: list[str | Path] = [python.with_name("atommem")]
    run([*atommem, "data", "synthetic", "--n", "2", "--out", "core.jsonl"], folder)
    for command in ("data show core.jsonl", "configs", "demo -h", "train -h", "corpus build -h"):
        run([*atommem, *command.split()], folder)
    for command, package, extra in (
        ("train --config smollm2", "trl", "train"),
        ("train grpo -h", "trl", "train"),
        ("demo --quick", "torch", "train"),
        ("serve --policy smollm2", "pydantic", "serve"),
        ("ask core.jsonl Who?", "(torch|transformers)", "local"),
    ):
        message = rf"needs the package {package}: pip install -c constraints.txt -e '\.\[{extra}\]'"
        with pytest.raises(AssertionError, match=message):
            run([*atommem, *command.split()], folder)
