"""The tree computes what `before-simplification` did, but for `differences.json`: see README.md."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.goldens import record
from tests.goldens.compare import LOSS_TOLERANCE, TOLERANCE, different

pytest.importorskip("torch")
GOLDENS, DIFFERENCES = record.read()
SMOLLM2 = Path(os.environ.get("ATOMMEM_MODELS") or Path(__file__).parents[2] / ".cache") / "smollm2"


def check(found: record.Goldens, *rooms: str) -> None:
    """Compare what was computed with all goldens whose names begin with one of `rooms`."""
    expected = {name: value for name, value in GOLDENS.items() if name.startswith(rooms)}
    expected |= {
        name: item["value"] for name, item in DIFFERENCES.items() if name.startswith(rooms)
    }
    found = json.loads(json.dumps(found))
    texts = []
    for name in sorted({*expected, *found}):
        tolerance = LOSS_TOLERANCE if name.startswith("loss/") else TOLERANCE
        if text := different(expected.get(name), found.get(name), tolerance):
            texts.append(f"{name}: {text[:600]}")
    assert not texts, f"{len(texts)} of {len(expected)} goldens differ:\n" + "\n".join(texts[:20])


@pytest.mark.parametrize(
    ("compute", "rooms"),
    [
        (record.byte_prompts, ("prompts/bytes/", "prompt texts/")),
        (record.operation_logs, ("operations/", "operations in full/")),
        (record.losses, ("loss/", "advantages/")),
        (record.report, ("report/",)),
        (record.event_streams, ("events/",)),
        pytest.param(record.configurations, ("configs/",), marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_goldens_are_unchanged(
    compute: Callable[[], record.Goldens], rooms: tuple[str, ...]
) -> None:
    check(compute(), *rooms)


@pytest.mark.slow
@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="needs python scripts/models.py smollm2")
def test_prompts_of_smollm2_are_unchanged() -> None:
    check(record.smollm2_prompts(SMOLLM2), "prompts/smollm2/")


@pytest.mark.slow
def test_scores_of_the_quick_demo_are_unchanged() -> None:
    check(record.demo(), "demo/quick/0")


def test_differences_have_reasons_and_known_names() -> None:
    assert all(
        item["reason"] and different(GOLDENS.get(name), item["value"])
        for name, item in DIFFERENCES.items()
    )
