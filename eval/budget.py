"""Limit on an evaluation's spending on its policy, in tokens or money.

Prompts and completions of every answered call count, including those of failed episodes; calls of
judges and embedders do not. A spent budget starts no episode; those in flight end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from atommem.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of calls to a policy."""

    prompt: int = 0
    completion: int = 0

    @property
    def total(self) -> int:
        """Sum of both."""
        return self.prompt + self.completion

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt + other.prompt, self.completion + other.completion)


@dataclass
class Budget:
    """Limits and spending, which several evaluations may share.

    Attributes:
        tokens: Most tokens; None is unlimited.
        money: Most money, in the currency of the prices; None is unlimited.
        prompt_price, completion_price: For a million tokens.

    Raises:
        ConfigError: A number is out of range, or a limit on money has no price.
    """

    tokens: int | None = None
    money: float | None = None
    prompt_price: float = 0.0
    completion_price: float = 0.0
    used: Usage = field(default_factory=Usage)
    _folders: set[Path] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens < 1:
            raise ConfigError(f"budget_tokens={self.tokens}: must be at least 1, or unset.")
        if self.money is not None and not self.money > 0:
            raise ConfigError(f"budget_money={self.money:g}: must be more than 0, or unset.")
        for name in ("prompt_price", "completion_price"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name}={getattr(self, name):g}: must be 0 or more.")
        if self.money is not None and not (self.prompt_price or self.completion_price):
            raise ConfigError("budget_money needs prompt_price or completion_price.")

    @property
    def spent(self) -> bool:
        """Whether no episode may start any more."""
        if self.tokens is not None and self.used.total >= self.tokens:
            return True
        return self.money is not None and self.cost >= self.money

    @property
    def cost(self) -> float:
        """Money spent; 0 without prices."""
        used, prices = self.used, (self.prompt_price, self.completion_price)
        return (used.prompt * prices[0] + used.completion * prices[1]) / 1_000_000

    def add(self, usage: Usage) -> None:
        """Count an episode."""
        self.used += usage

    def add_folder(self, folder: Path, usage: Usage) -> None:
        """Count what earlier runs in a folder used, once for each folder."""
        folder = folder.resolve()
        if folder not in self._folders:
            self._folders.add(folder)
            self.add(usage)

    def __str__(self) -> str:
        used = self.used
        tokens = f"{used.total:,}" if self.tokens is None else f"{used.total:,} of {self.tokens:,}"
        text = f"{tokens} tokens ({used.prompt:,} of prompts, {used.completion:,} of completions)"
        if self.money is not None:
            return f"{self.cost:,.4g} of {self.money:,g} in money, {text}"
        return text
