"""How many changes of the code do its tests notice? Uses mutmut's mutants.

    python scripts/mutation.py [FILE ...] [--n 16] [--seed 0] [--save M.json | --load M.json]

In a copy of the tree, one mutant after the other takes its file's place. The fast tests of its name
are run, then those of its room; a mutant that none of them notices is printed. The last line is
JSON. --load judges another tree's tests by the same mutants.
"""

from __future__ import annotations

import difflib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from common import command_line

FILES = """
atommem/grammar.py atommem/prompts.py atommem/memory/memory.py atommem/rollout.py
train/objective/rows.py train/objective/loss.py train/packing/micro_batch.py
envs/scoring/metrics.py envs/scoring/statistics.py
serve/conversation_log.py
"""
SECONDS = 240


def make_mutants(file: str, n: int, seed: int) -> list[str]:
    """Return up to `n` different mutants of a file, as patches."""
    from mutmut.mutation.file_mutation import create_mutations, deep_replace

    code = Path(file).read_text(encoding="utf-8")
    module, mutations, *_ = create_mutations(file, code)
    found: dict[str, str] = {}
    for mutation in random.Random(f"{seed}/{file}").sample(mutations, len(mutations)):
        text = deep_replace(module, mutation.original_node, mutation.mutated_node).code
        if mutation.contained_by_top_level_function is not None and text != code and len(found) < n:
            lines = code.splitlines(True), text.splitlines(True)
            found[text] = "".join(difflib.unified_diff(*lines, file, file))
    return list(found.values())


def stages(file: str) -> list[tuple[str, ...]]:
    """Return the tests of the file, then of its room."""
    path = Path(file)
    room = Path("tests", path.parts[0])
    own = tuple(sorted(map(str, room.rglob(f"test_{path.stem}*.py"))))
    return [own or (str(room),), (str(room),)]


def notice(tests: tuple[str, ...]) -> bool:
    """Return whether a test fails, or the tests do not end in time."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        import pytest

        os._exit(int(pytest.main(["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests])))
    for _ in range(SECONDS * 20):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) != 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("files", nargs="*", default=FILES.split())
    parser.add_argument("--n", type=int, default=16, help="mutants of each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--load", type=Path)
    args = parser.parse_args()
    if args.load:
        mutants = json.loads(args.load.read_text())
    else:
        of_file = {file: make_mutants(file, args.n, args.seed) for file in args.files}
        mutants = [(file, patch) for file, patches in of_file.items() for patch in patches]
    if args.save:
        args.save.write_text(json.dumps(mutants))
    killed, total = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        ignore = shutil.ignore_patterns(".git*", ".venv*")
        tree = shutil.copytree(".", Path(folder) / "tree", symlinks=True, ignore=ignore)
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        os.environ |= {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
        sys.dont_write_bytecode = True
        import torch  # noqa: F401  # once, for all that are forked
        import transformers  # noqa: F401

        if failing := [tests for file in args.files for tests in stages(file) if notice(tests)]:
            parser.error(f"these fail as they are: {failing}")
        for file, patch in mutants:
            whole = Path(file).read_text(encoding="utf-8")
            subprocess.run(["patch", "-p0", "-s"], input=patch, text=True, check=True)
            found = any(notice(tests) for tests in stages(file))
            Path(file).write_text(whole, encoding="utf-8")
            total[file] += 1
            killed[file] += found
            if not found:
                print(patch, flush=True)
    files = {file: f"{killed[file]} of {count}" for file, count in total.items()}
    result = {"killed": killed.total(), "mutants": total.total(), "files": files}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
