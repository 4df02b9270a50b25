"""How one token is drawn, and its log-probability, against the definitions of temperature, top-k and top-p."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest

from atommem.policy.contract import Sampling
from atommem.policy.decoding import Row, _Settings, _uniforms

torch = pytest.importorskip("torch")
PROBS = [0.1, 0.4, 0.05, 0.25, 0.2]


def shares(sampling: Sampling, draws: int = 4000) -> list[float]:
    """How often each token comes up when the uniform numbers are spread evenly over [0, 1).

    What `draw` says of its probability has to be that share; at temperature 0, the model's own.
    """
    settings = _Settings.of([Row([1], sampling)] * draws, torch.device("cpu"))
    logprobs = torch.tensor(PROBS).log().expand(draws, -1)
    uniforms = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    # Logits are known up to a constant.
    token_ids, chosen = settings.draw(logprobs + 3.0, uniforms)
    counts = Counter(token_ids.tolist())
    for token_id, logprob in zip(token_ids.tolist(), chosen.tolist(), strict=True):
        expected = counts[token_id] / draws if sampling.temperature else PROBS[token_id]
        assert math.exp(logprob) == pytest.approx(expected, abs=1e-3)
    return [counts[token_id] / draws for token_id in range(len(PROBS))]


def normalised(weights: Sequence[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=1.0), PROBS),
        (Sampling(temperature=0.5), normalised([p**2 for p in PROBS])),
        (Sampling(temperature=0), [0, 1, 0, 0, 0]),
        (Sampling(temperature=1.0, top_k=2), normalised([0, 0.4, 0, 0.25, 0])),
        (Sampling(temperature=1.0, top_k=1), [0, 1, 0, 0, 0]),
        (Sampling(temperature=1.0, top_k=99), PROBS),
        # 0.4 and 0.25 are below 0.7 together; the token that crosses it stays.
        (Sampling(temperature=1.0, top_p=0.7), normalised([0, 0.4, 0, 0.25, 0.2])),
        (Sampling(temperature=1.0, top_p=0.01), [0, 1, 0, 0, 0]),
        # Top-p counts the mass that top-k left: 0.4 / 0.65 is already above 0.6.
        (Sampling(temperature=1.0, top_k=2, top_p=0.6), [0, 1, 0, 0, 0]),
    ],
)
def test_shares_are_those_of_the_definition(sampling: Sampling, expected: list[float]) -> None:
    assert shares(sampling) == pytest.approx(expected, abs=1e-3)


def test_rows_of_one_batch_keep_their_own_settings() -> None:
    rows = [
        Row([1], s) for s in (Sampling(temperature=0), Sampling(temperature=1.0), Sampling(temperature=1.0, top_k=3))
    ]
    settings = _Settings.of(rows, torch.device("cpu"))
    logprobs = torch.tensor(PROBS).log().expand(3, -1)
    uniforms = torch.full((3,), 1 - 1e-9, dtype=torch.float64)
    # Both draw in the order of the vocabulary, whether or not the tail is cut.
    drawn, chosen = settings.draw(logprobs, 1 - uniforms)
    assert drawn.tolist()[1:] == [4, 4]
    assert chosen.exp().tolist() == pytest.approx([0.4, 0.2, 0.2 / 0.85])
    assert settings.select(torch.tensor([0, 2])).draw(logprobs[:2], uniforms[:2])[0].tolist() == [1, 1]


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_a_token_of_probability_zero_is_never_drawn(uniform: float) -> None:
    logprobs = torch.tensor([[0.0, 0.5, 0.5, 0.0]]).log()
    for sampling in (Sampling(temperature=1.0), Sampling(temperature=1.0, top_p=0.99)):
        settings = _Settings.of([Row([1], sampling)], torch.device("cpu"))
        assert settings.draw(logprobs, torch.tensor([uniform], dtype=torch.float64))[0].item() in (1, 2)


def test_streams_depend_on_nothing_but_the_seed() -> None:
    def rows(*seeds: int | None) -> list[Row]:
        return [Row([1], Sampling(max_tokens=5, seed=seed)) for seed in seeds]

    a, b = _uniforms(rows(3, 4))
    assert (_uniforms(rows(4, 3))[::-1] == [a, b]).all()
    assert (a != b).any()
    assert (_uniforms(rows(None))[0] != _uniforms(rows(None))[0]).any()
    assert _uniforms(rows(-1)).shape == (1, 5)
    longer = _uniforms([Row([1], Sampling(max_tokens=9, seed=3))])[0]
    assert (longer[:5] == a).all()
