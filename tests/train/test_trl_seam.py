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

import pytest

import atommem.train

ROOT = Path(__file__).parents[2]
ROOMS = ("atommem", "envs", "train", "eval", "serve", "demo", "papers", "integrations")
LIBRARIES = ("trl", "transformers", "accelerate")
PUBLIC = (*LIBRARIES, "accelerate.utils")
"""Modules whose names without an underscore are public."""

SEAM = {
    # Log-probabilities and entropies without whole logits, and what makes them fast on CPU.
    "trl.trainer.utils.add_fused_lm_head",
    "_CHUNKED_LOGPROB_CHUNK_SIZE",
    "_use_triton",
    # Under DeepSpeed: ZeRO-3's hooks around sampling, and a reference model.
    "trl.models.unwrap_model_for_generation",
    "trl.models.prepare_deepspeed",
    # Methods of Trainer around ours: checkpoints that are whole or absent, a norm that is finite.
    "_save_checkpoint",
    "_get_grad_norm",
    # Attention along tries.
    "_attn_implementation",
    "_supports_attention_backend",
    # An embedder that DeepSpeed leaves whole.
    "transformers.integrations.deepspeed",
    "_hf_deepspeed_config_weak_ref",
    # The revision of a model on the hub that was loaded.
    "_commit_hash",
    # A user's function as a tool, and why it cannot be one.
    "transformers.utils.chat_template_utils",
    # Services of `report_to` outside of Trainer.
    "transformers.integrations.get_reporting_integration_callbacks",
    # The launcher's file in the dry run.
    "accelerate.commands.config.config_args.load_config_from_file",
}
BY_NAME = ("getattr", "setattr", "hasattr", "patch.object")
ELSEWHERE = {
    *("_Converter", "_PARSER", "_actions", "_parse_and_convert", "_get_entity_infos", "_typehint"),
    *("_exit", "_replace", "_mapping", "_pool"),  # of os, namedtuple, SQLAlchemy, httpcore
    "_scaled_dot_product_flash_attention_for_cpu",  # of torch
    "_scaled_dot_product_flash_attention_for_cpu_backward",
}
"""Private names of other packages."""


def trees() -> Iterator[ast.Module]:
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.py")):
            yield ast.parse(file.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    """Names imported from a module that is not public, unless a public one has them too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
            yield from (m for m in modules if m.split(".")[0] in LIBRARIES and m not in PUBLIC)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            library = str(node.module).split(".")[0]
            public = [importlib.import_module(m) for m in PUBLIC if m.split(".")[0] == library]
            for alias in node.names:
                if alias.name[0] == "_" or not any(hasattr(m, alias.name) for m in public):
                    yield f"{node.module}.{alias.name}"


def private_names(tree: ast.AST) -> Iterator[str]:
    """Private names that are read from something, or given to `getattr` and `patch.object`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr):
            yield node.attr
        if isinstance(node, ast.Call) and len(node.args) > 1 and ast.unparse(node.func) in BY_NAME:
            name = ast.unparse(node.args[1]).strip("'")
            if re.match(r"_[a-z]", name):
                yield name


def defined_names(tree: ast.AST) -> Iterator[str]:
    """Names of functions, classes, variables, and attributes of `self` that are set."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        stored = isinstance(getattr(node, "ctx", None), ast.Store)
        if isinstance(node, ast.Name) and stored:
            yield node.id
        if isinstance(node, ast.Attribute) and stored and getattr(node.value, "id", "") == "self":
            yield node.attr


def is_library(kind: type) -> bool:
    return kind.__module__.split(".")[0] in LIBRARIES


def inherited(package: ModuleType) -> Iterator[str]:
    """Private names of a library's class that a class of the package replaces or uses."""
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            bases = [base for base in kind.__mro__ if is_library(base)]
            if not bases or is_library(kind) or kind.__module__ != module.name:
                continue
            ours = [base for base in kind.__mro__ if base.__module__.startswith("atommem.")]
            parsed = [ast.parse(inspect.cleandoc("\n" + inspect.getsource(base))) for base in ours]
            own = {name for tree in parsed for name in defined_names(tree)}
            theirs = {name for base in bases for name in dir(base)}
            used = {name for tree in parsed for name in private_names(tree)}
            yield from (name for name in (own | used) & theirs if re.match(r"_[^_]", name))


def found_names() -> set[str]:
    parsed = list(trees())
    seam = set(inherited(atommem.train)) - {"_abc_impl"}
    own = {name for tree in parsed for name in defined_names(tree)}
    used = {name for tree in parsed for name in private_names(tree)}
    names = seam | (used - own) | {name for tree in parsed for name in imported(tree)}
    # A module is counted if none of its names is.
    return {name for name in names if not any(other.startswith(f"{name}.") for other in names)}


@pytest.mark.slow
def test_private_names_of_the_libraries_are_few() -> None:
    found = found_names() - ELSEWHERE
    print(sorted(found - SEAM), sorted(SEAM - found))
    assert found == SEAM
    assert len(SEAM) <= 15
