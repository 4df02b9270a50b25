"""Advantages, rows and the policy loss, by hand and against TRL's."""

import inspect
import random
import warnings
from collections import defaultdict
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from trl import GRPOTrainer

from atommem.errors import DataError
from atommem.train.loops.update_step import policy_loss as configured_loss
from atommem.train.objective.loss import CORRECTION, MASKED, PolicyLoss, correction
from atommem.train.objective.rows import (
    LOSS_TYPES,
    EpisodeSize,
    Row,
    Tokens,
    advantages_of_steps,
    episode_rows,
    gradient_shares,
    group_advantages,
    merge_equal_rows,
    normalizer,
    token_weight,
)
from tests.train.harness import make_config
from tests.train.toys import make_episode

CPU = torch.device("cpu")


def test_group_advantages_of_equal_rewards_are_exactly_zero():
    # The mean of three times 0.1 is not 0.1 in floating point.
    assert group_advantages([0.1, 0.1, 0.1, 0.1, None, None], 3, "group") == [0.0] * 6


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
@pytest.mark.parametrize("seed", range(10))
def test_group_advantages_are_rewards_minus_the_mean_of_the_group(seed, scale):
    rng = random.Random(seed)
    groups = [rng.choices([None, 0.0, 0.25, 1.0], k=4) for _ in range(seed)]
    rewards = np.array(groups, dtype=float).reshape(-1, 4)
    with warnings.catch_warnings(action="ignore"):  # of groups without a reward
        expected = rewards - np.nanmean(rewards, axis=1, keepdims=True)
        group = np.nanstd(rewards, axis=1, ddof=1, keepdims=True) + 1e-4
        over = {"none": 1.0, "group": group, "batch": np.nanstd(rewards, ddof=1) + 1e-4}
    advantages = group_advantages([reward for group in groups for reward in group], 4, scale)
    scaled = np.nan_to_num(expected / over[scale]).ravel().tolist()
    assert advantages == pytest.approx(scaled, abs=1e-9)


EPISODES = [
    make_episode("a", 0, 1.0, [(5, 3), (7, 1), (6, 0)]),
    make_episode("a", 1, 0.0, [(5, 2)]),
    make_episode("a", 2, None, [(5, 4)]),
    make_episode("b", 0, 1.0, [(4, 6), (4, 2)]),
]


def test_episode_size_omits_failed_episodes_and_empty_steps():
    sizes = [EpisodeSize.of(episode) for episode in EPISODES]
    assert sizes == [EpisodeSize(4, 2), EpisodeSize(2, 1), EpisodeSize(0, 0), EpisodeSize(8, 2)]
    with pytest.raises(DataError, match="task 'a': the reward nan is not finite"):
        EpisodeSize.of(replace(EPISODES[0], reward=float("nan")))


def test_merge_equal_rows_adds_up_weighted_advantages():
    rows = [
        Row([1, 2], [3], [-0.1], 0.75, 1.0),
        Row([1], [2, 3], [-0.1, -0.1], 0.5, 1.0),
        Row([1, 2], [3], [-0.1], -0.25, 3.0),
    ]
    first, second = merge_equal_rows(rows)
    assert (first.prompt_ids.tolist(), first.completion_ids.tolist()) == ([1, 2], [3])
    assert first.weight == 4.0
    assert first.weight * first.advantage == pytest.approx(0.75 * 1.0 - 0.25 * 3.0)
    assert second is rows[1]


SAMPLER = "vllm_importance_sampling"
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"beta": 0.001},
    "grpo, kl": {"loss_type": "grpo", "beta": 0.3, "use_bias_correction_kl": False},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "gspo, kl": {"importance_sampling_level": "sequence", "beta": 0.3, "delta": 1.6},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.1},
    "corrected, kl": {f"{SAMPLER}_mode": "sequence_mask", f"{SAMPLER}_clip_max": 3.0, "beta": 0.1},
}
LONGEST = 9  # length of every completion for dr_grpo


def random_rows(rng: random.Random, normalization: str) -> list[Row]:
    """One to five rows of 2 to 7 tokens (TRL reads a single column per sequence)."""
    rows = []
    for _ in range(rng.randint(1, 5)):
        logprobs = [-rng.uniform(0.1, 4) for _ in range(rng.randint(2, 7))]
        weight = token_weight(len(logprobs), EpisodeSize(len(logprobs), 1), normalization)
        rows.append(Row([1], [2] * len(logprobs), logprobs, rng.uniform(-1, 1), weight))
    return rows


def trl_loss(
    policy_loss: PolicyLoss,
    rows: list[Row],
    logps: torch.Tensor,
    old: torch.Tensor | None,
    ref: torch.Tensor,
    over: float,
) -> tuple[torch.Tensor, dict[str, float]]:
    """TRL's `_compute_loss` and what it logs, on a stand-in for its trainer: rows as a rectangle.

    `over` is the number of completion tokens in the global batch.
    """
    tokens, ones = Tokens.of(rows, CPU), torch.ones(len(rows), 1)
    mask = torch.arange(max(tokens.counts)) < torch.tensor(tokens.counts)[:, None]

    def rectangle(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(mask.shape, dtype=values.dtype).masked_scatter(mask, values)

    inputs = {
        **{"prompt_ids": ones, "prompt_mask": ones, "completion_ids": torch.ones(mask.shape)},
        "completion_mask": mask.float(),
        "advantages": torch.tensor([row.advantage for row in rows]),
        "num_items_in_batch": torch.tensor(over),
        "old_per_token_logps": None if old is None else rectangle(old),
        "ref_per_token_logps": rectangle(ref),
    }
    if mode := policy_loss.vllm_importance_sampling_mode:
        difference = (logps.detach() if old is None else old) - tokens.logprobs
        highest = policy_loss.vllm_importance_sampling_clip_max
        factor, _ = correction(difference, tokens.counts, mode, None, highest)
        inputs["importance_sampling_ratio"] = rectangle(factor)
    metrics: dict[str, dict[str, list[float]]] = {"train": defaultdict(list)}
    settings = asdict(policy_loss)
    alone = {"num_processes": 1, "reduce": lambda x, reduction: x, "gather": lambda x: x}
    found = rectangle(logps), rectangle(ref.abs()), None
    unused = ("aux_loss_enabled", "_entropy_bonus_enabled", "off_policy_mask_threshold")
    trainer = SimpleNamespace(
        **{**settings, **dict.fromkeys(unused), "top_entropy_quantile": 1.0},
        args=SimpleNamespace(**settings, steps_per_generation=1),
        accelerator=SimpleNamespace(**alone),
        model=SimpleNamespace(training=True),
        _get_per_token_logps_and_entropies=lambda *_, **__: found,
        **{"_metrics": metrics, "epsilon_low": policy_loss.epsilon, "use_vllm": mode is not None},
        **{"max_completion_length": LONGEST, "current_gradient_accumulation_steps": 1},
        vllm_importance_sampling_correction=True,
    )
    loss = inspect.unwrap(GRPOTrainer._compute_loss)(trainer, None, inputs)
    return loss, {name: value for name, (value,) in metrics["train"].items()}


@pytest.mark.parametrize("on_policy", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_policy_loss_equals_trl(variant, on_policy):
    policy_loss = PolicyLoss(**{"epsilon": 0.2, "epsilon_high": 0.28, **VARIANTS[variant]})
    normalization = LOSS_TYPES[policy_loss.loss_type]
    rng = random.Random(variant)
    torch.manual_seed(0)
    clipped = 0.0
    for _ in range(60):
        rows = random_rows(rng, normalization)
        tokens = Tokens.of(rows, CPU)
        logps = (tokens.logprobs + 0.2 * torch.randn_like(tokens.logprobs)).requires_grad_()
        old = None if on_policy else (tokens.logprobs + 0.1 * torch.randn_like(tokens.logprobs))
        ref = tokens.logprobs + 0.5 * torch.randn_like(tokens.logprobs)
        # The rest of the global batch: tokens of other ranks, where the loss counts tokens.
        others = [EpisodeSize(rng.randint(0, 9), 1)] if normalization == "token" else []
        sizes = others + [EpisodeSize(count, 1) for count in tokens.counts]
        total, log = policy_loss(logps, tokens, old, ref if policy_loss.beta else None)
        loss = total / normalizer(sizes, normalization, LONGEST)
        over = sum(size.tokens for size in sizes)
        expected, logged = trl_loss(policy_loss, rows, logps, old, ref, over)
        assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
        (got,), (wanted,) = torch.autograd.grad(loss, logps), torch.autograd.grad(expected, logps)
        assert float((got - wanted).abs().max()) <= 1e-6
        # TRL counts a sequence's ratio once, and tokens alike whatever they weigh.
        once = policy_loss.importance_sampling_level == "sequence"
        for name in set(log) - {"ratio", MASKED, CORRECTION}:
            values = log[name].float()
            if once and name != "kl":
                values = torch.stack([row.mean() for row in values.split(tokens.counts)])
            assert float(values.mean()) == pytest.approx(logged[name], abs=1e-6), name
        region = log.get("clip_ratio/region_mean", log.get("cispo_clip_ratio"))
        clipped += float(region.float().sum())
    assert (clipped == 0) is on_policy


UNEVEN = [
    make_episode("a", 0, 1.0, [(5, 2)]),
    make_episode("a", 1, 0.0, [(5, 2)]),
    make_episode("a", 2, 1.0, [(5, 2)] * 3),
    make_episode("a", 3, 0.0, [(5, 4)] * 7),
]


@pytest.mark.parametrize(
    ("normalization", "by_steps"),
    # The advantages are all +-1/2: 1, 1, 3 and 7 steps of 2, 2, 2 and 4 tokens.
    [("token", [2, 2, 6, 28]), ("step", [1, 1, 3, 7]), ("trajectory", [1, 1, 1, 1])],
)
def test_gradient_shares_add_up_the_weights_of_rows(normalization, by_steps):
    advantages = group_advantages([episode.reward for episode in UNEVEN], 4)
    sizes = [EpisodeSize.of(episode) for episode in UNEVEN]
    log = gradient_shares(sizes, advantages, normalization)
    rows = episode_rows(UNEVEN, advantages_of_steps(advantages, UNEVEN), normalization)
    weights = [abs(row.advantage) * row.weight * len(row.logprobs) for row in rows]
    of_episode = [sum(part) for part in np.split(weights, [1, 2, 5])]
    shares = [log[f"gradient_share/steps_q{q}"] for q in (1, 2, 3, 4)]
    assert shares == pytest.approx([n / sum(by_steps) for n in by_steps])
    assert shares == pytest.approx([w / sum(of_episode) for w in of_episode])
    above = (of_episode[0] + of_episode[2]) / sum(of_episode)
    assert log["gradient_share/above_mean"] == pytest.approx(above)
    # Two episodes of one step, of which one is above the mean, fill two quarters.
    assert [log[f"above_mean/steps_q{q}"] for q in (1, 2, 3, 4)] == pytest.approx([0.5, 0.5, 1, 0])


def test_default_correction_keeps_the_weight_of_long_rows():
    """Unbiased noise between engine and trainer (mean ratio 1), as others measured it."""
    loss = configured_loss(make_config("unused", use_vllm=True))
    generator = torch.Generator().manual_seed(0)
    rows = []
    for length in (100, 500, 2000, 4000):
        noise = 0.05 * torch.randn(length, generator=generator) - 0.05**2 / 2
        rows += [Row([1], [2] * length, -noise, 1.0, 1.0)]
    tokens = Tokens.of(rows, CPU)
    _, log = loss(torch.zeros(len(tokens.logprobs), requires_grad=True), tokens)
    means = [float(row.mean()) for row in log[CORRECTION].split(tokens.counts)]
    assert means == pytest.approx([1.0] * 4, abs=0.01)
