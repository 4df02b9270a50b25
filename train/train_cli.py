"""``atommem train``: cold start and GRPO from YAML files and flags."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

from atommem.errors import ConfigError
from atommem.files import locked
from atommem.plugins import find, names

USAGE = """usage: atommem train [STAGE] [--config FILE|NAME] [--SETTING VALUE ...]
       atommem train plot RUN

stages:
  grpo   reinforcement learning on a task file (the default)
  sft    cold start: supervised fine-tuning on traces
  async  GRPO that samples episodes while the trainer steps
  tinker GRPO by LoRA on a server of the Tinker API (--base_url)
  plot   draw scores, action rates and store size of a run (its output folder)

`atommem configs` lists the shipped recipes. Precedence: defaults < the model
folder's atommem_config.json < the YAML file < flags. --resume continues from
the last checkpoint in --output_dir, if there is one. --dry_run checks all
settings and estimates memory and hours, without weights or GPU. `atommem train
STAGE --help` shows the common settings, --help-all every one, TRL's too.

exit status: 0 done; 75 stopped by SIGTERM, SIGUSR1 or Ctrl-C (--resume
continues); 2 a setting is wrong or the run cannot continue."""


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in (["-h"], ["--help"]) or not argv:
        print(USAGE)
        return 0 if argv else 2
    stage, arguments = (argv[0], argv[1:]) if not argv[0].startswith("-") else ("grpo", argv)
    if stage == "plot":
        from atommem.train.console import main as plot_main

        return plot_main(arguments)
    stages = names("atommem.stages")
    if stage not in stages:
        raise ConfigError(f"{stage}: unknown stage. Give one of {', '.join(stages)}.")
    # `--resume` is short for a setting that a YAML file can hold.
    resume = ["--resume_from_checkpoint", "auto"]
    arguments = [part for item in arguments for part in (resume if item == "--resume" else [item])]
    from atommem.train.settings import parse, parse_dry_run

    dry_run = parse_dry_run(arguments)
    if dry_run.dry_run:
        if stage not in ("grpo", "sft", "async"):
            raise ConfigError(f"dry_run=true: {stage} trains on a server. Leave it out.")
        from atommem.train.dry_run.plan import run_dry

        run_dry(stage, arguments, dry_run)
        return 0
    settings = parse(stage, arguments)
    from atommem.train.errors import TrainingInterrupted
    from atommem.train.stop_request import EXIT_INTERRUPTED

    first = os.environ.get("RANK", "0") == "0"  # of a launch; the others write below it
    try:
        with locked("output_dir", Path(settings.args.output_dir)) if first else nullcontext():
            find("atommem.stages", stage).run(settings)
    except TrainingInterrupted as interrupted:
        print(f"atommem train: {interrupted}", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
