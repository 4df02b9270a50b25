"""Settings of the long-document environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from atommem.config import check_choice
from atommem.envs.question_answering import QAConfig


@dataclass
class LongDocConfig(QAConfig):
    """How a document is cut, and how an episode is asked and scored."""

    least: ClassVar = {**QAConfig.least, "at_once": 1}

    chunking: str = field(
        default="tokens", metadata={"help": "tokens: cut the joined text; documents: one chunk a document."}
    )
    whole_sentences: bool = field(default=False, metadata={"help": "End chunks where sentences end."})
    at_once: int = field(
        default=1,
        metadata={"help": "Questions asked at one step, at most (the templates memagent are worded for several)."},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("chunking", self.chunking, ("tokens", "documents"))
