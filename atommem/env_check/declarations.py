"""Checks of what an environment declares: settings, actions, wording, blank observations."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from atommem.actions import MEMORY_KINDS, Body
from atommem.config import EmbedderConfig, MemoryConfig
from atommem.dialects import SHIPPED, Section, dialect_names, get_dialect
from atommem.env_check.findings import Findings, StoppedError, told
from atommem.env_check.probes import WordTokenizer
from atommem.environment import (
    EnvironmentConfig,
    EnvironmentFactory,
    environment_config,
    find_environment,
)
from atommem.errors import AtomMemError, DialectError
from atommem.memory.log import MemoryView
from atommem.prompts import PromptBuilder


@dataclass(frozen=True)
class Declared:
    """An environment whose declarations will do for playing.

    Attributes:
        kind, factory: Its class, and one instance of it.
        memory: Settings under which its wording can be used.
        section: That wording.
    """

    kind: type[EnvironmentFactory]
    factory: EnvironmentFactory
    memory: MemoryConfig
    section: Section


def check_declarations(
    findings: Findings,
    environment: str | type[EnvironmentFactory],
    config: EnvironmentConfig | None,
) -> Declared:
    """Find, configure and instantiate an environment, and check what it declares.

    Raises:
        StoppedError: Nothing further can be checked.
    """
    name, kind = _find(findings, environment)
    factory = _instance(findings, kind, name, config)
    _check_actions(findings, factory)
    memory = _check_templates(findings, factory)
    section = factory.section(memory.templates, factory.config)
    return Declared(kind, factory, memory, section)


def _find(
    findings: Findings, environment: str | type[EnvironmentFactory]
) -> tuple[str, type[EnvironmentFactory]]:
    findings.begin("found")
    if not isinstance(environment, str):
        return f"{environment.__module__}:{environment.__qualname__}", environment
    try:
        return environment, find_environment(environment)
    except (AtomMemError, ImportError) as error:
        findings.fail(
            "found",
            str(error),
            "See to its entry point in the group atommem.environments, and install it.",
        )
        raise StoppedError from error


def _instance(
    findings: Findings, kind: type[EnvironmentFactory], name: str, config: EnvironmentConfig | None
) -> EnvironmentFactory:
    findings.begin("settings")
    settings: Any = getattr(kind, "config_class", None)
    if not (
        isinstance(settings, type)
        and is_dataclass(settings)
        and issubclass(settings, EnvironmentConfig)
    ):
        remedy = "Make it a dataclass derived from EnvironmentConfig."
        findings.fail("settings", f"config_class is {settings!r}", remedy)
        raise StoppedError
    taken = {item.name for other in (MemoryConfig, EmbedderConfig) for item in fields(other)}
    clash = sorted(taken & {item.name for item in fields(settings)})
    findings.expect(
        not clash,
        "settings",
        f"memory or embedder have {', '.join(clash)} too",
        "Rename these settings.",
    )
    bare = [item.name for item in fields(settings) if "help" not in item.metadata]
    if bare:
        remedy = 'Say what they do: field(default=..., metadata={"help": "..."}).'
        findings.warn("settings", f"{', '.join(bare)} have no help", remedy)
    try:
        if config is None:
            config = settings(environment=name) if ":" in name else environment_config(name)
        json.dumps(asdict(config))
        return kind(config, WordTokenizer())
    except Exception as error:
        remedy = "Every setting needs a default that works, and a value that JSON has."
        findings.fail("settings", told(error), remedy)
        raise StoppedError from error


def _check_actions(findings: Findings, factory: EnvironmentFactory) -> None:
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    findings.begin("actions")
    names = [spec.name for spec in factory.actions]
    twice = sorted({name for name in names if names.count(name) > 1 or name in MEMORY_KINDS})
    findings.expect(
        not twice, "actions", f"{', '.join(twice)} name two actions", "Give each a name of its own."
    )
    findings.expect(
        factory.phases,
        "actions",
        "there is no phase",
        "Name those of the observations in `phases`.",
    )
    for spec in factory.actions:
        detail = f"{spec.name} says that {spec.executor} executes it"
        findings.expect(spec.executor == "environment", "actions", detail, "Leave `executor` out.")
        if spec.body is Body.ARGUMENTS:
            schema = dict(spec.schema or {})
            try:
                validator_for(schema).check_schema(schema)
            except SchemaError as error:
                findings.fail(
                    "actions",
                    f"{spec.name}: {error.message}",
                    "Give a JSON schema of the arguments.",
                )
        if spec.is_tool and not spec.description:
            remedy = "Describe it: prompts explain a tool by its description."
            findings.warn("actions", f"{spec.name} has no description", remedy)


def _check_templates(findings: Findings, factory: EnvironmentFactory) -> MemoryConfig:
    """The sections of all shipped sets in all dialects, and blank prompts; returns the first to be played with."""
    findings.begin("templates", "blank")
    playable: list[MemoryConfig] = []
    for templates in SHIPPED:
        if not (Path(factory.templates) / f"{templates}.yaml").is_file():
            _note_missing(findings, factory, templates)
            continue
        for dialect in dialect_names():
            memory = MemoryConfig(
                dialect=dialect, templates=templates, scratchpad_tokens=64, entry_tokens=64
            )
            if (
                _check_wording(findings, factory, memory)
                and not get_dialect(dialect, templates).whole
            ):
                playable.append(memory)
    if not playable:
        findings.fail(
            "templates",
            "there is no wording to play with",
            "Write the template sections full and compact.",
        )
        raise StoppedError
    return playable[0]


def _note_missing(findings: Findings, factory: EnvironmentFactory, templates: str) -> None:
    file = Path(factory.templates) / f"{templates}.yaml"
    whole = get_dialect("memagent", "memagent").whole
    if templates == "full":
        findings.fail(
            "templates", f"there is no {file}", "Write it: it is the wording for instruct models."
        )
    elif templates != "memagent" or all(phase in whole for phase in factory.phases):
        remedy = f"Write it, if --templates {templates} is to be used here."
        findings.warn("templates", f"there is no {file}", remedy)


def _check_wording(findings: Findings, factory: EnvironmentFactory, memory: MemoryConfig) -> bool:
    """Whether prompts can be built with it."""
    try:
        dialect = get_dialect(memory.dialect, memory.templates)
    except DialectError:
        return False  # this dialect and this set are not for each other
    if not dialect.whole:
        try:
            dialect.grammar(factory.actions, factory.phases)
        except DialectError as error:
            findings.fail("actions", str(error), "Rename the action, or give it another tag.")
            return False
    try:
        prompts = PromptBuilder.of(factory.tokenizer, dialect, memory, factory)
    except DialectError as error:
        findings.fail(
            "templates",
            f"{memory.templates}, {memory.dialect}: {error}",
            "Mend the wording, or `pieces`.",
        )
        return False
    for phase in factory.phases:
        try:
            observation = factory.blank(phase)
            detail = f"blank({phase!r}) is of the phase {observation.phase!r}"
            findings.expect(
                observation.phase == phase,
                "blank",
                detail,
                "Give one of the phase that is asked for.",
            )
            prompts.build(observation, MemoryView())
        except Exception as error:
            findings.fail(
                "blank",
                f"blank({phase!r}): {told(error)}",
                "Give an observation with nothing in it.",
            )
    return True
