"""Episodes worth imitating -> rows of token ids."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.environment import EnvironmentConfig, make_environments
from atommem.episode import Episode, Step
from atommem.errors import ConfigError
from atommem.prompts import PromptBuilder
from atommem.trace import read_trace

Demonstration = tuple[list[int], list[int]]
"""Prompt ids and completion ids of one step."""

_NOT_TRACES = ("episodes.jsonl", "metrics.jsonl")


def demonstrations(episodes: Iterable[Episode], min_reward: float = 0.0) -> list[Demonstration]:
    """One row per step of the episodes that earned at least `min_reward`; failed ones earned nothing."""
    return [
        (step.prompt_ids, step.token_ids)
        for episode in episodes
        if episode.reward is not None and episode.reward >= min_reward
        for step in episode.steps
        if step.token_ids
    ]


def trace_demonstrations(
    path: str | Path,
    tokenizer: Any,
    memory: MemoryConfig,
    environment: EnvironmentConfig,
    min_reward: float,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> list[Demonstration]:
    """Rows from a trace file, or from all traces in a folder (an output folder of ``atommem eval`` will do).

    Prompts are built anew, as this run's policy will see them. A completion keeps its token ids when
    the policy that wrote it had the same tokenizer, and is encoded from its text otherwise.

    Args:
        path: The file or folder.
        tokenizer: The tokenizer of the model that will learn.
        memory: Its memory settings.
        environment: Whose tasks it learns.
        min_reward: Lowest reward of an episode to learn from.
        chat_template_kwargs: Arguments of its chat template.

    Raises:
        ConfigError: There are no traces, none earned enough, or they speak another dialect.
        TraceError: A file is not a trace.
    """
    dialect = get_dialect(memory.dialect, memory.templates)
    environments = make_environments(environment, tokenizer)
    builder = PromptBuilder.of(tokenizer, dialect, memory, environments, chat_template_kwargs)
    files = _trace_files(Path(path))
    rows: list[Demonstration] = []
    for file in files:
        trace = read_trace(file)
        reward = trace.episode.reward
        if not trace.complete or reward is None or reward < min_reward:
            continue
        written_in = trace.config.get("memory", {}).get("dialect", memory.dialect)
        if written_in != memory.dialect:
            raise ConfigError(
                f"{file} is written in the dialect {written_in!r}: it cannot teach {memory.dialect!r}."
            )
        for step in trace.episode.steps:
            completion = _completion_ids(step, tokenizer)
            if completion:
                rows.append((builder.build(step.observation, step.view), completion))
    if not rows:
        raise ConfigError(
            f"none of the {len(files)} traces in {path} has a reward of at least {min_reward:g}."
        )
    return rows


def _trace_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(file for file in path.rglob("*.jsonl") if file.name not in _NOT_TRACES)
    if not files:
        raise ConfigError(f"{path} is neither a trace nor a folder with traces (*.jsonl).")
    return files


def _completion_ids(step: Step, tokenizer: Any) -> list[int]:
    try:
        same_tokenizer = tokenizer.decode(step.token_ids, skip_special_tokens=True) == step.text
    except (IndexError, KeyError, TypeError, OverflowError):
        same_tokenizer = False  # ids that this tokenizer does not have
    if same_tokenizer:
        return step.token_ids
    end = [tokenizer.eos_token_id] if step.finish_reason == "stop" else []
    return [*tokenizer.encode(step.text, add_special_tokens=False), *end]
