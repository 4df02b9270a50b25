"""HotpotQA (Yang et al., 2018): the official JSON files (distractor setting) and the Hugging Face layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from atommem.envs.benchmarks.hotpot_layout import parse_row
from atommem.envs.benchmarks.rows import QARow, read_rows

SOURCE = "hotpotqa"


def read_hotpotqa(path: str | Path) -> Iterator[QARow]:
    """Read ``hotpot_train_v1.1.json``, ``hotpot_dev_distractor_v1.json`` or a Hugging Face parquet or JSONL file.

    A row whose paragraphs lack a supporting one (as in the fullwiki setting) is not `answerable`.

    Raises:
        DataError: The file is not in one of these layouts, or damaged.
    """
    for row in read_rows(path):
        yield parse_row(row, SOURCE, separator="", answers=(row.text("answer"),))
