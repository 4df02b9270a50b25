"""The importance ratio against the numbers of a small table."""

from __future__ import annotations

import math

import pytest
import torch

from atommem.train.objective.importance import importance_ratio

TRAINED = torch.tensor([[math.log(0.5), math.log(0.9), -7.0], [math.log(0.1), math.log(0.2), math.log(0.3)]])
SAMPLED = torch.tensor([[math.log(0.25), math.log(0.9), 0.0], [math.log(0.4), math.log(0.2), math.log(0.1)]])
MASK = torch.tensor([[True, True, False], [True, True, True]])


@pytest.mark.parametrize(
    ("mode", "low", "high", "expected"),
    [
        ("token_truncate", None, None, [[2.0, 1.0, 1.0], [0.25, 1.0, 3.0]]),
        ("token_truncate", 0.5, 2.5, [[2.0, 1.0, 1.0], [0.5, 1.0, 2.5]]),
        ("token_mask", 0.5, 2.5, [[2.0, 1.0, 1.0], [0.0, 1.0, 0.0]]),
        ("token_mask", None, 2.5, [[2.0, 1.0, 1.0], [0.25, 1.0, 0.0]]),
        ("sequence_truncate", None, 1.5, [[1.5], [0.75]]),
        ("sequence_mask", None, 1.5, [[0.0], [0.75]]),
    ],
)
def test_modes(mode: str, low: float | None, high: float | None, expected: list[list[float]]) -> None:
    ratio = importance_ratio(TRAINED, SAMPLED, MASK, mode, low, high)
    assert torch.allclose(ratio, torch.tensor(expected))
