"""What the evaluation tests share."""

import pytest

from atommem.eval import eval_config
from tests.eval.toys import ToyPolicy
from tests.fakes import WordTokenizer


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> ToyPolicy:
    toy = ToyPolicy(WordTokenizer())
    monkeypatch.setattr(eval_config, "open_policy", lambda config: toy)
    return toy
