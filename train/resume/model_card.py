"""The README.md of a trained model: what it is, how it was trained, and how to evaluate and serve it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from atommem.config import load_config

UNKNOWN = "unknown"
_SHOWN = (
    *(
        "learning_rate",
        "lr_scheduler_type",
        "per_device_train_batch_size",
        "world_size",
        "num_generations",
    ),
    *(
        "normalization",
        "scale_rewards",
        "beta",
        "epsilon",
        "epsilon_high",
        "temperature",
        "max_completion_length",
    ),
    *("max_staleness", "min_reward", "bf16", "use_vllm", "seed"),
)
_METRICS = ("reward", "em", "f1", "loss", "entropy", "kl", "mean_token_accuracy")
_ENDS = 10
"""Most updates that the first and the last figures of a table are means of."""


def training_facts(trainer: Any) -> dict[str, Any]:
    """The settings of a run as JSON values, and what a card and a later process need beside them."""
    return json.loads(trainer.args.to_json_string()) | {
        "world_size": trainer.args.world_size,
        "base_model": getattr(trainer.model.config, "_name_or_path", ""),
        "tags": list(trainer._tag_names),
    }


def save_model_card(
    folder: Path,
    facts: Mapping[str, Any],
    state: Mapping[str, Any],
    license_id: str = UNKNOWN,
    name: str = "",
) -> None:
    """Write the card of the model in `folder`; names of local files stand in it without their folders.

    Args:
        folder: The model's.
        facts: From `training_facts`.
        state: ``log_history``, ``global_step`` and ``max_steps`` of the trainer's state.
        license_id: The model's licence, as the hub names it.
        name: The model's; unset is its folder's.
    """
    base = str(facts.get("base_model") or "")
    local = Path(base).is_dir() or Path(base).is_absolute()
    adapter = (folder / "adapter_config.json").is_file()
    data = ModelCardData(
        license=license_id,
        base_model=None if local else base or None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=facts.get("tags"),
    )
    base = Path(base).name if local else base
    text = _text(name or folder.name, base, adapter, facts, state, load_config(folder), license_id)
    ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}").save(folder / "README.md")


def _text(
    name: str,
    base: str,
    adapter: bool,
    args: Mapping[str, Any],
    state: Mapping[str, Any],
    settings: Mapping[str, Any],
    license_id: str,
) -> str:
    history = state["log_history"]
    files = {key: Path(args[key]).name for key in ("data", "eval_data") if args.get(key)}
    serve = (
        f"vllm serve {base or 'BASE'} --enable-lora --lora-modules policy={name}"
        if adapter
        else f"vllm serve {name} --served-model-name policy --enable-prefix-caching"
    )
    origin = (
        f"{'A LoRA adapter of' if adapter else 'Trained from'} `{base}`"
        if base
        else "A model of its own, trained"
    )
    updates = f"{state['global_step']:,} of {state['max_steps']:,} updates"
    return f"""# {name}

{origin} with `atommem train`: a policy that reads what does not
fit its context step by step and manages a memory of its own (arXiv 2601.08323). Licence: {license_id}.

## How to use it
It was trained on the prompts that AtomMem makes from `atommem_config.json`, which is read from this folder (`{name}`
is its path, as seen from the folder that it lies in, or its name on the hub):

    atommem eval --policy {name} --data TASKS --out runs/eval

or served, as a memory behind OpenAI's API, or by vLLM (this folder still tells tokenizer and settings):

    atommem serve --policy {name}
    {serve}
    atommem eval --policy http://localhost:8000 --model policy --tokenizer {name} --data TASKS --out runs/eval

It is meant for texts like those that it was trained on, in chunks of the same size, with the same embedder and
capacity; elsewhere, evaluate it first. It may answer wrongly, and keeps what it reads, true or not.

## Data
{_table(("", "file"), files.items()) if files else "Not recorded."}

## Metrics of the run
{updates}; means of its first and last logged updates (up to {_ENDS}), while training:

{_table(("", "first", "last"), _ends(history))}

{_evaluation(history)}

## Settings
{_table(("training", ""), [(key, args[key]) for key in _SHOWN if args.get(key) is not None])}

{_table(("memory and environment", ""), sorted((key, json.dumps(value)) for key, value in settings.items()))}

## Cite
"AtomMem: Learnable Dynamic Agentic Memory with Atomic Memory Operation", arXiv 2601.08323; and the model that it was
trained from.

{_made_with(args)}
"""


def _made_with(facts: Mapping[str, Any]) -> str:
    made = [
        f"{package} {version(package)}" for package in ("atommem", "trl", "transformers", "torch")
    ]
    return ", ".join([*made, f"git {facts['git_commit']}"] if facts.get("git_commit") else made)


def _ends(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    rows = []
    for name in _METRICS:
        values = [entry[name] for entry in history if name in entry]
        if values:
            count = max(1, min(_ENDS, len(values) // 2))
            first, last = values[:count], values[-count:]
            rows.append((name, f"{sum(first) / len(first):.4g}", f"{sum(last) / len(last):.4g}"))
    return rows


def _evaluation(history: Sequence[Mapping[str, Any]]) -> str:
    last = next((entry for entry in reversed(history) if "eval_em" in entry), None)
    if last is None:
        return "No held-out evaluation was part of the run."
    figures = [
        (name, _with_interval(last, name))
        for name in ("eval_em", "eval_f1", "eval_n")
        if name in last
    ]
    return f"Held-out tasks, after update {last['step']}:\n\n{_table(('', ''), figures)}"


def _with_interval(entry: Mapping[str, Any], name: str) -> str:
    low, high = entry.get(f"{name}_low"), entry.get(f"{name}_high")
    return f"{entry[name]:.4g}" + (
        "" if low is None or high is None else f" (95%: {low:.4g} to {high:.4g})"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in lines
    )
