"""The package as users get it: the built wheel in an environment of its own, run from a folder full of lookalikes.

Nothing is fetched: the environment sees the libraries of the one that runs the tests, but no AtomMem but its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
ROOMS = ("envs", "train", "eval", "serve", "demo")
COMMANDS = (
    *(
        "ask",
        "serve",
        "demo",
        "data",
        "corpus",
        "web",
        "train",
        "eval",
        "judge",
        "compare",
    ),
    *("retention", "audit", "report", "trace", "env", "configs"),
)
LAUNCH = ("-m", "accelerate.commands.launch")
NOT_OURS = "raise SystemExit('{} is not ours, and was imported')\n"


def run(command: list[str | Path], cwd: Path, timeout: float = 120) -> str:
    """The command's standard output; fails with everything that it wrote when it fails."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))
    }
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    result = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git would hand out, without what tests and users leave lying in the tree."""
    checkout = tmp_path_factory.mktemp("checkout")
    rubbish = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("atommem", "configs", "tests", *ROOMS):
        shutil.copytree(ROOT / name, checkout / name, symlinks=True, ignore=rubbish)
    for name in (
        "pyproject.toml",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
    ):
        shutil.copy(ROOT / name, checkout)
    return checkout


def build(kind: str, source: Path, out: Path) -> Path:
    """Run the build back end, as pip and `python -m build` do."""
    out.mkdir(parents=True, exist_ok=True)
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(out)!r}))"
    return out / run([sys.executable, "-c", code], source).splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", checkout, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of the sdist, as `python -m build` does."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    return build("wheel", next(unpacked.iterdir()), tmp_path_factory.mktemp("wheel"))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_one_package_with_everything_in_it(wheel: Path) -> None:
    found = contents(wheel)
    assert {name.split("/")[0] for name in found} == {"atommem", f"atommem-{VERSION}.dist-info"}
    assert found[f"atommem-{VERSION}.dist-info/top_level.txt"] == b"atommem\n"
    folders = [
        (ROOT / "atommem", "atommem"),
        *((ROOT / room, f"atommem/{room}") for room in (*ROOMS, "configs")),
    ]
    expected = {
        f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for folder, name in folders
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts
    }
    assert {Path(name).suffix for name in expected} >= {
        ".py",
        ".yaml",
        ".json",
        ".js",
        ".css",
        ".html",
    }
    assert {name: text for name, text in found.items() if name.startswith("atommem/")} == expected


def test_the_sdist_holds_no_tests_and_builds_what_the_checkout_builds(
    checkout: Path, sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        names = {Path(name).parts[1] for name in archive.getnames() if "/" in name}
    assert names >= {"atommem", "LICENSE", "README.md", "pyproject.toml"}
    assert not names & {"tests", "scripts", "docs", *ROOMS}
    assert contents(build("wheel", checkout, tmp_path)) == contents(wheel)


def environment(folder: Path, *what: str | Path) -> Path:
    """A new environment in which pip has installed `what`; returns its interpreter."""
    run([sys.executable, "-m", "venv", "--without-pip", folder], folder)
    python = folder / "bin" / "python"
    packages = Path(
        run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder
        ).strip()
    )
    # A line of a .pth file adds the folder and does not read the .pth files in it: no editable AtomMem comes along.
    (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--ignore-installed",
    ]
    run([sys.executable, "-m", "pip", "--python", python, *install, *what], folder)
    (packages / "envs").mkdir()
    (packages / "envs" / "__init__.py").write_text(NOT_OURS.format("envs"))
    return python


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel, and with another package that is called `envs`."""
    return environment(tmp_path_factory.mktemp("environment"), wheel)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a user works: files of theirs have the names of our rooms."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "train.py").write_text(NOT_OURS.format("train.py"))
    for name in ("eval", "configs"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(NOT_OURS.format(name))
    return folder


def test_every_command_is_there_and_explains_itself(python: Path, folder: Path) -> None:
    code = "import atommem, atommem.train; print(atommem.__file__, atommem.train.__file__)"
    assert all(
        Path(path).is_relative_to(python.parents[1])
        for path in run([python, "-c", code], folder).split()
    )
    with pytest.raises(AssertionError, match=r"train\.py is not ours"):
        run([python, "-c", "import train"], folder)
    module: list[str | Path] = [python, "-m", "atommem.cli"]
    launched = [python, *LAUNCH, "--num_processes", "1", "--cpu", "-m", "atommem.cli"]
    for start in ([python.with_name("atommem")], module, launched):
        assert run([*start, "--version"], folder).strip() == f"atommem {VERSION}"
        listed = run([*start, "--help"], folder).splitlines()
        assert tuple(line.split()[0] for line in listed if line.startswith("  ")) == COMMANDS
    for command in (
        *COMMANDS,
        "train grpo",
        "train sft",
        "train async",
        "data build",
        "eval --suite",
    ):
        out = run([*module, *command.split(), "--help"], folder)
        assert f"usage: atommem {command.split()[0]}" in out


def test_shipped_files_by_name(python: Path, folder: Path) -> None:
    """Recipe, suite and launcher; the recipe names its launcher in turn, and an evaluation its templates."""
    atommem: list[str | Path] = [python.with_name("atommem")]
    plan = run([*atommem, "train", "--dry_run", "--config", "qwen3_0.6b_lora_1gpu"], folder)
    assert "(single_gpu)" in plan
    assert "24 GB" in plan or "rtx4090" in plan
    launcher = Path(run([*atommem, "configs", "accelerate/ddp"], folder).strip())
    assert launcher.is_relative_to(python.parents[1])
    launch = [
        python,
        *LAUNCH,
        "--config_file",
        launcher,
        "--num_processes",
        "1",
        "--cpu",
        "--mixed_precision",
        "no",
    ]
    train = [
        "-m",
        "atommem.cli",
        "train",
        "grpo",
        "--dry_run",
        "--config",
        "train/smollm2_cpu.yaml",
    ]
    assert "Dry run: grpo" in run([*launch, *train], folder)
    assert "9 cells, " in run([*atommem, "eval", "--suite", "smoke", "--list"], folder)
    code = (
        "from atommem.eval.eval_config import parse_arguments as parse; from atommem.dialects import get_dialect\n"
        "memory = parse(['--config', 'smollm2', '--policy', 'p', '--data', 'd', '--out', 'o']).run.memory\n"
        "print(get_dialect(memory.dialect, memory.templates).templates.scratchpad)"
    )
    assert "Scratchpad" in run([python, "-c", code], folder)


@pytest.fixture(scope="module")
def demo(python: Path, folder: Path) -> Path:
    """What the demo leaves."""
    run([python.with_name("atommem"), "demo", "--quick"], folder, timeout=300)
    return folder / "runs" / "demo"


PAGES = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.pages import Reader, blocks
import atommem
assert Path(atommem.__file__).is_relative_to(sys.prefix)
with Reader(Path.cwd()) as reader:
    (_, ten_lines), known = blocks("README.md", "python")[0], {}
    assert len([line for line in ten_lines.splitlines() if line.strip()]) <= 10
    reader.do("python", ten_lines, known, "README.md")
    assert known["again"].history() == known["memory"].history()
    assert known["again"].entries() == known["memory"].entries()
    names = reader.follow("docs/tutorials/own_environment.md")
print(known["answer"].text, names["answer"].status)
"""


def test_the_pages_are_true_of_the_wheel_alone(python: Path, demo: Path, tmp_path: Path) -> None:
    """The README's ten lines; an environment of one's own, trained, evaluated and served."""
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "pages.py", tmp_path / "tests")
    for name in ("README.md", "docs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    reader = tmp_path / "reader"
    shutil.copytree(demo, reader / "runs" / "demo")
    told = run([python, "-c", PAGES, tmp_path], reader, timeout=600)
    assert told.splitlines()[-1].endswith(("completed", "incomplete"))
    assert (reader / "runs" / "atlas" / "grpo" / "model.safetensors").is_file()
    assert (reader / "runs" / "atlas" / "after" / "summary.json").is_file()


def test_without_the_extras_the_core_works_and_says_what_is_missing(
    wheel: Path, folder: Path, tmp_path: Path
) -> None:
    python = environment(tmp_path, wheel)
    packages = next((tmp_path / "lib").glob("python*/site-packages"))
    heavy = [
        "torch",
        "transformers",
        "trl",
        "peft",
        "accelerate",
        "datasets",
        "pyarrow",
        "matplotlib",
    ]
    (packages / "without.pth").write_text(
        f"import sys; sys.modules.update(dict.fromkeys({heavy}))\n"
    )
    atommem: list[str | Path] = [python.with_name("atommem")]
    run([*atommem, "data", "synthetic", "--n", "2", "--out", "core.jsonl"], folder)
    run([*atommem, "data", "show", "core.jsonl"], folder)
    for command in (
        "configs",
        "demo --help",
        "train --help",
        "trace --help",
        "compare --help",
        "report --help",
    ):
        run([*atommem, *command.split()], folder)
    for command, package in (("train --config smollm2_cpu", "trl"), ("demo --quick", "torch")):
        with pytest.raises(
            AssertionError, match=rf"needs the package {package}: pip install 'atommem\[train\]'"
        ):
            run([*atommem, *command.split()], folder)


def test_an_editable_install_follows_the_links(
    checkout: Path, folder: Path, tmp_path: Path
) -> None:
    python = environment(tmp_path, "--editable", checkout)
    code = "import atommem.train.train_cli as ours; print(ours.__file__)"
    assert (
        Path(run([python, "-c", code], folder).strip()) == checkout / "atommem/train/train_cli.py"
    )
    run([python.with_name("atommem"), "train", "--help"], folder)
    (checkout / "train" / "added_later.py").write_text("print('seen')\n")
    assert run([python, "-c", "import atommem.train.added_later"], folder) == "seen\n"
