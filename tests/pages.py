"""Run the fenced blocks of documentation pages in order, in one folder and this process."""

import contextlib
import importlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any, Self

import pytest
import yaml

from atommem import cli, plugins
from atommem.servers.vllm_process import free_port
from scripts.common import started

ROOT = Path(__file__).parents[1]
SHORTER = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
ADDRESS = "127.0.0.1:8765"


def blocks(page: str, kind: str | None = None) -> list[tuple[str, str]]:
    """The fenced blocks of a file of the repository (of one kind), each with its kind."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for block in found if kind in (None, block[0])]


@contextlib.contextmanager
def printing() -> Iterator[io.StringIO]:
    """Keep what the block prints, and print it."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        yield printed
    print(printed.getvalue(), end="")


def run_python(code: str, names: dict[str, Any], page: str) -> str:
    """Run code of a page; return what it printed."""
    for long, short in SHORTER["code"].items():
        code = code.replace(long, short)
    with printing() as printed:
        exec(compile(code, page, "exec"), names)
    return printed.getvalue()


def save_tiny_model() -> None:
    """Write the folder ``model``: a language model of a few thousand weights."""
    import torch

    from atommem.config import MemoryConfig
    from atommem.demo.recipe import PolicySize
    from atommem.demo.tiny_policy import make_model, prompt_words, word_tokenizer
    from atommem.environment import environment_config

    words = prompt_words(environment_config("longdoc"), MemoryConfig())
    tokenizer = word_tokenizer([*words, "Ida Brook Tom Reed"])
    torch.manual_seed(0)
    model = make_model(PolicySize(width=32, layers=1, max_positions=8192), tokenizer)
    for each in (model, tokenizer):
        each.save_pretrained("model")


class Reader:
    """Follows pages in a folder.

    A ``bash`` block runs line by line, changed by `SHORTER`; a line that ends in ``&`` is a server
    until the page ends. A block that begins with the name of a file of the repository quotes it
    (``...`` for omitted lines); one that begins with another name is written to this file. Other
    Python blocks run; a ``text`` block is what the last one, or ``atommem ask``, prints.
    `base_model` is a folder of SmolLM2.
    """

    def __init__(self, folder: Path, base_model: str = "") -> None:
        self.folder = folder
        self._base_model = base_model
        self._packages = folder / "installed"
        self._packages.mkdir()
        self.known: dict[str, Any] = {}
        self._servers = contextlib.ExitStack()
        self.address = f"127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        self._known = set(sys.modules)
        self._patch = pytest.MonkeyPatch()
        self._patch.chdir(self.folder)
        self._patch.syspath_prepend(self.folder)
        self._patch.syspath_prepend(self._packages)
        return self

    def __exit__(self, *error: object) -> None:
        self._patch.undo()
        for name in set(sys.modules) - self._known:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(self.folder)):
                del sys.modules[name]

    def follow(self, page: str) -> dict[str, Any]:
        """Run all blocks of a page; return the names that its Python blocks defined."""
        names: dict[str, Any] = {"__name__": "reader"}
        with self._servers:
            for kind, block in blocks(page):
                self.do(kind, block, names, page)
        return names

    def do(self, kind: str, block: str, names: dict[str, Any], page: str) -> None:
        title = re.match(r"# (\S+\.\w+)\n", block)
        if title is not None and (ROOT / title[1]).is_file():
            text = (ROOT / title[1]).read_text(encoding="utf-8")
            for part in block[title.end() :].split("...\n"):
                assert part in text, f"{page}: this is not in {title[1]}: {part}"
        elif title is not None:
            (self.folder / title[1]).write_text(block, encoding="utf-8")
            importlib.invalidate_caches()
        elif kind == "bash":
            for line in block.replace("\\\n", "").splitlines():
                self.run(line)
        elif kind == "python":
            base = f'Memory("smollm2", base_model={self._base_model!r}'
            block = block.replace(ADDRESS, self.address).replace('Memory("smollm2"', base)
            self.printed = run_python(block, names, page)
        elif kind == "text":
            assert self.printed == block, page

    def run(self, line: str) -> None:
        for pattern, shorter in SHORTER["commands"].items():
            line = re.sub(pattern, shorter, line)
        if re.search(r"--policy smollm2|^atommem ask (?!.*--policy)", line):
            line = re.sub(r"( &)?$", rf" --base_model {self._base_model}\1", line, count=1)
        match shlex.split(line, comments=True):
            case []:
                return
            case ["atommem", *arguments, "&"]:
                self._serve([*arguments, "--port", self.address.rpartition(":")[2]])
            case ["atommem", "ask", *arguments]:
                with printing() as printed:
                    status = cli.main(["ask", *arguments])
                assert status in (0, 3), line  # a policy trained for a moment may have no answer
                self.printed = printed.getvalue()
            case ["atommem", *arguments]:
                assert cli.main(arguments) == 0, line
            case ["python", "-m", module, *arguments]:
                self._python(runpy.run_module, module, arguments)
            case ["python", file, *arguments]:
                self._python(runpy.run_path, file, arguments)
            case ["pip", "install", source]:
                self._install(source)
            case _:
                raise AssertionError(f"no test can run this line of a page: {line}")

    def _python(self, run: Any, what: str, arguments: list[str]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [what, *arguments])
            run(what, run_name="__main__")

    def _install(self, source: str) -> None:
        copied = self.folder / "sources" / Path(source).name
        copytree(ROOT / source, copied, ignore=ignore_patterns("__pycache__"))
        flags = ["-q", "--no-deps", "--no-build-isolation", "--no-index"]
        install = ["-m", "pip", "install", *flags, "--target", self._packages, copied]
        subprocess.run([sys.executable, *install], check=True)
        importlib.invalidate_caches()
        plugins._search.cache_clear()  # a new process would find it

    def _serve(self, arguments: list[str]) -> None:
        path = os.pathsep.join([str(self._packages), str(self.folder), str(ROOT)])
        command = [sys.executable, "-m", "atommem.cli", *arguments]
        url, log = f"http://{self.address}/v1/models", self.folder / "server.log"
        env = os.environ | {"PYTHONPATH": path}
        self._servers.enter_context(started(command, url, log, env=env))
