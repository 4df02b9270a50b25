"""The benchmarks of questions with paragraphs by name, and the names of their official files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from atommem.config import check_choice
from atommem.envs.benchmarks.multihop import (
    HOTPOTQA,
    MUSIQUE,
    TWOWIKI,
    parse_hotpotqa,
    parse_musique,
    parse_twowiki,
    read_aliases,
)
from atommem.envs.benchmarks.rows import QARow, Row, read_rows
from atommem.errors import ConfigError, DataError, suggest_path

SPLITS = ("train", "dev")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """How to find and read one benchmark.

    Attributes:
        parse: Makes one of its questions of a row.
        files: Split -> file name patterns, the official name first, then those of Hugging Face
            downloads. The first pattern that matches counts, with all of its files (shards).
    """

    name: str
    parse: Callable[[Row], QARow]
    files: Mapping[str, tuple[str, ...]]

    def read(self, path: str | Path) -> Iterator[QARow]:
        """Yield the questions of a file; DataError if it is damaged or has another layout."""
        return map(self.parse, read_rows(path))

    def find(self, split: str, path: str | Path) -> list[Path]:
        """Return `path` if it is a file, else the files of `split` in its folder `name` or in it.

        Raises:
            ConfigError: There is no such split.
            DataError: There is no such file, or a shard is missing.
        """
        path = Path(path)
        check_choice("split", split, tuple(self.files))
        if path.is_file():
            return [path]
        # The subfolder comes first: any benchmark may have a dev.json.
        for folder in (path / self.name, path):
            for pattern in self.files[split]:
                if found := sorted(folder.glob(pattern)):
                    _check_shards(found)
                    return found
        raise DataError(
            f"{path}{suggest_path(path)}: no {split} file of {self.name} here or in the folder "
            f"{self.name}; looked for {', '.join(self.files[split])}. Give the file or its folder."
        )


def _check_shards(files: list[Path]) -> None:
    """Raise if ``NAME-00000-of-00002.parquet`` has another number of shards than its name has."""
    count = files[0].stem.rpartition("-of-")[2]
    if "-of-" in files[0].stem and len(files) != int(count):
        raise DataError(
            f"{files[0].parent}: has {len(files)} shards such as {files[0].name}, expected "
            f"{int(count)}. Give all shards of one release and no others."
        )


def _benchmark(
    name: str, parse: Callable[[Row], QARow], train: tuple[str, ...], dev: tuple[str, ...]
) -> Benchmark:
    def downloads(split: str) -> tuple[str, ...]:
        shards = (f"{folder}{split}-*.parquet" for folder in ("distractor/", "data/", ""))
        return (*shards, f"{split}.parquet")

    developed = (*dev, *downloads("validation"), "dev.parquet")
    return Benchmark(name, parse, {"train": (*train, *downloads("train")), "dev": developed})


BENCHMARKS = {
    HOTPOTQA: _benchmark(
        HOTPOTQA, parse_hotpotqa, ("hotpot_train_v1.1.json",), ("hotpot_dev_distractor_v1.json",)
    ),
    TWOWIKI: _benchmark(TWOWIKI, parse_twowiki, ("train.json",), ("dev.json",)),
    MUSIQUE: _benchmark(
        MUSIQUE,
        parse_musique,
        ("musique_ans_v1.0_train.jsonl", "musique_full_v1.0_train.jsonl"),
        ("musique_ans_v1.0_dev.jsonl", "musique_full_v1.0_dev.jsonl"),
    ),
}


def get_benchmark(name: str) -> Benchmark:
    """Return the benchmark of a name; ConfigError if there is none."""
    check_choice("benchmark", name, tuple(BENCHMARKS))
    return BENCHMARKS[name]


def with_aliases(benchmark: Benchmark, path: Path) -> Benchmark:
    """Return 2WikiMultihopQA with the names in ``id_aliases.json`` as further answers.

    Raises:
        ConfigError: It is another benchmark.
        DataError: The file is damaged.
    """
    if benchmark.name != TWOWIKI:
        raise ConfigError(f"aliases={path}: only {TWOWIKI} has aliases, not {benchmark.name}.")
    return replace(benchmark, parse=partial(parse_twowiki, names=read_aliases(path)))
