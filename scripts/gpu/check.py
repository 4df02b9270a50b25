"""Run the parts of `scripts/gpu_check`, each in a process with a time limit.

    scripts/gpu_check [--output_dir DIR] [--wheels DIR] [--only PART ...] [--minutes 8.9] [--tiny]

A part that fails, hangs or runs out of memory costs the others nothing but its time limit, and what
it found before is kept. DIR gets gpu_check.json, gpu_check.md (a table with the device's name) and
gpu_check.log. Exit status 0: all parts came to their end and no row is wrong. ``--tiny`` runs every
part on a CPU, on toy sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGES: tuple[str, ...] = ("torch", "transformers", "accelerate", "trl", "peft", "datasets")
PACKAGES += ("numpy", "triton", "vllm", "kernels")


@dataclass(frozen=True)
class Part:
    """A script beside this one with its arguments, and the seconds that are kept for it."""

    script: str
    arguments: tuple[str, ...]
    seconds: float


# What nothing else can tell comes first. On an H200 whose disk was cold, imports took 15 s and the
# attention's first kernels 20 s: limits of half the size ended every part early.
PARTS = {
    "mask": Part("mask_part.py", (), 70),
    "colocate": Part("engine_part.py", ("colocate",), 100),
    "attention": Part("attention_part.py", (), 80),
    "lora": Part("training_part.py", ("lora",), 80),
    "colocate_lora": Part("engine_part.py", ("colocate_lora",), 60),
    "fsdp2": Part("training_part.py", ("fsdp2",), 70),
    "server_lora": Part("engine_part.py", ("server_lora",), 50),
    "server_full": Part("engine_part.py", ("server_full",), 20),
}


def install(wheels: Path, target: Path) -> None:
    """Put all wheels of a folder, without what they need, into another folder; no network."""
    files = [str(path) for path in sorted(wheels.glob("*.whl"))]
    if not files:
        raise SystemExit(f"gpu_check: {wheels} holds no wheels. docs/gpu.md says how to get them.")
    options = ["-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), *files]
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise SystemExit(f"gpu_check: the wheels of {wheels} could not be installed (above).")


def name_entry_points(target: Path) -> None:
    """Write the entry points of this checkout, which is not installed, into `target`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = target / f"{project['name']}-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n", encoding="utf-8"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def machine() -> dict[str, Any]:
    import torch

    # Reversed: the first of a name is the one that is imported.
    known = {found.name.lower(): found.version for found in reversed([*distributions()])}
    versions = {name: known.get(name, "missing") for name in PACKAGES}
    found: dict[str, Any] = {"python": platform.python_version(), **versions}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {"device": properties.name, "memory_gb": round(properties.total_memory / 1e9, 1)}
        capability = f"{properties.major}.{properties.minor}"
        return found | {"capability": capability, "cuda": torch.version.cuda}
    return found | {"device": f"CPU ({platform.machine()})"}


def run_part(
    part: Part, seconds: float, tiny: bool, environment: dict[str, str], log: TextIO
) -> dict[str, Any]:
    """Run it; returns rows, seconds and status (``ended``, ``failed``, ``too slow``)."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "rows.jsonl"
        command = [sys.executable, str(HERE / part.script), *part.arguments, "--out", str(out)]
        started = time.monotonic()
        # A session of its own, so that what it starts ends with it.
        process = subprocess.Popen(
            [*command, *(["--tiny"] if tiny else [])],
            cwd=ROOT,
            env={**environment, "TMPDIR": scratch},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            status = "failed" if process.wait(timeout=max(1.0, seconds)) else "ended"
        except subprocess.TimeoutExpired:
            status = "too slow"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lines = out.read_text(encoding="utf-8").splitlines() if out.is_file() else []
        rows = [json.loads(line) for line in lines]
        return {"status": status, "seconds": round(time.monotonic() - started, 1), "rows": rows}


def table(found: dict[str, Any]) -> str:
    info = found["machine"]
    listed = ", ".join(f"{name} {info[name]}" for name in ("python", *PACKAGES))
    lines = [f"# {info['device']}", "", f"{listed}; {found['seconds']:.0f} s in all.", ""]
    lines += ["| part | what | figures | right |", "| --- | --- | --- | --- |"]
    for name, part in found["parts"].items():
        for row in part["rows"]:
            figures = ", ".join(
                f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
                for key, value in row["figures"].items()
            )
            verdict = {True: "yes", False: "**no**", None: ""}[row["ok"]]
            lines.append(f"| {name} | {row['what']} | {figures} | {verdict} |")
        lines.append(f"| {name} | the part {part['status']} | seconds {part['seconds']:g} | |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--output_dir", type=Path, default=Path("runs/gpu_check"))
    wheels = "folder of wheels that this machine lacks; installed beside it"
    parser.add_argument("--wheels", type=Path, help=wheels)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts")
    parser.add_argument("--minutes", type=float, default=8.9, help="for everything (%(default)s)")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, on the CPU")
    arguments = parser.parse_args(argv)
    started = time.monotonic()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as target:
        if arguments.wheels:
            install(arguments.wheels, Path(target))
        if not list(distributions(name="atommem")):
            name_entry_points(Path(target))
        sys.path.append(target)
        paths = [str(ROOT), str(HERE), target, os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TORCHINDUCTOR_CACHE_DIR": str(Path(target) / "kernels"),  # compiled once for all parts
        }
        if arguments.tiny:
            environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        found: dict[str, Any] = {"tiny": arguments.tiny, "machine": machine(), "parts": {}}
        print(f"{found['machine']['device']}: {', '.join(arguments.only)}", flush=True)
        with (arguments.output_dir / "gpu_check.log").open("w", encoding="utf-8") as log:
            for place, name in enumerate(arguments.only, start=1):
                print(f"=== {name}", file=log, flush=True)
                # What earlier parts have left over, later ones may use, up to twice their limit.
                left = arguments.minutes * 60 - (time.monotonic() - started)
                left -= sum(PARTS[later].seconds for later in arguments.only[place:])
                limit = min(2 * PARTS[name].seconds, left)
                part = run_part(PARTS[name], limit, arguments.tiny, environment, log)
                found["parts"][name] = part
                found["seconds"] = time.monotonic() - started
                # After every part: whoever stops this one keeps what is there.
                text = json.dumps(found, indent=2) + "\n"
                (arguments.output_dir / "gpu_check.json").write_text(text, encoding="utf-8")
                (arguments.output_dir / "gpu_check.md").write_text(table(found), encoding="utf-8")
                print(f"{name}: {part['status']} after {part['seconds']:g} s", flush=True)
    print(table(found))
    rows = [row for part in found["parts"].values() for row in part["rows"]]
    ended = all(part["status"] == "ended" for part in found["parts"].values())
    return 0 if ended and not any(row["ok"] is False for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
