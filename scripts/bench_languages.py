"""Is the synthetic world as easy to remember in other languages as in English?

    python scripts/bench_languages.py --tasks 200 [--policy]

With the hashing embedder. `recall`: the share of homes whose sentence is among the K statements of
the task nearest to the question for them. `em`: exact match of the scripted expert, which answers
from what the memory shows. With --policy (minutes a language) also `policy_em`: of the demo's
language model, on 300 held-out tasks, after a cold start on the expert's episodes. Before it the
model is pretrained on copying, and on reading: which of several names belongs to a subject, where
words stand between. A token is a tag, a name, a word, or a character of a script without spaces.

The bar: nothing is more than 2 points below English.
"""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from common import last_line, make_agent, read_options
from rich.console import Console

from atommem.demo.recipe import FULL, CopyingConfig, Sequences, quick, world_words
from atommem.demo.run import Demo
from atommem.demo.tiny_policy import EOS, PAD, UNK, make_model, pretrain_copying, prompt_words
from atommem.dialects import get_dialect
from atommem.embedding.embedder import HashingEmbedder
from atommem.envs.synthetic.expert import Expert, ExpertPolicy, Faults
from atommem.envs.synthetic.world import (
    KINDS,
    LINKS,
    MOST_NAMES,
    PROSES,
    Prose,
    Statement,
    WorldConfig,
    generate,
    get_prose,
)
from atommem.envs.task import Task
from atommem.rollout import EpisodeRunner
from atommem.tokens import ApproximateTokenizer
from atommem.words import UNSPACED

BAR = 0.02
LANGUAGES = [name for name in PROSES if name != "compact"]
CORRECTED = 0.3
READING = CopyingConfig(
    6000,
    (Sequences(2, batch_size=32, until=0.3), Sequences(4, batch_size=32, until=0.05)),
    100,
    learning_rate=1.5e-3,
)
"""Facts of each relation in a text: few, then more."""


async def recall(tasks: Sequence[Task], k: int) -> float:
    """Return the recall at `k` of the homes of each task among all of its statements."""
    embedder = HashingEmbedder(2048)
    found = []
    for task in tasks:
        prose = get_prose(task.metadata["prose"])
        said = [one for item in task.documents for one in prose.statements(item.text)]
        entries = await embedder.embed([prose.sentence(one) for one in said], "entry")
        homes = [place for place, one in enumerate(said) if one.relation == "home"]
        asked = [prose.question(said[place].subject, 1) for place in homes]
        order = np.argsort(-(await embedder.embed(asked, "query") @ entries.T), axis=1)[:, :k]
        found += [place in nearest for place, nearest in zip(homes, order, strict=True)]
    return float(np.mean(found))


async def exact_match(prose: str, tasks: Sequence[Task]) -> float:
    tokenizer = ApproximateTokenizer()
    policy = ExpertPolicy(Expert(get_prose(prose), get_dialect("paper")), tokenizer)
    agent = make_agent(policy, HashingEmbedder(2048), tokenizer, environment="longdoc")
    episodes = await EpisodeRunner(agent).run_all([(task, 0) for task in tasks])
    return float(np.mean([episode.metrics["em"] for episode in episodes]))


def make_tokenizer(prose: Prose, texts: Sequence[str]) -> Any:
    """Make a tokenizer of tags, names, words, signs, and characters of scripts without spaces."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Sequence as InOrder
    from tokenizers.pre_tokenizers import Split, WhitespaceSplit
    from tokenizers.trainers import WordLevelTrainer
    from transformers import PreTrainedTokenizerFast

    names = "|".join(name for kind in KINDS for name in prose.names_of(kind, MOST_NAMES))
    piece = rf"</?\w+>|\\boxed\{{|{names}|[{UNSPACED}]|[^\W{UNSPACED}]+|\S"
    tokenizer = Tokenizer(WordLevel(unk_token=UNK))
    tokenizer.pre_tokenizer = InOrder([WhitespaceSplit(), Split(Regex(piece), "isolated")])
    tokenizer.train_from_iterator(texts, WordLevelTrainer(special_tokens=[PAD, EOS, UNK]))
    special = {"pad_token": PAD, "eos_token": EOS, "unk_token": UNK}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special
    )


def reading_rows(
    prose: Prose, encode: Callable[[str], list[int]], _tokens: range, kind: Sequences, rng: Random
) -> tuple[list[list[int]], list[list[bool]]]:
    """Return a batch of sentences, then notes of them in another order, of which values count."""
    rows: list[list[tuple[int, bool]]] = []
    for _ in range(kind.batch_size):
        facts = []
        for relation, *kinds in LINKS[-2:]:
            drawn = (rng.sample(names_of(prose, name), kind.pieces) for name in kinds)
            facts += [Statement("fact", s, relation, v) for s, v in zip(*drawn, strict=True)]
        rows.append([])
        for fact in rng.sample(facts, len(facts)):
            moved = fact.relation == "home" and rng.random() < CORRECTED
            said = replace(fact, kind="correction") if moved else fact
            rows[-1] += [(token, False) for token in encode(prose.sentence(said, rng))]
        for fact in rng.sample(facts, len(facts)):
            value = encode(fact.value)
            rows[-1] += [(token, token in value) for token in encode(prose.sentence(fact))]
    longest = max(map(len, rows))
    padded = np.array([[*row, *[(0, False)] * (longest - len(row))] for row in rows])
    return padded[..., 0].tolist(), padded[..., 1].astype(bool).tolist()


@cache
def names_of(prose: Prose, kind: str) -> list[str]:
    return prose.names_of(kind, FULL.world.names)


def policy_exact_match(name: str, is_quick: bool) -> float:
    """Return the exact match of the demo's policy, from nothing, after a faultless cold start."""
    prose = get_prose(name)
    recipe = replace(
        FULL,
        world=replace(FULL.world, prose=name),
        size=replace(FULL.size, max_positions=512),
        cold_start=replace(FULL.cold_start, faults=Faults(), batch_size=32),
    )
    with tempfile.TemporaryDirectory() as folder:
        demo = Demo(quick(recipe) if is_quick else recipe, Path(folder), 0, Console(stderr=True))
        run, tasks = demo.settings.run, demo.tasks(5, 1000)
        texts = [f"{item.title} {item.text}" for task in tasks for item in task.documents]
        texts += [task.questions[0].text for task in tasks]
        texts += prompt_words(run.environment, run.memory) + world_words(recipe.world, run.memory)
        demo.tokenizer = make_tokenizer(prose, texts)
        demo.model = make_model(recipe.size, demo.tokenizer)
        demo.learn_to_copy()
        encode = cache(lambda text: demo.tokenizer(text).input_ids)
        reading = demo.recipe.copying if is_quick else READING
        pretrain_copying(demo.model, reading, 0, make_rows=partial(reading_rows, prose, encode))
        demo.cold_start()
        return demo.evaluate("before").em


def main() -> int:
    flags = read_options(__doc__, tasks=(200, 4), k=3, policy=False, languages=[*LANGUAGES])
    found: dict[str, dict[str, float]] = {}
    for prose in flags.languages:
        tasks = list(generate(WorldConfig(prose=prose, distractors=12), flags.tasks, 5))
        found[prose] = {
            "recall": asyncio.run(recall(tasks, flags.k)),
            "em": asyncio.run(exact_match(prose, tasks)),
        }
        if flags.policy:
            found[prose]["policy_em"] = policy_exact_match(prose, flags.quick)
        print(prose, *(f"{name} {value:.3f}" for name, value in found[prose].items()), flush=True)
    english = found[flags.languages[0]]
    holds = all(row[name] > english[name] - BAR for row in found.values() for name in english)
    return last_line({"tasks": flags.tasks, "k": flags.k, **found, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
