"""A limit on what an evaluation may spend on its policy, in tokens or in money.

Spent are the tokens of prompts and of completions of every call whose answer arrived, also of episodes that failed
later or were run again. Calls of a judge or an embedder are not counted. A budget stops new episodes from starting;
those in flight end and are recorded, so that it may be exceeded by as much as ``max_in_flight`` episodes cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from atommem.errors import ConfigError

PER_PRICE = 1_000_000
"""Tokens that a price is for."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the calls of a policy."""

    prompt: int = 0
    completion: int = 0

    @property
    def total(self) -> int:
        """Both together."""
        return self.prompt + self.completion

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt + other.prompt, self.completion + other.completion)


@dataclass
class Budget:
    """What may be spent, and what was. One object may be shared by several evaluations.

    Attributes:
        tokens: Most tokens, of prompts and completions together; None is no limit.
        money: Most money, in the currency of the prices; None is no limit.
        prompt_price, completion_price: Of a million tokens.
        used: What was spent.

    Raises:
        ConfigError: A number is out of range, or there is a limit on money without a price.
    """

    tokens: int | None = None
    money: float | None = None
    prompt_price: float = 0.0
    completion_price: float = 0.0
    used: Usage = field(default_factory=Usage)
    _folders: set[Path] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens < 1:
            raise ConfigError(
                f"budget_tokens is {self.tokens}: give at least 1, or leave it unset for no limit."
            )
        if self.money is not None and not self.money > 0:
            raise ConfigError(
                f"budget_money is {self.money:g}: give more than 0, or leave it unset for no limit."
            )
        for name in ("prompt_price", "completion_price"):
            if not getattr(self, name) >= 0:
                raise ConfigError(
                    f"{name} is {getattr(self, name):g}: give 0 or more, for a million tokens."
                )
        if self.money is not None and not (self.prompt_price or self.completion_price):
            raise ConfigError(
                f"budget_money is {self.money:g} and no price is known: give prompt_price and completion_price, "
                "for a million tokens."
            )

    @property
    def spent(self) -> bool:
        """Whether no episode may start any more."""
        if self.tokens is not None and self.used.total >= self.tokens:
            return True
        return self.money is not None and self.cost >= self.money

    @property
    def cost(self) -> float:
        """What was spent, in money; 0 without prices."""
        used = self.used
        return (
            used.prompt * self.prompt_price + used.completion * self.completion_price
        ) / PER_PRICE

    def add(self, usage: Usage) -> None:
        """Count what an episode cost."""
        self.used += usage

    def add_folder(self, folder: Path, usage: Usage) -> None:
        """Count what earlier runs of the evaluation in `folder` cost, once for each folder."""
        folder = folder.resolve()
        if folder not in self._folders:
            self._folders.add(folder)
            self.add(usage)

    def __str__(self) -> str:
        """Like "1,200 of 1,000 tokens (1,100 of prompts, 100 of completions)"."""
        used = self.used
        tokens = f"{used.total:,}" if self.tokens is None else f"{used.total:,} of {self.tokens:,}"
        text = f"{tokens} tokens ({used.prompt:,} of prompts, {used.completion:,} of completions)"
        if self.money is not None:
            return f"{self.cost:,.4g} of {self.money:,g} in money, {text}"
        return text
