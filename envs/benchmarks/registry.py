"""The benchmarks by name, and where their official files lie in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from atommem.envs.benchmarks import hotpotqa, musique, twowiki
from atommem.envs.benchmarks.rows import QARow
from atommem.errors import ConfigError, DataError

SPLITS = ("train", "dev")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """How to find and read one benchmark.

    Attributes:
        files: Split -> file name patterns, the official name first, then those of Hugging Face downloads. The
            first pattern that matches is taken, with all of its files (shards).
    """

    name: str
    read: Callable[[Path], Iterator[QARow]]
    files: Mapping[str, tuple[str, ...]]

    def find(self, split: str, path: str | Path) -> list[Path]:
        """The files of `split`: `path` itself if it is a file, else what lies in the folder or its subfolder `name`.

        Raises:
            DataError: There is none; the message lists what was looked for.
        """
        path = Path(path)
        if path.is_file():
            return [path]
        patterns = self.files[split]
        for folder in (path, path / self.name):
            for pattern in patterns:
                if found := sorted(file for file in folder.glob(pattern) if file.is_file()):
                    return found
        if not path.is_dir():
            raise DataError(f"{path}: no such file or folder.")
        raise DataError(
            f"{path}: found no {split} file of {self.name} here or in the folder {self.name}/; looked for "
            f"{', '.join(patterns)}. Give the file itself, or the folder that it lies in."
        )


_HUGGING_FACE_TRAIN = ("distractor/train-*.parquet", "data/train-*.parquet", "train-*.parquet", "train.parquet")
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
            hotpotqa.SOURCE,
            hotpotqa.read_hotpotqa,
            {
                "train": ("hotpot_train_v1.1.json", *_HUGGING_FACE_TRAIN),
                "dev": ("hotpot_dev_distractor_v1.json", *_HUGGING_FACE_DEV),
            },
        ),
        Benchmark(
            twowiki.SOURCE,
            twowiki.read_twowiki,
            {"train": ("train.json", *_HUGGING_FACE_TRAIN), "dev": ("dev.json", *_HUGGING_FACE_DEV)},
        ),
        Benchmark(
            musique.SOURCE,
            musique.read_musique,
            {
                "train": ("musique_ans_v1.0_train.jsonl", "musique_full_v1.0_train.jsonl", *_HUGGING_FACE_TRAIN),
                "dev": ("musique_ans_v1.0_dev.jsonl", "musique_full_v1.0_dev.jsonl", *_HUGGING_FACE_DEV),
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
