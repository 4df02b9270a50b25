"""Branch rollouts and step credit, with the real trainer on episodes that a tiny model samples."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.train.harness import (
    assert_equal_gradients,
    make_element_tokenizer,
    make_real_trainer,
    reference_gradients,
)
from tests.train.toys import make_model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "settings",
    [
        {"rerolls": 3, "compression_reward": 0.3},
        {"credit": "steps", "compression_reward": 0.3},
    ],
)
def test_update_has_the_gradient_of_the_collected_episodes(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(vocabulary=len(make_element_tokenizer()), spread=0.1)
    trainer, recorder = make_real_trainer(
        tmp_path, copy.deepcopy(model), max_grad_norm=0.0, **settings
    )
    seen: list[Any] = []
    collect = trainer._collect
    monkeypatch.setattr(
        trainer, "_collect", lambda rollout: seen.append(collect(rollout)) or seen[0]
    )
    try:
        trainer.train()
        ((episodes, advantages, _),) = seen
        normalization = trainer.args.normalization
        loss, expected, _ = reference_gradients(model, episodes, advantages, normalization)
        assert_equal_gradients(recorder.gradients[0], expected)
    finally:
        trainer.close()
    logged = trainer.state.log_history[0]
    assert logged["loss"] == pytest.approx(loss, abs=1e-5)
    if "credit" in settings:
        assert any(len(set(by_step)) > 1 for by_step in advantages)
        return
    whole, tails = episodes[:8], episodes[8:]
    assert logged["rerolls/groups"] == 2
    assert len(tails) == 2 * (1 + 3)
    for own, *others in (tails[:4], tails[4:]):
        prompt = own.steps[0].prompt_ids
        assert any(prompt is step.prompt_ids for episode in whole for step in episode.steps[1:])
        assert [branch.steps[0].prompt_ids for branch in others] == [prompt] * 3
        assert [branch.sample for branch in others] == [4, 5, 6]
        assert len({tuple(branch.steps[0].token_ids) for branch in (own, *others)}) > 1
