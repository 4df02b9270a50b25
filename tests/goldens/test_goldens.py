"""The tree computes what `before-simplification` did, but for `differences.json`: see README.md."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.goldens import record

pytest.importorskip("torch")
SMOLLM2 = Path(os.environ.get("ATOMMEM_MODELS") or Path(__file__).parents[2] / ".cache") / "smollm2"


def check(found: record.Goldens, *rooms: str) -> None:
    """Compare with all goldens whose names begin with one of `rooms`."""
    texts = [f"{name}: {text[:600]}" for name, text in record.compare(found, rooms).items()]
    assert not texts, f"{len(texts)} goldens differ:\n" + "\n".join(texts[:20])


@pytest.mark.parametrize(
    ("compute", "rooms"),
    [
        (record.byte_prompts, ("prompts/bytes/", "prompt texts/")),
        pytest.param(
            record.operation_logs, ("operations/", "operations in full/"), marks=pytest.mark.slow
        ),
        (record.losses, ("loss/", "advantages/")),
        pytest.param(record.report, ("report/",), marks=pytest.mark.slow),
        (record.event_streams, ("events/",)),
        pytest.param(record.configurations, ("configs/",), marks=pytest.mark.slow),
        pytest.param(record.demo, ("demo/quick/0",), marks=pytest.mark.slow),
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


def test_differences_have_reasons_and_known_names() -> None:
    goldens, differences = record.read()
    assert all(
        item["reason"] and record.different(goldens.get(name), item["value"])
        for name, item in differences.items()
    )
