"""What an environment promises, checked as Gymnasium's checker does: ``atommem env check NAME``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atommem.env_check.contents import check_tasks
from atommem.env_check.declarations import check_declarations
from atommem.env_check.episodes import check_episodes
from atommem.env_check.findings import CHECKS, Finding, Findings, StoppedError
from atommem.env_check.player import Player
from atommem.environment import EnvironmentConfig, EnvironmentFactory

__all__ = ["CHECKS", "Finding", "check_environment"]


async def check_environment(
    environment: str | type[EnvironmentFactory],
    config: EnvironmentConfig | None = None,
    data: str | Path | None = None,
    *,
    tasks: Sequence[Any] | None = None,
    most_tasks: int = 3,
    most_steps: int = 1000,
    seed: int = 0,
) -> list[Finding]:
    """Check an environment, without a model.

    Args:
        environment: Its name, or its class.
        config: Its settings; None: the defaults.
        data: A task file; without it and `tasks` no episode is run.
        tasks: Tasks, in the place of `data`.
        most_tasks: Play so many of them with every scripted policy.
        most_steps: An episode that takes more does not end.
        seed: Of what the policies write.

    Returns:
        For every check that could be made (`CHECKS`) what it found, one that it passed at least.
    """
    findings = Findings()
    try:
        declared = check_declarations(findings, environment, config)
        try:
            if tasks is None and data is None:
                findings.warn(
                    "tasks", "without tasks no episode was played", "Give a task file: --data FILE."
                )
            else:
                described = check_tasks(findings, declared, data, tasks)[:most_tasks]
                await check_episodes(Player(findings, declared, seed, most_steps), described)
        finally:
            await declared.factory.close()
    except StoppedError:
        pass
    return list(findings)
