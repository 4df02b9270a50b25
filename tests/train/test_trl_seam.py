"""The names of trl, transformers and accelerate that no documentation promises, all of them."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import atommem.train

ROOT = Path(__file__).parents[2]
ROOMS = ("atommem", "envs", "train", "eval", "serve", "demo", "papers")
LIBRARIES = ("trl", "transformers", "accelerate")
PUBLIC = ("trl", "transformers", "accelerate", "accelerate.utils")
"""Modules whose names without an underscore are public."""


def trees() -> Iterator[ast.Module]:
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            yield ast.parse(file.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    """Names imported from elsewhere than a public module that has them, and patched ones."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
            yield from (m for m in modules if m.split(".")[0] in LIBRARIES and m not in PUBLIC)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            assert node.module
            roots = [m for m in PUBLIC if m.split(".")[0] == node.module.split(".")[0]]
            for alias in node.names:
                public = any(hasattr(importlib.import_module(root), alias.name) for root in roots)
                if not public or alias.name.startswith("_"):
                    yield f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(rf"({'|'.join(LIBRARIES)})(\.\w+)+", node.value):
                yield node.value


def private_attributes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr):
            yield node.attr


def defined(tree: ast.Module) -> Iterator[str]:
    """Names that this module's functions, classes and assignments define."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr


def is_library(kind: type) -> bool:
    return kind.__module__.split(".")[0] in LIBRARIES


def overridden(package: ModuleType) -> Iterator[str]:
    """Private names of a library's class that a class of the package replaces."""
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if is_library(kind) or not any(map(is_library, kind.__mro__)):
                continue
            bases: list[Any] = [vars(base) for base in kind.__mro__ if is_library(base)]
            for name in vars(kind):
                if re.match(r"_[^_]", name) and any(name in base for base in bases):
                    yield name


def test_private_names_of_the_libraries_are_these() -> None:
    parsed = list(trees())
    replaced = set(overridden(atommem.train)) - {"_abc_impl"}
    own = {name for tree in parsed for name in defined(tree)} - replaced
    used = {name for tree in parsed for name in private_attributes(tree)} - own
    found = used | replaced | {name for tree in parsed for name in imported(tree)}
    print("\n".join(sorted(found)), len(found))
    assert 0
