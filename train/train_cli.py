"""``atommem train``: cold start and GRPO from YAML files and flags."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from atommem.command_line import CommandParser
from atommem.errors import ConfigError
from atommem.policy.opening import model_folder
from atommem.shipped import with_config_path

_RESUME = ["--resume_from_checkpoint", "auto"]
USAGE = """usage: atommem train [grpo|sft|async] [--config FILE|NAME] [--FIELD VALUE ...]

stages:
  grpo   reinforcement learning on a task file (the default)
  sft    cold start: supervised fine-tuning on traces
  async  as grpo, but episodes are sampled while the trainer steps
of a run:
  plot RUN     scores, action rates and store size over training (RUN: its output folder)

`atommem configs` lists the names of recipes. A flag wins over the YAML file, that over the atommem_config.json
of the model folder (a cold-started model keeps its memory settings), that over the defaults. --resume continues
from the last checkpoint in --output_dir, if there is one. --dry_run checks every setting and estimates memory and
hours, without weights or GPU. `atommem train STAGE --help` lists our settings, --help-all TRL's too.

exit status: 0 done; 75 stopped by SIGTERM, SIGUSR1 or Ctrl-C, --resume continues; 2 a setting is wrong, or the
run cannot go on (the message says why and where its data is)."""


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``atommem train``.

    Raises:
        AtomMemError: A setting or a file is wrong.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in (["-h"], ["--help"]) or not argv:
        print(USAGE)
        return 0 if argv else 2
    stage, arguments = (argv[0], argv[1:]) if not argv[0].startswith("-") else ("grpo", argv)
    if stage == "plot":
        from atommem.train.logs.plot import main as plot

        return plot(arguments)
    from atommem.train.settings import STAGES

    if stage not in STAGES:
        raise ConfigError(
            f"unknown stage {stage!r}: give one of {', '.join(STAGES)} (see atommem train --help)."
        )
    arguments = with_config_path(arguments, "train")
    _check_model(arguments)
    if _dry_run(stage, arguments):
        return 0
    # One word for what a requeued job wants, in a form that a YAML file can say as well.
    arguments = [part for item in arguments for part in (_RESUME if item == "--resume" else [item])]
    from atommem.train.errors import TrainingInterrupted
    from atommem.train.stop_request import EXIT_INTERRUPTED

    try:
        _run(stage, arguments)
    except TrainingInterrupted as interrupted:
        print(f"atommem train: {interrupted}", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def _check_model(arguments: Sequence[str]) -> None:
    """The commonest mistake, a path where no model lies, is told before the seconds that TRL takes to be imported."""
    finder = CommandParser(add_help=False)
    finder.add_argument("--model_name_or_path", nargs="?")
    named = finder.parse_known_args(list(arguments))[0].model_name_or_path
    if named is not None and not {"-h", "--help", "--help-all", "--dry_run"} & set(arguments):
        model_folder("model_name_or_path", named)


def _run(stage: str, arguments: Sequence[str]) -> None:
    from atommem.train.settings import parse

    settings = parse(stage, arguments)
    from atommem.train import stages

    runs = {"sft": stages.run_sft, "async": stages.run_async, "grpo": stages.run_grpo}
    runs[stage](settings)


def _dry_run(stage: str, argv: Sequence[str]) -> bool:
    """Make, print and write a plan of the run if ``--dry_run`` asks for it."""
    from atommem.train.dry_run_config import dry_run_settings

    settings = dry_run_settings(argv)
    if not settings.dry_run:
        return False
    from atommem.train.dry_run.plan import make_plan, print_plan, write_plan

    plan = make_plan(stage, argv, settings)
    if plan is None:
        print("all settings are valid; a cold start is not estimated.")
        return True
    print_plan(plan)
    if settings.dry_run_json:
        write_plan(plan, settings.dry_run_json)
    return True


if __name__ == "__main__":
    raise SystemExit(main())
