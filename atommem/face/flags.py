"""Settings as flags of a command that needs no trainer's parser."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, get_type_hints

import yaml

from atommem.config import EmbedderConfig, MemoryConfig
from atommem.environment import find_environment
from atommem.face.settings import SAMPLING
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
        group = parser.add_argument_group(f"settings: {title}")
        hints = get_type_hints(kind)  # `TrlParser` writes into the types that `fields` tells
        for item in fields(kind):
            if kind is Sampling and item.name not in SAMPLING:
                continue
            text = item.metadata.get("help") or _SAMPLING_HELP.get(item.name, "")
            hint = hints[item.name]
            annotation = hint.__name__ if isinstance(hint, type) else str(hint)
            several = {"nargs": "*"} if annotation.startswith("list") else {}
            group.add_argument(
                f"--{item.name}",
                type=_reader(annotation),
                default=SUPPRESS,
                metavar=item.name.rpartition("_")[2].upper(),
                help=text.replace("%", "%%"),
                **several,  # type: ignore[arg-type]
            )
    group.add_argument(
        "--chat_template_kwargs",
        type=_reader("dict"),
        default=SUPPRESS,
        metavar="JSON",
        help="Arguments of the chat template, a JSON object.",
    )


def given_settings(arguments: Any, own: Sequence[str]) -> dict[str, Any]:
    """Those of the flags that were given; `own` are the names of the command's other arguments."""
    return {name: value for name, value in vars(arguments).items() if name not in own}


_KINDS = {"bool": "true or false", "int": "a whole number", "float": "a number", "dict": "a JSON object"}


def _reader(annotation: str) -> Callable[[str], Any]:
    """What reads a value of this type: numbers, true, false and null as YAML has them, and text as it is."""
    kinds: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int,), "float": (int, float), "dict": (dict,)}
    name = next((name for name in kinds if name in annotation), None)
    wanted = None if name is None else kinds[name]
    optional = "None" in annotation

    def read(value: str) -> Any:
        if wanted is None:
            return None if value == "null" and optional else value
        try:
            found = yaml.safe_load(value)
        except yaml.YAMLError:
            found = value
        right = isinstance(found, wanted) and (wanted == (bool,) or not isinstance(found, bool))
        if right or (found is None and optional):
            return found
        assert name is not None
        raise ArgumentTypeError(f"{value!r} is not understood: give {_KINDS[name]}{', or null' if optional else ''}")

    return read
