"""The settings of a memory that is used: what the policy's folder says, and what the user gives by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from atommem.command_line import close_match
from atommem.config import EmbedderConfig, MemoryConfig, fields_of
from atommem.environment import DEFAULT_ENVIRONMENT, EnvironmentConfig, find_environment
from atommem.errors import ConfigError
from atommem.policy.contract import Sampling, check_sampling

SAMPLING = tuple(item.name for item in fields(Sampling) if item.name != "affinity")
"""The fields of `Sampling` that can be set."""


@dataclass(frozen=True)
class Settings:
    """Everything but the policy.

    Attributes:
        memory, embedder, environment, sampling: As of the commands.
        chat_template_kwargs: Passed to the tokenizer's chat template.
    """

    memory: MemoryConfig
    embedder: EmbedderConfig
    environment: EnvironmentConfig
    sampling: Sampling
    chat_template_kwargs: dict[str, Any]

    @classmethod
    def of(cls, stored: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
        """Those of a policy's folder, with others in their place; what neither says is as the defaults are.

        Args:
            stored: Its ``atommem_config.json``; what is no setting here is passed over.
            given: By name: fields of `MemoryConfig`, `EmbedderConfig`, `Sampling` and the environment's configuration,
                ``environment`` and ``chat_template_kwargs``.

        Raises:
            ConfigError: There is no such setting, or its value is out of range.
        """
        values = {**stored, **given}
        name = values.get("environment") or DEFAULT_ENVIRONMENT
        world = find_environment(name).config_class
        kinds = (MemoryConfig, EmbedderConfig, world)
        known = [
            *(item.name for kind in kinds for item in fields(kind)),
            *SAMPLING,
            "chat_template_kwargs",
        ]
        for wrong in sorted({*given} - {*known}):
            hint = close_match(wrong, known) or f": there are {', '.join(known)}"
            raise ConfigError(f"there is no setting {wrong!r}{hint}.")
        sampling = Sampling(**{key: values[key] for key in SAMPLING if key in values})
        check_sampling(sampling)
        return cls(
            MemoryConfig(**fields_of(MemoryConfig, values)),
            EmbedderConfig(**fields_of(EmbedderConfig, values)),
            world(**{**fields_of(world, values), "environment": name}),
            sampling,
            values.get("chat_template_kwargs") or {},
        )

    def to_json(self) -> dict[str, Any]:
        """As one flat object, like ``atommem_config.json``."""
        sampling = {name: getattr(self.sampling, name) for name in SAMPLING}
        configs = (self.memory, self.embedder, self.environment)
        flat = {name: value for config in configs for name, value in asdict(config).items()}
        return {**flat, **sampling, "chat_template_kwargs": self.chat_template_kwargs}
