"""Streams with scripted replies: what their authors' own code made of them (`bench_baselines --record`), and ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.eval.methods.same_replies import METHODS, digest, make_case, run

RECORDED: dict[str, list[str]] = json.loads(Path(__file__).with_name("authors.json").read_text())


@pytest.mark.parametrize("method", METHODS)
def test_prompts_show_and_stores_hold_what_the_authors_code_does(method: str) -> None:
    for seed, recorded in enumerate(RECORDED[method][:8]):  # mem0 deletes for the first time in the seventh
        assert digest(run(make_case(method, seed, 12))) == recorded, f"seed {seed}"


@pytest.mark.parametrize(
    ("method", "setting", "value"),
    [
        ("a_mem", "eval.methods.a_mem.NEIGHBOURS", 4),
        ("a_mem", "eval.methods.a_mem.NO_CONTEXT", "q0"),
        ("mem0", "eval.methods.mem0.SIMILAR", 2),
    ],
)
def test_another_method_is_found(method: str, setting: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"atommem.{setting}", value)
    assert [digest(run(make_case(method, seed, 12))) for seed in range(6)] != RECORDED[method][:6]
