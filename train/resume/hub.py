"""``push_to_hub`` as transformers and TRL mean it, of folders that are ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.trainer_utils import HubStrategy
from transformers.utils.hub import PushInProgress, hf_api

from atommem.config import save_config
from atommem.train.resume.checkpoint_files import MARKER
from atommem.train.resume.model_card import save_model_card, training_facts

STATE_FILES = (
    *(
        "optimizer*",
        "scheduler*",
        "scaler*",
        "rng_state*",
        "rollout_*",
        "trainer_state.json",
        "latest",
    ),
    *("training_args.*", "global_step*", "pytorch_model_fsdp_*", "zero_to_fp32.py", MARKER),
)
"""What of a checkpoint is no part of the model."""
_PRIVATE = (
    "_*",
    ".*",
    "checkpoint-*",
    "wandb/*",
    "traces/*",
    "samples/*",
    "failed/*",
    "eval/*",
    "run_id",
)
"""What of an output folder stays at home: texts of the data, and what tells of the machine. TensorBoard's events go."""


class HubTrainer(Trainer):
    """Pushes a model with our card and its ``atommem_config.json``, and neither episodes nor logs.

    ``hub_strategy`` is as transformers has it: ``end``; ``every_save`` the model of each checkpoint as well;
    ``checkpoint`` and ``all_checkpoints`` the checkpoints too.
    """

    settings: Any
    push_in_progress: Any
    """transformers' own, where something is pushed at all."""
    _pushed: Path | None = None

    def describe(self, folder: Path, name: str = "") -> dict[str, Any]:
        """Write settings and card of the model in `folder`, which is called `name`; returns what the card tells."""
        if self.settings:
            save_config(folder, *self.settings)
        facts = training_facts(self)
        save_model_card(folder, facts, vars(self.state), name=name)
        return facts

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Save the model to the output folder, and upload it; the arguments are transformers'. Collective.

        Raises:
            OSError: The hub refuses, or is out of reach.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        token = token or self.args.hub_token
        if self.hub_model_id is None:
            self.init_hf_repo(token=token)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        folder = Path(self.args.output_dir)
        self.describe(folder, self.hub_model_id)
        self._finish_current_push()
        return self._upload(
            folder, commit_message, revision, token, _PRIVATE, run_as_future=not blocking
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """transformers asks for it before a checkpoint is whole: `push_checkpoint` follows then."""

    def push_checkpoint(self, folder: Path) -> None:
        """Begin to upload what `hub_strategy` says of a checkpoint; while another upload runs, this one is left out."""
        strategy = self.args.hub_strategy
        if (
            not self.args.push_to_hub
            or strategy == HubStrategy.END
            or not self.is_world_process_zero()
        ):
            return
        if self.pushing() and not self.args.hub_always_push:
            return
        message = f"Training in progress, step {self.state.global_step}"
        settings = (self.args.hub_revision, self.args.hub_token)
        jobs = [self._upload(folder, message, *settings, STATE_FILES, run_as_future=True)]
        if strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            place = "last-checkpoint" if strategy == HubStrategy.CHECKPOINT else folder.name
            message += ", checkpoint"
            jobs.append(
                self._upload(folder, message, *settings, (), run_as_future=True, path_in_repo=place)
            )
        self._pushed = folder
        if self.pushing():
            self.push_in_progress.jobs.extend(jobs)
        else:
            self.push_in_progress = PushInProgress(jobs)

    def pushing(self) -> Path | None:
        """The checkpoint that is being uploaded, if there is one."""
        push = getattr(self, "push_in_progress", None)
        return None if push is None or push.is_done() else self._pushed

    def _upload(
        self,
        folder: Path,
        message: str | None,
        revision: str | None,
        token: str | None,
        without: tuple[str, ...],
        **how: Any,
    ) -> Any:
        return hf_api().upload_folder(
            repo_id=self.hub_model_id,
            folder_path=folder,
            commit_message=message,
            token=token,
            revision=revision,
            ignore_patterns=list(without),
            **how,
        )
