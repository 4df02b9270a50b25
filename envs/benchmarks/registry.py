"""The benchmarks by name, and where their official files lie in a folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from atommem.envs.benchmarks.hotpotqa import (
    HOTPOTQA,
    TWOWIKI,
    parse_hotpotqa,
    parse_twowiki,
    read_aliases,
)
from atommem.envs.benchmarks.musique import MUSIQUE, parse_musique
from atommem.envs.benchmarks.rows import QARow, Row, read_rows
from atommem.errors import ConfigError, DataError, suggest_path

SPLITS = ("train", "dev")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """How to find and read one benchmark.

    Attributes:
        parse: Makes one of its questions of a row.
        files: Split -> file name patterns, the official name first, then those of Hugging Face downloads. The
            first pattern that matches is taken, with all of its files (shards).
    """

    name: str
    parse: Callable[[Row], QARow]
    files: Mapping[str, tuple[str, ...]]

    def read(self, path: str | Path) -> Iterator[QARow]:
        """The questions of a file.

        Raises:
            DataError: The file is not in one of the benchmark's layouts, or damaged.
        """
        return map(self.parse, read_rows(path))

    def find(self, split: str, path: str | Path) -> list[Path]:
        """The files of `split`: `path` itself if it is a file, else what lies in its folder `name` or in it.

        The subfolder comes first: dev.json and train.json are names that any benchmark may have.

        Raises:
            ConfigError: It has no such split.
            DataError: There is none, and the message lists what was looked for; or a shard is missing; or the file's
                name is that of another split.
        """
        path = Path(path)
        if split not in self.files:
            raise ConfigError(f"split is {split!r}; {self.name} has {', '.join(self.files)}.")
        patterns = self.files[split]
        if path.is_file():
            named = [other for other, names in self.files.items() if any(map(path.match, names))]
            if named and split not in named:
                raise DataError(
                    f"{path}: is the {named[0]} file by its name: give --split {named[0]}, or rename it."
                )
            return [path]
        for folder in (path / self.name, path):
            for pattern in patterns:
                if found := sorted(file for file in folder.glob(pattern) if file.is_file()):
                    _check_shards(found)
                    return found
        if not path.is_dir():
            raise DataError(
                f"{path}: no such file or folder{suggest_path(path)}: give the benchmark's own files."
            )
        raise DataError(
            f"{path}: found no {split} file of {self.name} here or in the folder {self.name}/; looked for "
            f"{', '.join(patterns)}. Give the file itself, or the folder that it lies in."
        )


_SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)(\.\w+)")


def _check_shards(files: Sequence[Path]) -> None:
    """Raise if files named ``NAME-00000-of-00002.parquet`` are not all there, or are of several downloads."""
    shards = [match for file in files if (match := _SHARD.fullmatch(file.name))]
    if not shards:
        return
    (name, _, count, suffix), folder = shards[0].groups(), files[0].parent
    wanted = [f"{name}-{number:0{len(count)}d}-of-{count}{suffix}" for number in range(int(count))]
    found = [file.name for file in files]
    if missing := [item for item in wanted if item not in found]:
        raise DataError(
            f"{folder}: lacks {', '.join(missing)} beside {', '.join(found)}. Get all shards of one release."
        )
    if extra := [item for item in found if item not in wanted]:
        raise DataError(
            f"{folder}: holds {', '.join(extra)} beside {', '.join(wanted)}. Keep the shards of one release."
        )


_HUGGING_FACE_TRAIN = (
    "distractor/train-*.parquet",
    "data/train-*.parquet",
    "train-*.parquet",
    "train.parquet",
)
_HUGGING_FACE_DEV = (
    "distractor/validation-*.parquet",
    "data/validation-*.parquet",
    "validation-*.parquet",
    "validation.parquet",
    "dev.parquet",
)

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            HOTPOTQA,
            parse_hotpotqa,
            {
                "train": ("hotpot_train_v1.1.json", *_HUGGING_FACE_TRAIN),
                "dev": ("hotpot_dev_distractor_v1.json", *_HUGGING_FACE_DEV),
            },
        ),
        Benchmark(
            TWOWIKI,
            parse_twowiki,
            {
                "train": ("train.json", *_HUGGING_FACE_TRAIN),
                "dev": ("dev.json", *_HUGGING_FACE_DEV),
            },
        ),
        Benchmark(
            MUSIQUE,
            parse_musique,
            {
                "train": (
                    "musique_ans_v1.0_train.jsonl",
                    "musique_full_v1.0_train.jsonl",
                    *_HUGGING_FACE_TRAIN,
                ),
                "dev": (
                    "musique_ans_v1.0_dev.jsonl",
                    "musique_full_v1.0_dev.jsonl",
                    *_HUGGING_FACE_DEV,
                ),
            },
        ),
    )
}


def get_benchmark(name: str) -> Benchmark:
    """The benchmark called `name`.

    Raises:
        ConfigError: There is none.
    """
    if name not in BENCHMARKS:
        raise ConfigError(f"benchmark is {name!r}; known are {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]


def with_aliases(benchmark: Benchmark, path: Path) -> Benchmark:
    """2WikiMultihopQA with the names of ``id_aliases.json`` counting as right, too.

    Raises:
        ConfigError: It is another benchmark.
        DataError: The file is damaged.
    """
    if benchmark.name != TWOWIKI:
        raise ConfigError(f"aliases is given for {benchmark.name}; only {TWOWIKI} has such a file.")
    return replace(benchmark, parse=partial(parse_twowiki, names=read_aliases(path)))
