"""Tasks of a suite's columns, built on first use and stored by a digest of their inputs."""

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
from atommem.envs.synthetic.world import generate
from atommem.envs.task import Task
from atommem.envs.task_files import describe_file, save_tasks, write_provenance
from atommem.errors import AtomMemError, ConfigError
from atommem.eval.suite import BenchmarkData, Column, FileData, SyntheticData

ALIASES = "id_aliases.json"
"""2WikiMultihopQA's aliases; its names count as right if the file is beside the questions."""


class TaskCache:
    """Finds or builds the tasks of columns.

    A file's name has a digest of its inputs' content, the build's settings and the package's
    version. A file appears when it is complete.

    Args:
        folder: Holds the files.
        benchmarks: Folder of the benchmarks' files, in a folder each.
        progress: Receives a line for each build.
    """

    def __init__(
        self,
        folder: Path,
        benchmarks: Path | None,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder, self.benchmarks, self._progress = folder, benchmarks, progress
        self._pool: tuple[str, Pool] | None = None

    def load(
        self, columns: Iterable[Column], environment: str = DEFAULT_ENVIRONMENT
    ) -> dict[str, Sequence[Any]]:
        """Return the tasks of each column by its key; raises like `path`."""
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
        """Return the file of a column's tasks, built if necessary.

        Raises:
            ConfigError: The benchmarks' folder or the file is missing.
            DataError: An input is missing, damaged or too small.
        """
        data = column.data
        if isinstance(data, FileData):
            folders = [self.benchmarks, Path()] if self.benchmarks is not None else [Path()]
            for folder in folders:
                if (folder / data.file).is_file():
                    return folder / data.file
            searched = " or ".join(str(folder) for folder in folders)
            raise ConfigError(f"{data.file} is not in {searched}. Give its folder as --benchmarks.")
        if isinstance(data, SyntheticData):
            settings = {"source": "synthetic", **asdict(data)}
            return self._build(column, settings, lambda: generate(data.world, data.n, data.seed))
        return self._benchmark_path(column, data)

    def _benchmark_path(self, column: Column, data: BenchmarkData) -> Path:
        benchmark = get_benchmark(data.benchmark)
        if self.benchmarks is None:
            names = ", ".join(f"{benchmark.name}/{name}" for name in benchmark.files[data.split])
            raise ConfigError(f"{benchmark.name} needs --benchmarks, a folder with one of {names}.")
        files = benchmark.find(data.split, self.benchmarks)
        aliases = files[0].with_name(ALIASES)
        found = benchmark.name == TWOWIKI and aliases.is_file()
        if found:
            benchmark = with_aliases(benchmark, aliases)
        settings = {
            "benchmark": benchmark.name,
            "split": data.split,
            **asdict(data.build),
            "inputs": [describe_file(file) for file in files],
            "aliases": describe_file(aliases) if found else None,
        }

        def make_tasks() -> Iterable[Task]:
            inputs = json.dumps([settings["inputs"], settings["aliases"]])
            if self._pool is None or self._pool[0] != inputs:
                # Columns of one benchmark are adjacent: keep one pool.
                self._pool = (inputs, Pool(row for file in files for row in benchmark.read(file)))
                if note := self._pool[1].skipped_note:
                    self._progress(f"{column.key}{note}")
            return build_tasks(self._pool[1], data.build, benchmark.name, data.split)

        return self._build(column, settings, make_tasks)

    def _build(
        self, column: Column, settings: Mapping[str, Any], make_tasks: Callable[[], Iterable[Task]]
    ) -> Path:
        content = {  # without names and places of files
            **settings,
            "inputs": [item["sha256"] for item in settings.get("inputs", [])],
            "aliases": (settings.get("aliases") or {}).get("sha256"),
            "atommem": version("atommem"),
        }
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        path = self.folder / f"{column.key}-{digest[:20]}.parquet"
        if not path.is_file():
            self._progress(f"building the tasks of {column.key}: {path}")
            save_tasks(make_tasks(), path)
            write_provenance(path, {**settings, "digest": digest})
        return path
