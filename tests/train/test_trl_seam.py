"""The names of trl, transformers and accelerate that no documentation promises, all of them."""

import ast
import importlib
import inspect
import itertools
import pkgutil
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import atommem.train
from atommem.files import load_beside

ROOT = Path(__file__).parents[2]
ROOMS = ("atommem", "envs", "train", "eval", "serve", "demo", "papers", "integrations")
LIBRARIES = ("trl", "transformers", "accelerate")
PUBLIC = (*LIBRARIES, "accelerate.utils")  # modules whose names without an underscore are public

NAMES = load_beside(__file__, "trl_seam.yaml")
SEAM, ELSEWHERE = {*NAMES["seam"]}, {*itertools.chain(*NAMES["elsewhere"])}
BY_NAME = ("getattr", "setattr", "hasattr", "patch.object")


def nodes(rooms: Iterable[str]) -> list[ast.AST]:
    files = (file for room in rooms for file in sorted((ROOT / room).rglob("*.py")))
    return [node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))]


def imported(tree: Iterable[ast.AST]) -> Iterator[str]:
    """Names imported from a module that is not public, unless a public one has them too."""
    for node in tree:
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
            yield from (m for m in modules if m.split(".")[0] in LIBRARIES and m not in PUBLIC)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            library = str(node.module).split(".")[0]
            public = [importlib.import_module(m) for m in PUBLIC if m.split(".")[0] == library]
            for alias in node.names:
                if alias.name[0] == "_" or not any(hasattr(m, alias.name) for m in public):
                    yield f"{node.module}.{alias.name}"


def used_names(tree: Iterable[ast.AST]) -> Iterator[str]:
    """Names that are read from something, or given to `getattr` and `patch.object`."""
    for node in tree:
        if isinstance(node, ast.Attribute):
            yield node.attr
        if isinstance(node, ast.Call) and len(node.args) > 1 and ast.unparse(node.func) in BY_NAME:
            yield ast.unparse(node.args[1]).strip("'")


def defined_names(tree: Iterable[ast.AST]) -> Iterator[str]:
    """Names of functions, classes, variables, and attributes of `self` that are set."""
    for node in tree:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        stored = isinstance(getattr(node, "ctx", None), ast.Store)
        if isinstance(node, ast.Name) and stored:
            yield node.id
        if isinstance(node, ast.Attribute) and stored and getattr(node.value, "id", "") == "self":
            yield node.attr


def inherited(package: ModuleType) -> set[str]:
    """Names of the libraries' classes that the package's classes inherit from."""
    modules = pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    found = (importlib.import_module(module.name) for module in modules)
    members = [inspect.getmembers(module, inspect.isclass) for module in found]
    kinds = {kind for listed in members for _, kind in listed if kind.__module__[:7] == "atommem"}
    bases = {base for kind in kinds for base in kind.__mro__}
    libraries = [base for base in bases if base.__module__.split(".")[0] in LIBRARIES]
    return {name for base in libraries for name in dir(base)}


@pytest.mark.slow
def test_private_names_of_the_libraries_are_few():
    train, whole = nodes(["train"]), nodes(ROOMS)
    seam = {*used_names(train), *defined_names(train)} & inherited(atommem.train)
    others = {*used_names(whole)} - {*defined_names(whole)}
    private = {name for name in seam | others if re.match(r"_[a-zA-Z]", name)}
    names = private | {*imported(whole)}
    # A module is counted if none of its names is.
    found = {name for name in names if not any(other.startswith(f"{name}.") for other in names)}
    assert found - ELSEWHERE == SEAM
    assert len(SEAM) <= 15
