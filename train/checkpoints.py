"""Checkpoint folders: written aside, renamed when complete, and checked before a run resumes.

All processes write to ``output_dir/.partial/checkpoint-N``, which gets a manifest of file sizes and
is renamed to ``output_dir/checkpoint-N`` when every file is there. A process that is killed leaves
complete checkpoints, and ``.partial``, which the next start removes.
"""

import json
import shutil
import time
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from accelerate import PartialState

from atommem.config import load_config
from atommem.errors import ConfigError
from atommem.files import let_others_read
from atommem.train.errors import CheckpointError

MANIFEST = "checkpoint_complete.json"
PARTIAL = ".partial"
SHARDED_MODEL = "pytorch_model_fsdp_0"  # FSDP's weights, for `accelerate merge-weights`

_MAY_CHANGE = """output_dir max_steps num_train_epochs resume_from_checkpoint save_* log* eval_*
    hub_* push_to_hub report_to run_name project trackio_* disable_tqdm load_best_model_at_end
    metric_for_best_model greater_is_better num_generations_eval max_failed_fraction data *_url
    atommem_version chat_format use_vllm vllm_[!i]* heartbeat_* *timeout episode_max_seconds
    base_model per_device_* gradient_* generation_batch_size token_budget max_batch_tokens
    rollout_batch_size max_inflight_tasks prefix_sharing use_cpu bf16* tf32 torch_* fsdp* ds3_*
    deepspeed ddp_* accelerator_config parallelism_config dataloader_* activation_offloading
    attn_implementation *num_proc skip_memory_metrics cache_* use_cache local_rank debug
    average_tokens_across_devices"""
"""Settings with which a run may be resumed: when it ends, what it writes, and where it computes."""


def name_of(update: Any) -> str:
    return f"checkpoint-{update}"  # as transformers names it


@dataclass(frozen=True)
class GenerationSettings:
    """How the policy was prompted, beyond memory and environment."""

    max_completion_length: int
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    chat_format: dict[str, Any] = field(default_factory=dict)


def lasting_settings(args: Any) -> dict[str, Any]:
    """Return the settings that a run keeps when it is resumed, as JSON has them."""
    size = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    found = {"episodes_per_update": size, **args.to_dict()}
    kept = {n: v for n, v in found.items() if not any(fnmatch(n, p) for p in _MAY_CHANGE.split())}
    return dict(json.loads(json.dumps(kept, default=str)))


def publish_checkpoint(partial: Path, output_dir: Path, args: Any) -> Path:
    """Add the manifest to a written checkpoint, and move it to `output_dir`; returns its path."""
    let_others_read(partial)
    files = [path for path in partial.rglob("*") if path.is_file()]
    manifest = {
        "saved_ns": time.time_ns(),
        "settings": lasting_settings(args),
        "files": {str(path.relative_to(partial)): path.stat().st_size for path in files},
    }
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    final = output_dir / partial.name
    remove_checkpoint(final)
    return partial.rename(final)


def remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint without ever leaving half of it under its name."""
    if folder.exists():
        removed = folder.parent / PARTIAL / f"removed-{folder.name}"
        removed.parent.mkdir(exist_ok=True)
        folder.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


def prune_checkpoints(output_dir: Path, limit: int | None, best: str | None = None) -> None:
    """Remove the oldest checkpoints beyond `limit`; the last and the best one stay."""
    folders = list_checkpoints(output_dir)
    excess = len(folders) - limit if limit else 0
    removable = [folder for folder in folders[:-1] if best is None or folder != Path(best)]
    for folder in removable[: max(excess, 0)]:
        remove_checkpoint(folder)


def find_damage(folder: Path) -> str | None:
    """Describe what is missing from a checkpoint; None if it is complete."""
    manifest = _read_manifest(folder)
    if not manifest:
        return f"it has no readable {MANIFEST}"
    for name, size in manifest["files"].items():
        path = folder / name
        found = path.stat().st_size if path.is_file() else -1
        if found != size:
            return f"{name} has {max(found, 0):,} of its {size:,} bytes"
    return None


def list_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the checkpoint folders of a run, damaged ones too, in the order they were saved."""
    # A copy under another name (checkpoint-40-good) must not be pruned.
    found = [f for f in Path(output_dir).glob(name_of("*")) if f.name.partition("-")[2].isdecimal()]
    return sorted(found, key=lambda f: _read_manifest(f).get("saved_ns", f.stat().st_mtime_ns))


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """Return the complete checkpoint that was saved last, or None."""
    return next((f for f in reversed(list_checkpoints(output_dir)) if not find_damage(f)), None)


def resume_hint(args: Any) -> str:
    """Return how a run that ended goes on."""
    if last := last_checkpoint(args.output_dir):
        return f"The same command with --resume continues from the last checkpoint, {last}."
    return "There is no checkpoint yet: the same command starts again."


def checkpoint_to_resume(args: Any) -> str | None:
    """Return the checkpoint to continue from, or None for a fresh start; all processes together.

    ``args.resume_from_checkpoint`` is a folder; ``auto`` (``--resume``) or ``true``: the last
    checkpoint in the output folder, if any; unset or ``false``: a fresh start. ConfigError if it
    was saved with other `lasting_settings`.
    """
    with PartialState().main_process_first():
        shutil.rmtree(Path(args.output_dir) / PARTIAL, ignore_errors=True)
    choice = str(args.resume_from_checkpoint or "false")
    folder = next(reversed(list_checkpoints(args.output_dir)), None)
    if choice.lower() == "false" and folder is not None:
        problem = f"it holds {folder.name} of an earlier run. Give --resume or another output_dir."
        raise ConfigError(f"output_dir={args.output_dir}: {problem}")
    if choice.lower() not in ("auto", "true", "false"):
        folder = Path(choice)
        if not folder.is_dir():
            raise ConfigError(f"resume_from_checkpoint={choice}: there is no such folder.")
    if folder is None:
        if any(Path(args.output_dir).glob("*.safetensors")):
            problem = "it holds a model, which would be replaced. Give another output_dir."
            raise ConfigError(f"output_dir={args.output_dir}: {problem}")
        return None
    if damage := find_damage(folder):
        fix = "restore it, or move it away to start from the first update"
        if good := last_checkpoint(folder.parent):
            fix = f"--resume_from_checkpoint {good} continues from a complete one"
        raise CheckpointError(f"{folder} is damaged: {damage}. Nothing was changed; {fix}.")
    before, now = load_config(folder) | _read_manifest(folder)["settings"], lasting_settings(args)
    if changed := [name for name in before if name in now and before[name] != now[name]]:
        raise ConfigError(
            f"{', '.join(f'{name}={now[name]!r} (was {before[name]!r})' for name in changed)}: "
            f"{folder} is of a run with other settings. Resume with the same, or start a new run "
            f"from it: --model_name_or_path {folder} and another output_dir."
        )
    return str(folder)
