"""Credit of parts of an episode, with the real trainer on episodes that a tiny model samples."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from atommem.train.loops import grpo_trainer
from atommem.train.rollout.collect import Collected
from tests.train.harness import assert_equal_gradients, reference_gradients
from tests.train.loops.test_end_to_end import make_element_tokenizer, make_real_trainer
from tests.train.toys import make_model

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "settings",
    [
        {"rerolls": 3},
        {"rerolls": 3, "compression_reward": 0.3},
        {"credit": "steps", "compression_reward": 0.3},
    ],
)
def test_the_gradient_is_that_of_what_was_collected(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Collected] = []

    def collect(*arguments: Any) -> Collected:
        seen.append(real(*arguments))
        return seen[-1]

    real = grpo_trainer.collect
    monkeypatch.setattr(grpo_trainer, "collect", collect)
    model = make_model(vocabulary=len(make_element_tokenizer()), spread=0.1)
    trainer, recorder = make_real_trainer(
        tmp_path, copy.deepcopy(model), max_grad_norm=0.0, **settings
    )
    try:
        trainer.train()
        (found,) = seen
        loss, expected, _ = reference_gradients(
            model, found.episodes, found.advantages, trainer.args.normalization
        )
        assert_equal_gradients(recorder.gradients[0], expected)
    finally:
        trainer.close()
    logged = trainer.state.log_history[0]
    assert logged["loss"] == pytest.approx(loss, abs=1e-5)
    if "rerolls" in settings:
        whole, tails = found.episodes[:8], found.episodes[8:]
        assert logged["rerolls/groups"] == 2
        assert len(tails) == 2 * (1 + 3)
        for own, *others in (tails[:4], tails[4:]):
            prompt = own.steps[0].prompt_ids
            assert any(prompt is step.prompt_ids for episode in whole for step in episode.steps[1:])
            assert [each.steps[0].prompt_ids for each in others] == [prompt] * 3
            assert [each.sample for each in others] == [4, 5, 6]
            assert len({tuple(each.steps[0].token_ids) for each in (own, *others)}) > 1
    if "credit" in settings:
        assert any(len(set(each)) > 1 for each in found.advantages if isinstance(each, list))
