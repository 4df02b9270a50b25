"""Settings of the judge: fields of every environment whose answers a model may judge."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from atommem.config import check_least, check_probabilities, setting
from atommem.errors import ConfigError

_PRESETS = Path(__file__).with_name("judge_presets.yaml")
_PLACES = ("{question}", "{golds}", "{answer}")


@dataclass
class JudgeConfig:
    """Which model judges answers, how it is asked, and when unreadable verdicts stop a run."""

    judge_url: str | None = setting(
        None, "OpenAI-compatible server of a model that judges every answer."
    )
    judge_model: str | None = setting(None, "Name of the judge's model on its server.")
    judge_prompt: str | None = setting(
        None,
        "gaia, webwalkerqa, simpleqa or browsecomp (wordings of ours in the form of these "
        "evaluations), or a file: {question}, {golds} and {answer} stand for quoted texts; it asks "
        "for a last line CORRECT or INCORRECT (or NOT_ATTEMPTED), or for a line 'correct: yes' or "
        "'correct: no'. Unset is the built-in one.",
    )
    judge_max_tokens: int = setting(
        1024, "Longest reply of the judge, its thought included; doubled when one was cut there."
    )
    judge_exact: bool = setting(
        True,
        "An answer that is a gold answer but for case and white space is right without asking.",
    )
    judge_max_unreadable: float = setting(
        0.5,
        "Part of the last 200 verdicts that may be unreadable (and count as wrong) before a run "
        "stops.",
    )

    def __post_init__(self) -> None:
        if (self.judge_url is None) != (self.judge_model is None):
            raise ConfigError(
                f"judge_url={self.judge_url}, judge_model={self.judge_model}: give both or none."
            )
        check_least(self, judge_max_tokens=1)
        check_probabilities(self, "judge_max_unreadable")


def judge_prompt(config: JudgeConfig) -> str:
    """Return the prompt that `config` names.

    Raises:
        ConfigError: There is no such file, or it lacks a place for one of the texts.
    """
    presets: dict[str, str] = yaml.safe_load(_PRESETS.read_text(encoding="utf-8"))
    name = config.judge_prompt or "default"
    if name in presets:
        return presets[name]
    try:
        prompt = Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(presets)
        raise ConfigError(
            f"judge_prompt={name}: cannot be read ({error}). Give a file or one of {known}."
        ) from error
    if missing := [place for place in _PLACES if place not in prompt]:
        raise ConfigError(f"judge_prompt={name}: has no {', '.join(missing)}. Add them.")
    return prompt


def judge_settings(config: Any) -> dict[str, Any]:
    """Return what a manifest has in place of addresses and paths: the digest of the prompt."""
    if not isinstance(config, JudgeConfig):
        return {}
    digest = hashlib.sha256(judge_prompt(config).encode()).hexdigest()
    return {"judge_url": None, "judge_prompt": None if config.judge_url is None else digest}
