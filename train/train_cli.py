"""``atommem train``: cold start and GRPO from YAML files and flags."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from atommem.arguments import Command, find_flag, run_command
from atommem.errors import ConfigError
from atommem.policy.opening import model_folder

STAGES = ("grpo", "sft", "async")
COMMANDS = {
    "plot": Command("atommem.train.plot:main", "draw scores and action rates"),
}
USAGE = """usage: atommem train [grpo|sft|async] [--config FILE|NAME] [--FIELD VALUE ...]

stages:
  grpo   reinforcement learning on a task file (the default)
  sft    cold start: supervised fine-tuning on traces
  async  GRPO that samples episodes while the trainer steps
of a run:
  plot RUN       draw scores, action rates and store size (RUN: output folder)

`atommem configs` lists the shipped recipes. Precedence: defaults < the model
folder's atommem_config.json < the YAML file < flags. --resume continues from the
last checkpoint in --output_dir, if there is one. --dry_run checks all settings
and estimates memory and hours, without weights or GPU. `atommem train STAGE
--help` shows our settings, --help-all also TRL's.

exit status: 0 done; 75 stopped by SIGTERM, SIGUSR1 or Ctrl-C (--resume
continues); 2 a setting is wrong or the run cannot continue."""


def main(argv: list[str] | None = None) -> int:
    """Run ``atommem train``.

    Raises:
        AtomMemError: A setting or a file is wrong.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in (["-h"], ["--help"]) or not argv:
        print(USAGE)
        return 0 if argv else 2
    stage, arguments = (argv[0], argv[1:]) if not argv[0].startswith("-") else ("grpo", argv)
    if stage in COMMANDS:
        return run_command("atommem train", COMMANDS, argv)
    if stage not in STAGES:
        raise ConfigError(f"{stage}: unknown stage. Give one of {', '.join(STAGES)}.")
    # The most frequent mistake is reported before TRL is imported, which takes seconds.
    model = find_flag(arguments, "model_name_or_path")
    if model and not {"-h", "--help", "--help-all", "--dry_run"} & set(arguments):
        model_folder("model_name_or_path", model)
    # `--resume` is short for a setting that a YAML file can hold.
    resume = ["--resume_from_checkpoint", "auto"]
    arguments = [part for item in arguments for part in (resume if item == "--resume" else [item])]
    from atommem.train.settings import parse, parse_dry_run

    dry_run = parse_dry_run(arguments)
    if dry_run.dry_run:
        return _dry_run(stage, arguments, dry_run)
    settings = parse(stage, arguments)
    from atommem.train.errors import TrainingInterrupted
    from atommem.train.stages import run_stage
    from atommem.train.stop_request import EXIT_INTERRUPTED

    try:
        run_stage(stage, settings)
    except TrainingInterrupted as interrupted:
        print(f"atommem train: {interrupted}", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def _dry_run(stage: str, arguments: Sequence[str], settings: Any) -> int:
    from atommem.train.dry_run.plan import make_plan, print_plan, write_plan

    plan = make_plan(stage, arguments, settings)
    if plan is None:
        print("all settings are valid; a cold start is not estimated.")
        return 0
    print_plan(plan)
    if settings.dry_run_json:
        write_plan(plan, settings.dry_run_json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
