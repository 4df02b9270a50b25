"""Is the synthetic world as easy to remember in other languages as in English?

    python scripts/bench_languages.py --tasks 200

With the hashing embedder. `recall`: the share of homes whose sentence is among the K statements of
the task nearest to the question for them. `em`: exact match of the scripted expert, which answers
from what the memory shows.

The bar: nothing is more than 2 points below English.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
from common import last_line, make_agent, read_options

from atommem.dialects import get_dialect
from atommem.embedding.embedder import HashingEmbedder
from atommem.envs.synthetic.expert import Expert, ExpertPolicy
from atommem.envs.synthetic.prose import PROSES, get_prose
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task import Task
from atommem.rollout import EpisodeRunner
from atommem.tokens import ApproximateTokenizer

BAR = 0.02


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


def main() -> int:
    flags = read_options(__doc__, tasks=(200, 4), k=3)
    found: dict[str, dict[str, float]] = {}
    for prose in [name for name in PROSES if name != "compact"]:
        tasks = list(generate(WorldConfig(prose=prose, distractors=12), flags.tasks, 5))
        found[prose] = {
            "recall": asyncio.run(recall(tasks, flags.k)),
            "em": asyncio.run(exact_match(prose, tasks)),
        }
        print(prose, *(f"{name} {value:.3f}" for name, value in found[prose].items()), flush=True)
    english = found["plain"]
    holds = all(row[name] > english[name] - BAR for row in found.values() for name in english)
    return last_line({"tasks": flags.tasks, "k": flags.k, **found, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
