"""Settings of the long-document environment."""

from __future__ import annotations

from dataclasses import dataclass

from atommem.config import check_choice, check_least, setting
from atommem.envs.question_answering import QAConfig
from atommem.envs.questions_shown import check_modes


@dataclass
class LongDocConfig(QAConfig):
    """How a document is cut, and how an episode is asked and scored."""

    chunking: str = setting(
        "tokens", "tokens: cut the joined text; documents: one chunk a document."
    )
    whole_sentences: bool = setting(False, "End chunks where sentences end.")
    at_once: int = setting(
        1, "Questions asked at one step, at most (the templates memagent are worded for several)."
    )
    questions_shown: list[str] = setting(
        ["reading"],
        "When questions are shown: reading (at every step), answering (only when they are asked, after the "
        "text), arriving (asked after some part of it, and then reading goes on). Of several, one is drawn for "
        "each task; named twice, it is twice as likely.",
    )
    open_ended: bool = setting(
        False,
        "Do not tell how many parts the text has, nor that it is over: as in a stream whose length nobody "
        "knows (serving).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, at_once=1)
        self.questions_shown = check_modes(self.questions_shown)
        check_choice("chunking", self.chunking, ("tokens", "documents"))
