"""The cold start: supervised fine-tuning on demonstrations, with TRL's `SFTTrainer`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

from datasets import Dataset
from trl import SFTTrainer

from atommem.actions import Parsed
from atommem.dialects import get_dialect
from atommem.environment import make_factory
from atommem.episode import Episode, Step
from atommem.errors import ConfigError, suggest_path
from atommem.grammar import Grammar
from atommem.policy.contract import completion_text
from atommem.prompts import PromptBuilder
from atommem.run import RunConfig
from atommem.text_safety import clean
from atommem.thinking import marks, thoughts_end
from atommem.trace import read_trace
from atommem.train.loops.models import tune_lm_head_for_cpu
from atommem.train.packing.micro_batch import IGNORED
from atommem.train.resumable_trainer import ResumableTrainer
from atommem.train.train_config import ColdStartConfig

Demonstration = tuple[list[int], list[int]]  # prompt ids and completion ids of one step

_NOT_TRACES = ("episodes.jsonl", "metrics.jsonl")


class ColdStartTrainer(ResumableTrainer, SFTTrainer):
    """TRL's SFTTrainer on token ids (`sft_dataset`), resumable."""

    def __init__(
        self, model: Any, args: ColdStartConfig, dataset: Dataset, tokenizer: Any, **kwargs: Any
    ) -> None:
        args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
        kwargs |= {"train_dataset": dataset, "processing_class": tokenizer}
        super().__init__(model=model, args=args, **kwargs)
        tune_lm_head_for_cpu(self.accelerator.device.type)


def sft_dataset(rows: Sequence[Demonstration], max_length: int | None = None) -> Dataset:
    """Make TRL's dataset of the rows' token ids, with the loss on completions only."""
    input_ids = [[*prompt, *completion] for prompt, completion in rows]
    longer = [len(ids) for ids in input_ids if max_length is not None and len(ids) > max_length]
    if longer:
        raise ConfigError(
            f"max_length={max_length}: {len(longer)} of {len(rows)} demonstrations are longer (up "
            f"to {max(longer)} tokens). Raise max_length, or lower chunk_tokens."
        )
    labels = [[IGNORED] * len(prompt) + list(completion) for prompt, completion in rows]
    return Dataset.from_dict({"input_ids": input_ids, "labels": labels})


def demonstrations(episodes: Iterable[Episode]) -> list[Demonstration]:
    """Make one row per step of the episodes that have a reward."""
    scored = (episode for episode in episodes if episode.reward is not None)
    steps = (step for episode in scored for step in episode.steps)
    return [(step.prompt_ids, step.token_ids) for step in steps if step.token_ids]


def trace_demonstrations(
    path: str | Path, tokenizer: Any, run: RunConfig, min_reward: float
) -> list[Demonstration]:
    """Make rows of a trace file, or of all traces in a folder (such as an ``atommem eval`` output).

    Prompts are built as this run's policy will see them. A completion keeps its token ids if this
    policy reads the same actions in them; otherwise its text is encoded, without thoughts that it
    would take for actions. ConfigError if it would read other actions then.
    """
    path = Path(path)
    files = [path] if path.is_file() else sorted(path.rglob("*.jsonl"))
    files = [file for file in files if file.name not in _NOT_TRACES]
    if not files:
        raise ConfigError(f"data={path}: no trace (*.jsonl) is there{suggest_path(path)}.")
    memory = run.memory
    dialect = get_dialect(memory.dialect, memory.templates)
    factory = make_factory(run.environment, tokenizer)
    builder = PromptBuilder.of(tokenizer, dialect, memory, factory, run.chat_template_kwargs)
    learner = _Learner(tokenizer, builder, dialect.grammar(factory.actions, factory.phases))
    rows: list[Demonstration] = []
    for file in files:
        trace = read_trace(file)
        reward = trace.episode.reward
        if not trace.complete or reward is None or reward < min_reward:
            continue
        written_in = trace.config.get("memory", {}).get("dialect", memory.dialect)
        if written_in != memory.dialect:
            raise ConfigError(
                f"dialect={memory.dialect}: {file} has the dialect {written_in!r}. Train on traces "
                "of the same dialect."
            )
        rows += [
            (builder.build(step.observation, step.view), learner.completion_ids(step, file))
            for step in trace.episode.steps
            if step.text or step.token_ids
        ]
    if not rows:
        raise ConfigError(
            f"data={path}: none of its {len(files)} traces (*.jsonl) has a reward of at least "
            f"min_reward={min_reward:g}."
        )
    return rows


class _Learner:
    """Puts completions of any policy into the form that one policy writes and reads."""

    def __init__(self, tokenizer: Any, builder: PromptBuilder, grammar: Grammar) -> None:
        self._tokenizer, self._grammar = tokenizer, grammar
        self._thinks, self._closing = builder.opens_thinking, builder.closing_thought
        lead, self._end = builder.chat.reply_frame()
        # Qwen3's template shows old replies behind an empty thought, which it does not ask for.
        is_thought = any(not mark.silent for mark in marks(lead))
        self._lead = "" if is_thought or not lead.strip() else lead

    def completion_ids(self, step: Step, file: Path) -> list[int]:
        """Return a step's completion as token ids in which this policy reads its actions."""
        stopped = step.finish_reason == "stop"
        try:
            same = completion_text(self._tokenizer, step.token_ids, stopped) == step.text
        except (IndexError, KeyError, TypeError, OverflowError):
            same = False  # ids outside of this tokenizer's vocabulary
        if same and self._reads(step.text, step):
            return step.token_ids
        text, after = step.text, thoughts_end(step.text)
        opening = next(marks(text), None)
        forms = [text, f"{self._closing}{text}"] if self._thinks else [text, text[after:].lstrip()]
        if self._thinks and opening and not opening.closing:
            forms[1:1] = [text[opening.end :], f"{self._closing}{text[after:].lstrip()}"]
        for form in forms:
            lead = "" if any(marks(form)) else self._lead
            token_ids = self._tokenizer.encode(lead + form, add_special_tokens=False)
            token_ids += [self._end] if stopped and self._end is not None else []
            written = completion_text(self._tokenizer, token_ids, stopped)
            if self._reads(form, step) and self._reads(written, step):
                return list(token_ids)
        raise ConfigError(
            f"data={file}: this model would read other actions in step {step.index} than its "
            "policy wrote. Use traces of a policy with the same tools, whose thoughts are marked."
        )

    def _reads(self, text: str, step: Step) -> bool:
        parsed = self._grammar.parse(clean(text), step.observation.phase, self._thinks)
        return _reading(parsed) == _reading(step)


def _reading(parsed: Parsed | Step) -> tuple[list[Any], list[str]]:
    """Return what is done, but for white space and forms of characters, and what is malformed."""
    actions = [
        (action.kind, " ".join(normalize("NFKC", action.text).split()), action.handle)
        for action in parsed.actions
    ]
    return actions, [problem.reason for problem in parsed.problems]
