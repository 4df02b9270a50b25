"""The tasks of a suite's columns: built on first use, and kept under the digest of all that they depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from atommem.environment import DEFAULT_ENVIRONMENT, find_environment
from atommem.envs.benchmarks.build import Pool, build_tasks
from atommem.envs.benchmarks.registry import TWOWIKI, get_benchmark, with_aliases
from atommem.envs.provenance import describe_file, write_provenance
from atommem.envs.synthetic.world import generate
from atommem.envs.task import Task
from atommem.envs.task_files import save_tasks
from atommem.errors import AtomMemError, ConfigError
from atommem.eval.suites.suite import BenchmarkData, Column, FileData, SyntheticData

ALIASES = "id_aliases.json"
"""2WikiMultihopQA's file of aliases: its names count as right if it lies beside the questions."""


class TaskCache:
    """Finds or builds the file of a column's tasks.

    A file's name holds a digest of the content of every input file, of every setting of the build, the seed among
    them, and of the package's version: whatever differs has a file of its own. A file appears when it is complete.

    Args:
        folder: Where built files are kept; made on first use.
        benchmarks: Folder with the benchmarks' files, each in a folder of its name.
        say: Told what is built.
    """

    def __init__(
        self, folder: Path, benchmarks: Path | None, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.folder = folder
        self.benchmarks = benchmarks
        self._say = say
        self._pool: tuple[str, Pool] | None = None

    def available(self, column: Column) -> bool:
        """False for an optional column whose benchmark was not given."""
        return not (
            column.optional and self.benchmarks is None and isinstance(column.data, BenchmarkData)
        )

    def load(
        self, columns: Iterable[Column], environment: str = DEFAULT_ENVIRONMENT
    ) -> dict[str, Sequence[Any]]:
        """The tasks of `columns` as `environment` reads them, by the columns' keys; raises as `path`."""
        read_tasks = find_environment(environment).read_tasks
        tasks = {}
        for column in columns:
            try:
                tasks[column.key] = read_tasks(self.path(column))
            except AtomMemError as error:
                raise type(error)(f"column {column.key}: {error}") from error
        self._pool = None
        return tasks

    def path(self, column: Column) -> Path:
        """The file with the tasks of `column`, built if it is not there.

        Raises:
            ConfigError: No folder of benchmarks was given, or there is no such file.
            DataError: An input is missing or damaged, or too small for what is asked.
        """
        data = column.data
        if isinstance(data, FileData):
            return self._plain(data)
        if isinstance(data, SyntheticData):
            settings = {
                "source": "synthetic",
                "world": asdict(data.world),
                "n": data.n,
                "seed": data.seed,
            }
            return self._built(column, settings, lambda: generate(data.world, data.n, data.seed))
        return self._benchmark(column, data)

    def _plain(self, data: FileData) -> Path:
        given = Path(data.file)
        for path in ([self.benchmarks / given] if self.benchmarks is not None else []) + [given]:
            if path.is_file():
                return path
        beside = f", nor in the folder {self.benchmarks}" if self.benchmarks is not None else ""
        raise ConfigError(
            f"there is no file {given}{beside}: give --benchmarks the folder that it lies in."
        )

    def _benchmark(self, column: Column, data: BenchmarkData) -> Path:
        benchmark = get_benchmark(data.benchmark)
        if self.benchmarks is None:
            looked_for = ", ".join(
                f"{benchmark.name}/{pattern}" for pattern in benchmark.files[data.split]
            )
            raise ConfigError(
                f"the files of {benchmark.name} are needed: give --benchmarks the folder that holds "
                f"one of {looked_for}."
            )
        files = benchmark.find(data.split, self.benchmarks)
        beside = files[0].with_name(ALIASES)
        aliases = beside if benchmark.name == TWOWIKI and beside.is_file() else None
        if aliases is not None:
            benchmark = with_aliases(benchmark, aliases)
        settings = {
            "benchmark": benchmark.name,
            "split": data.split,
            **asdict(data.build),
            "inputs": [describe_file(file) for file in files],
            "aliases": None if aliases is None else describe_file(aliases),
        }

        def tasks() -> Iterable[Task]:
            inputs = json.dumps([settings["inputs"], settings["aliases"]])
            if self._pool is None or self._pool[0] != inputs:
                # The columns of one benchmark follow one another: one pool is kept.
                self._pool = (inputs, Pool(row for file in files for row in benchmark.read(file)))
                if note := self._pool[1].skipped_note:
                    self._say(f"{column.key}{note}")
            return build_tasks(self._pool[1], data.build, benchmark.name, data.split)

        return self._built(column, settings, tasks)

    def _built(
        self, column: Column, settings: Mapping[str, Any], tasks: Callable[[], Iterable[Task]]
    ) -> Path:
        # What a file is called and where it lies says nothing about what is in it.
        content = {
            **settings,
            "inputs": [item["sha256"] for item in settings.get("inputs", [])],
            "aliases": (settings.get("aliases") or {}).get("sha256"),
            "atommem": version("atommem"),
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        path = self.folder / f"{column.key}-{digest[:20]}.parquet"
        if not path.is_file():
            self._say(f"building the tasks of {column.key}: {path}")
            save_tasks(tasks(), path)
            write_provenance(path, {**settings, "digest": digest})
        return path
