"""The local policy against forward passes, generate, and the definitions of sampling."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atommem.policy import decoding
from atommem.policy.contract import Completion, Sampling
from atommem.policy.decoding import Row, draw, sampling_settings
from atommem.policy.local import LocalPolicy, evaluating
from tests.fakes import word_level

torch = pytest.importorskip("torch")
VOCABULARY = 50
PROMPTS = [[2 + (7 * i + 3 * j) % 48 for j in range(3 + i)] for i in range(8)]


def number_tokenizer(eos_token_id: int = 1) -> Any:
    """Token 7 is the word "7"."""
    tokenizer = word_level([*map(str, range(VOCABULARY)), "<eos>", "<pad>"])
    tokenizer.eos_token = str(eos_token_id)
    return tokenizer


@pytest.fixture(scope="module")
def model() -> Any:
    from tests.train.toys import make_model

    model = make_model(vocabulary=VOCABULARY, positions=64, spread=0.02)
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = None, 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6)  # far from uniform, so that a wrong token is also an unlikely one
    return model


@pytest.fixture(params=[{"cuda"}, {"cuda", "cpu"}], ids=["growing", "fixed"])
def policy(
    model: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> LocalPolicy:
    """With a cache that grows, and with one of its final size, which a GPU's graphs need."""
    monkeypatch.setattr(decoding, "GRAPHED", request.param)
    return LocalPolicy(model, number_tokenizer())


def complete_all(
    policy: LocalPolicy, samplings: Sequence[Sampling], prompts: Sequence[list[int]] = PROMPTS
) -> list[Completion]:
    async def run() -> list[Completion]:
        jobs = zip(prompts, samplings, strict=True)
        return await asyncio.gather(*(policy.complete(list(p), s) for p, s in jobs))

    return asyncio.run(run())


def assert_logprobs_of(
    model: Any,
    prompts: Sequence[list[int]],
    samplings: Sequence[Sampling],
    completions: Sequence[Completion],
) -> None:
    """Compare with one pass each, without cache, padding or batch."""
    for prompt, sampling, done in zip(prompts, samplings, completions, strict=True):
        assert len(done.token_ids) == len(done.logprobs) <= sampling.max_completion_length
        with evaluating(model), torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + done.token_ids])).logits[0]
        expected = (logits / sampling.temperature).log_softmax(-1)[len(prompt) - 1 : -1]
        chosen = expected.gather(1, torch.tensor(done.token_ids)[:, None])[:, 0]
        assert done.logprobs == pytest.approx(chosen.tolist(), abs=1e-4)


def test_logprobs_match_the_sampled_distribution(model, policy):
    samplings = [Sampling(0.5 + 0.25 * i, max_completion_length=4 + i, seed=i) for i in range(8)]
    assert_logprobs_of(model, PROMPTS, samplings, complete_all(policy, samplings))


def test_greedy_completions_equal_generate(model, policy):
    completions = complete_all(policy, [Sampling(temperature=0, max_completion_length=12)] * 8)
    settings = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": 1, "pad_token_id": 0}
    for prompt, done in zip(PROMPTS, completions, strict=True):
        with evaluating(model):
            ids = model.generate(torch.tensor([prompt]), **settings)
        assert done.token_ids == ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize(("most", "passes"), [(512, [30]), (24, [24, 25, 26, 27, 3])])
def test_similar_prompts_share_a_prefill(model, policy, monkeypatch, most, passes):
    monkeypatch.setitem(decoding.TRIE_TOKENS, "cpu", most)
    start = [2 + (5 * j) % 48 for j in range(20)]
    prompts = [[*start, *range(2, 4 + i)] for i in range(6)] + [[5, 6, 7]]
    samplings = [Sampling(temperature=1.0, max_completion_length=4, seed=i) for i in range(7)]
    computed = []

    def count(_: Any, __: Any, inputs: dict[str, Any]) -> None:
        computed.append(inputs["input_ids"].numel())

    handle = model.register_forward_pre_hook(count, with_kwargs=True)
    completions = complete_all(policy, samplings, prompts)
    handle.remove()
    assert computed[: len(passes)] == passes
    assert_logprobs_of(model, prompts, samplings, completions)


@pytest.mark.slow
def test_seeded_request_samples_the_same_in_any_batch(policy):
    samplings = [Sampling(1.0, max_completion_length=10, seed=100 + i) for i in range(8)]
    together = complete_all(policy, samplings)
    assert complete_all(policy, samplings) == together
    alone = [complete_all(policy, [s], [p])[0] for p, s in zip(PROMPTS, samplings, strict=True)]
    assert [c.token_ids for c in alone] == [c.token_ids for c in together]
    unseeded = [replace(sampling, seed=None) for sampling in samplings]
    assert complete_all(policy, unseeded) != complete_all(policy, unseeded)


def test_end_of_sequence_is_in_the_ids_and_not_in_the_text(model):
    def greedy(*most: int, eos: int = 1) -> list[Completion]:
        samplings = [Sampling(temperature=0, max_completion_length=count) for count in most]
        policy = LocalPolicy(model, number_tokenizer(eos))
        return complete_all(policy, samplings, [PROMPTS[0]] * len(most))

    path = greedy(8)[0].token_ids
    end = next(i for i in range(1, 8) if path[i] not in path[:i])
    stopped, cut = greedy(8, end, eos=path[end])
    assert (stopped.token_ids, stopped.finish_reason) == (path[: end + 1], "stop")
    assert len(stopped.logprobs) == end + 1
    assert stopped.text == " ".join(map(str, path[:end]))
    assert (cut.token_ids, cut.finish_reason) == (path[:end], "length")


def test_sampling_restores_the_training_mode(model, policy):
    model.train()
    model.model.layers[1].eval()
    seen = []
    handle = model.register_forward_hook(lambda module, *_: seen.append(module.training))
    before = [module.training for module in model.modules()]
    complete_all(policy, [Sampling(max_completion_length=2)], [PROMPTS[0]])
    handle.remove()
    assert set(seen) == {False}
    assert [module.training for module in model.modules()] == before


PROBS = [0.1, 0.4, 0.05, 0.25, 0.2]


def normalised(weights: Sequence[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


SHARES = [
    (Sampling(temperature=1.0), PROBS),
    (Sampling(temperature=0.5), normalised([p**2 for p in PROBS])),
    (Sampling(temperature=0), [0, 1, 0, 0, 0]),
    (Sampling(temperature=1.0, top_k=2), normalised([0, 0.4, 0, 0.25, 0])),
    # 0.4 and 0.25 are below 0.7 together; the token that crosses it stays.
    (Sampling(temperature=1.0, top_p=0.7), normalised([0, 0.4, 0, 0.25, 0.2])),
    # Top-p counts the mass that top-k left: 0.4 / 0.65 is already above 0.6.
    (Sampling(temperature=1.0, top_k=2, top_p=0.6), [0, 1, 0, 0, 0]),
]


def test_draw_shares_match_the_definition_for_every_row():
    """Spread the uniform numbers evenly over [0, 1): shares and log-probabilities are exact."""
    draws = 2000
    settings = sampling_settings([Row([1], row) for row, _ in SHARES]).repeat(draws, 1)
    uniforms = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    logits = torch.tensor(PROBS).log().expand(len(settings), -1) + 3.0  # known up to a constant
    drawn = draw(logits, uniforms.repeat_interleave(len(SHARES)), settings)
    token_ids, chosen = (values.view(draws, -1).T.tolist() for values in drawn)
    for (sampling, expected), ids, logprobs in zip(SHARES, token_ids, chosen, strict=True):
        assert ids == sorted(ids, reverse=True)
        shares = [ids.count(token_id) / draws for token_id in range(len(PROBS))]
        assert shares == pytest.approx(expected, abs=1e-3)
        own = expected if sampling.temperature else PROBS
        np.testing.assert_allclose(np.exp(logprobs), [own[token_id] for token_id in ids], atol=1e-3)
