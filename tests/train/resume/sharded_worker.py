"""Run by test_sharded.py: one rank of a run under FSDP2, as the launchers set it up, on CPU.

Usage: sharded_worker.py PART FOLDER, where PART is one of ``two``, ``one``, ``resume`` and ``full``
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

from peft import LoraConfig

from atommem.train.resume.checkpoint import save_final
from atommem.train.resume.faults import CheckpointError
from tests.train.harness import make_config, make_trainer
from tests.train.shipped.cpu_ranks import launch_as_fsdp2
from tests.train.toys import make_model, mixed_episode

ROOT = Path(__file__).parents[3]
FORMS = ("whole", "tied", "adapter")


def make(folder: Path, form: str, **settings: Any) -> Any:
    """A trainer of three updates of eight episodes, with a checkpoint after the second.

    Those of the form ``tied`` are all on one rollout, in the middle of which the checkpoint is.
    """
    defaults = {
        "num_iterations": 3 if form == "tied" else 1,
        "max_steps": 3,
        "save_strategy": "steps",
        "save_steps": 2,
        "learning_rate": 1e-3,
        "max_grad_norm": 1.0,
        "per_device_train_batch_size": 8 // int(os.environ.get("WORLD_SIZE", "1")),
    }
    model = make_model()
    if form == "tied":
        model.config.tie_word_embeddings = True
        model.tie_weights()
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"]) if form == "adapter" else None
    return make_trainer(model, make_config(folder, **{**defaults, **settings}), mixed_episode, peft_config=adapter)[0]


def run(folder: Path, form: str, checkpoint: Path | None = None) -> None:
    """Train, or go on from `checkpoint`, and save the model to `folder`."""
    trainer = make(folder, form)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    save_final(trainer, trainer.settings)


def fill_the_disk(folder: Path) -> None:
    """The second process can write no large file any more after the first update."""
    trainer = make(folder, "whole", save_steps=1)
    save = trainer._save_checkpoint

    def failing(*args: Any) -> None:
        if trainer.state.global_step == 2 and trainer.args.process_index == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, resource.RLIM_INFINITY))
        save(*args)

    trainer._save_checkpoint = failing
    try:
        trainer.train()
    except CheckpointError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        (folder / f"error-{trainer.args.process_index}.txt").write_text(str(error))


def main(part: str, folder: Path) -> None:
    """Do a part of the test on this rank."""
    launch_as_fsdp2()
    if part == "two":
        for form in FORMS:
            run(folder / form, form)
            run(folder / f"{form}-again", form, folder / form / "checkpoint-2")
        fill_the_disk(folder / "full")
    elif part == "one":
        run(folder / "one", "whole")
        run(folder / "two-to-one", "whole", folder / "whole" / "checkpoint-2")
    else:
        run(folder / "one-to-two", "whole", folder / "one" / "checkpoint-2")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
