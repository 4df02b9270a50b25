"""Is the synthetic world as easy to remember in other languages as in English?

    python scripts/bench_languages.py --tasks 200 [--policy]

With the hashing embedder. `recall`: the share of homes whose sentence is among the K statements of
the task nearest to the question for them. `em`: exact match of the scripted expert, which answers
from what the memory shows. With --policy (minutes a language) also `policy_em`: of the demo's
language model after a cold start on the expert's episodes, on 300 held-out tasks.

The bar: nothing is more than 2 points below English.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import last_line, make_agent, read_options
from rich.console import Console

from atommem.demo.recipe import FULL, quick, world_words
from atommem.demo.run import Demo
from atommem.demo.tiny_policy import EOS, PAD, UNK, make_model, prompt_words
from atommem.dialects import get_dialect
from atommem.embedding.embedder import HashingEmbedder
from atommem.envs.synthetic.expert import Expert, ExpertPolicy, Faults
from atommem.envs.synthetic.prose import PROSES, get_prose
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task import Task
from atommem.rollout import EpisodeRunner
from atommem.tokens import ApproximateTokenizer
from atommem.words import UNSPACED

BAR = 0.02
LANGUAGES = [name for name in PROSES if name != "compact"]


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


def make_tokenizer(texts: Sequence[str]) -> Any:
    """Make a tokenizer of tags, words, signs, and characters of scripts without spaces."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Sequence as InOrder
    from tokenizers.pre_tokenizers import Split, WhitespaceSplit
    from tokenizers.trainers import WordLevelTrainer
    from transformers import PreTrainedTokenizerFast

    piece = rf"</?\w+>|\\boxed\{{|[{UNSPACED}]|[^\W{UNSPACED}]+|\S"
    tokenizer = Tokenizer(WordLevel(unk_token=UNK))
    tokenizer.pre_tokenizer = InOrder([WhitespaceSplit(), Split(Regex(piece), "isolated")])
    tokenizer.train_from_iterator(texts, WordLevelTrainer(special_tokens=[PAD, EOS, UNK]))
    special = {"pad_token": PAD, "eos_token": EOS, "unk_token": UNK}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special
    )


def policy_exact_match(prose: str, is_quick: bool) -> float:
    """Return the exact match of the demo's policy, from nothing, after a faultless cold start."""
    recipe = replace(
        FULL,
        world=replace(FULL.world, prose=prose),
        size=replace(FULL.size, max_positions=512),
        cold_start=replace(FULL.cold_start, faults=Faults()),
    )
    with tempfile.TemporaryDirectory() as folder:
        demo = Demo(quick(recipe) if is_quick else recipe, Path(folder), 0, Console(stderr=True))
        run, tasks = demo.settings.run, demo.tasks(1, 1000)
        texts = [document.text for task in tasks for document in task.documents]
        texts += prompt_words(run.environment, run.memory) + world_words(recipe.world, run.memory)
        demo.tokenizer = make_tokenizer(texts)
        demo.model = make_model(recipe.size, demo.tokenizer)
        demo.learn_to_copy()
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
