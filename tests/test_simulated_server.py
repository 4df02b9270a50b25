"""The server that the evaluation benches measure against: what it writes, how many it works on, what it notes."""

from __future__ import annotations

import asyncio
import io
import time
from typing import Any

import pytest

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.memory.entries import MemoryView, Retrieved
from atommem.policy.contract import Sampling
from atommem.policy.server import ServerPolicy
from atommem.prompts import PromptBuilder
from tests.fakes import WordTokenizer, answering, load_script, longdoc, reading

pytest.importorskip("tokenizers")


server = load_script("simulated_server")
DIALECT = get_dialect("paper", "full")
GRAMMAR = DIALECT.grammar()
PROMPTS = PromptBuilder.of(WordTokenizer(), DIALECT, MemoryConfig(), longdoc(WordTokenizer()))


def test_it_reads_and_answers_as_a_policy_does() -> None:
    shown = PROMPTS.text(reading("Who?", chunk="Ann sings. Bob hums."), MemoryView())
    written = server.completion_of(shown)
    assert written == server.completion_of(shown)
    kinds = [action.kind for action in GRAMMAR.parse(written).actions]
    assert kinds == ["create", "scratchpad", "read"]
    view = MemoryView(retrieved=(Retrieved(1, 1, "Gerta sings.", 1.0),))
    prompt = PROMPTS.text(answering("Who?"), view)
    closing = GRAMMAR.parse(server.completion_of(prompt))
    assert [(action.kind, action.text) for action in closing.actions] == [("answer", "Gerta")]
    assert not closing.problems


async def test_it_works_on_so_many_at_a_time_and_notes_every_request() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    log = io.StringIO()
    listening = await server.serve(server.handler(server.Simulation(tokenizer, 0.1, 2), log), 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    prompt = tokenizer.encode("Question:\nWho?").ids

    class Decoder:
        def decode(self, ids: list[int], **settings: Any) -> str:
            return str(tokenizer.decode(ids))

    policy = ServerPolicy(url, tokenizer=Decoder(), max_in_flight=8)
    assert await policy.model_name() == "simulated"
    began = time.perf_counter()
    completions = await asyncio.gather(*(policy.complete(prompt, Sampling(0.0, seed=seed)) for seed in range(6)))
    assert time.perf_counter() - began >= 0.3  # six, two at a time, 0.1 s each
    assert all("\\boxed{nobody}" in completion.text for completion in completions)
    assert sorted(log.getvalue().split()) == ["0", "1", "2", "3", "4", "5"]
    await policy.close()
    listening.close()
    await asyncio.sleep(0.05)  # its connections end


@pytest.mark.slow
async def test_prepared_completions_differ_in_their_number_and_hold_every_action() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [*dict.fromkeys([*"0123456789", *server.PREPARED.split(), "x"])]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)} | {"[UNK]": len(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    simulation = server.PreparedSimulation(tokenizer, 0.0, 8)
    first, second = await simulation.complete([1]), await simulation.complete([1])
    changed = {place for place, (a, b) in enumerate(zip(first, second, strict=True)) if a != b}
    assert len(changed) == server.PREPARED.count("000000")
    parsed = GRAMMAR.parse(server.PREPARED)
    assert [str(action.kind) for action in parsed.actions] == ["create", "scratchpad", "read", "answer"]
    assert not parsed.problems
