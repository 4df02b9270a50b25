"""What the benches run: a policy under settings by name, and a saved policy on the same tasks under several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atommem.config import load_config
from atommem.embedding.embedder import Embedder
from atommem.envs.scoring.records import EvalResult
from atommem.envs.task import Task
from atommem.episode_runner import EpisodeRunner
from atommem.eval.runner import evaluate
from atommem.run import Checkpoint, build_agent, make_run
from atommem.session import Agent


def make_agent(
    policy: Any,
    embedder: Embedder | None = None,
    tokenizer: Any = None,
    *,
    stored: Mapping[str, Any] | None = None,
    encode_threads: int = 0,
    keep_prompts: bool = False,
    **given: Any,
) -> Agent:
    """The agent of a policy, under `given` settings by name, as `atommem.open_memory` takes them.

    Args:
        policy: As of `Agent`, like `encode_threads` and `keep_prompts`.
        embedder: Unset: that of the settings.
        tokenizer: Unset: the policy's own.
        stored: The settings of a policy's folder; those that are given win.
    """
    checkpoint = Checkpoint.load(None, given.get("environment"), stored)
    options = {"encode_threads": encode_threads, "keep_prompts": keep_prompts}
    run = make_run(given, checkpoint)
    return build_agent(run, policy, tokenizer=tokenizer, embedder=embedder, **options)


async def evaluated(
    folder: Path, tasks: Sequence[Task], variants: Mapping[str, Mapping[str, Any]], **given: Any
) -> dict[str, EvalResult]:
    """The policy in `folder` on `tasks` under the settings of each of the `variants`, beside those `given` for all."""
    from atommem.policy.local import LocalPolicy

    policy = LocalPolicy.from_pretrained(folder)
    results = {}
    for name, changed in variants.items():
        agent = make_agent(policy, stored=load_config(folder), **given, **changed)
        results[name] = await evaluate(tasks, EpisodeRunner(agent), progress=False)
    await policy.close()
    return results
