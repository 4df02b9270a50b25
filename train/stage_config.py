"""Settings that all stages of training share, and how what they cannot honour is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atommem.envs.checkpoint_settings import json_object
from atommem.errors import ConfigError

DISTRIBUTION = "what is sampled must be the distribution that is trained"

NOTHING: Mapping[str, tuple[Any, str]] = {}


@dataclass
class StageConfig:
    """Mixed into a configuration of TRL, before it.

    Attributes:
        fixed: TRL's fields that cannot be honoured, with the only value that is accepted and the reason.
    """

    fixed = NOTHING

    project: str = field(
        default="atommem", metadata={"help": "The project that wandb and trackio show the run in."}
    )
    bf16: bool | None = field(
        default=None,
        metadata={
            "help": "Mixed precision in bfloat16; unset: on where a GPU supports it, off on CPU."
        },
    )
    gradient_checkpointing: bool | None = field(
        default=None,
        metadata={
            "help": "Trade compute for memory in the backward pass; unset: on with a GPU, off on CPU."
        },
    )

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """`chat_template_kwargs` as an object."""
        return json_object("chat_template_kwargs", self.chat_template_kwargs)  # type: ignore[attr-defined]  # TRL's

    def __post_init__(self) -> None:
        import torch

        # TRL turns both on; without a GPU they only make training slower.
        gpu = torch.cuda.is_available()
        if self.bf16 is None:
            self.bf16 = not self.fp16 and gpu and torch.cuda.is_bf16_supported()  # type: ignore[attr-defined]  # TRL's
        if self.gradient_checkpointing is None:
            self.gradient_checkpointing = gpu
        self.dataloader_pin_memory &= gpu  # type: ignore[attr-defined]  # TRL's; else torch warns of it
        super().__post_init__()  # type: ignore[misc]  # TRL's
        check_fixed(self, self.fixed)
        self.template_kwargs  # noqa: B018  # that it is an object

    def to_dict(self) -> dict[str, Any]:
        """As transformers', which is what its callbacks report, with the facts of the run beside it (`run_facts`)."""
        return super().to_dict() | getattr(self, "facts", {})  # type: ignore[misc]


def check_fixed(config: Any, fixed: Mapping[str, tuple[Any, str]]) -> None:
    """Raise ConfigError when a field of `config` has another than its only supported value; the reason is beside it."""
    for name, (only, reason) in fixed.items():
        value = getattr(config, name)
        if str(getattr(value, "value", value)) != str(only):
            raise ConfigError(f"{name} is {value!r}: only {only!r} is supported, because {reason}.")
