"""Settings as flags of a command that needs no trainer's parser."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Sequence
from typing import Any

from atommem.command_line import add_fields, reader
from atommem.config import EmbedderConfig, MemoryConfig
from atommem.environment import find_environment
from atommem.policy.contract import Sampling

_SAMPLING_HELP = {
    "temperature": "Sampling temperature; 0 is greedy.",
    "top_p": "Nucleus mass; 1 keeps everything.",
    "top_k": "Keep the k most likely tokens; 0 keeps all.",
    "max_tokens": "Longest completion of a step, tokens.",
    "seed": "Every step derives its own seed from this one; unset is not reproducible.",
}


def add_settings(parser: ArgumentParser, environment: str) -> None:
    """Add a flag for every setting of `atommem.face.settings.Settings`. Those that are not given stay out.

    Raises:
        ConfigError: There is no such environment.
    """
    for title, kind in (
        ("memory", MemoryConfig),
        ("embedder", EmbedderConfig),
        (f"environment {environment}", find_environment(environment).config_class),
        ("sampling", Sampling),
    ):
        about = (
            "In brackets: what holds where the policy's folder says nothing else."
            if kind is MemoryConfig
            else None
        )
        group = parser.add_argument_group(f"settings: {title}", about)
        add_fields(group, kind, _SAMPLING_HELP, but=("affinity",))
    group.add_argument(
        "--chat_template_kwargs",
        type=reader("dict"),
        default=SUPPRESS,
        metavar="JSON",
        help="Arguments of the chat template, a JSON object.",
    )


def given_settings(arguments: Any, own: Sequence[str]) -> dict[str, Any]:
    """Those of the flags that were given; `own` are the names of the command's other arguments."""
    return {name: value for name, value in vars(arguments).items() if name not in own}
