"""Do two processes train what one trains?

    python scripts/bench_ranks.py [--modes ddp fsdp2 zero3]

Three updates of a small random Qwen3 on the synthetic world, every process sampling its own episodes, on CPU (gloo):
alone, and with the same tasks and seeds on two processes under

    ddp     accelerate's, as configs/accelerate/ddp.yaml
    fsdp2   accelerate's own preparation, which ends in torch's `fully_shard`. accelerate offers it to accelerators
            only; the bench tells it that these CPU processes are one
    zero3   DeepSpeed stage 3, where it is installed (pip install deepspeed; its CPU build needs a C++ compiler)

Each then goes on from its checkpoint after update 2, and has to end where it ended. A reward is the share of even
token ids that an episode sampled, so that a random model's groups have variance. The last line is one JSON object; the
exit code is 0 if and only if its "holds" is true: all parameters agree with those of the run alone, and those of the
resumed run with those of the one that was not stopped, to 1e-5. What is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from quick import add_quick

LIMIT = 1e-5
UPDATES = 3
MODES = ("ddp", "fsdp2", "zero3")
ZERO3 = {
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}


def use_fsdp2_on_cpu() -> None:
    """Make accelerate prepare CPU processes as it prepares GPUs under FSDP2."""
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    os.environ.update(
        ACCELERATE_USE_FSDP="true",
        FSDP_VERSION="2",
        FSDP_AUTO_WRAP_POLICY="TRANSFORMER_BASED_WRAP",
        FSDP_TRANSFORMER_CLS_TO_WRAP="Qwen3DecoderLayer",
        FSDP_CPU_RAM_EFFICIENT_LOADING="false",
    )
    original = AcceleratorState.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.distributed_type in (DistributedType.MULTI_CPU, DistributedType.NO):  # two, or one
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = kwargs.get("fsdp_plugin") or FullyShardedDataParallelPlugin()

    AcceleratorState.__init__ = init


def worker(mode: str, out: Path, resume: bool) -> None:
    """Train, or go on from the checkpoint after update 2; the first process writes parameters and rewards to `out`."""
    if mode == "fsdp2":
        use_fsdp2_on_cpu()
    from accelerate import PartialState
    from toy_training import WORLD, toy_trainer

    from atommem.environment import environment_config
    from atommem.envs.synthetic.world import generate

    rewards: list[float] = []
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = toy_trainer(
        {
            "output_dir": str(out.parent / mode),
            "save_strategy": "steps",
            "save_steps": 2,
            "per_device_train_batch_size": 16 // processes,
            "num_generations": 4,
            "max_steps": UPDATES,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "micro_batch_tokens": 400,
            "deepspeed": ZERO3 if mode == "zero3" else None,
        },
        list(generate(WORLD, 16, 0)),
        environment_config("longdoc", chunking="documents", max_reads=0),
        max_tokens=8,
        on_episodes=lambda _, episodes: rewards.extend(episode.reward or 0.0 for episode in episodes),
    )
    start = {name: full(weight) for name, weight in trainer.model.named_parameters()}
    trainer.train(resume_from_checkpoint=str(out.parent / mode / "checkpoint-2") if resume else None)
    trained = trainer.accelerator.unwrap_model(trainer.model)
    weights = {name: full(weight) for name, weight in trained.named_parameters()}
    if PartialState().is_main_process:
        moved = max(float((weights[name] - start[name]).abs().max()) for name in start)
        kind = type(next(iter(trainer.model.parameters()))).__name__
        torch.save({"weights": weights, "rewards": rewards, "moved": moved, "kind": kind}, out)


def full(weight: Any) -> torch.Tensor:
    """The whole of a parameter that may be sharded. Collective."""
    if hasattr(weight, "full_tensor"):
        return weight.full_tensor().detach().clone()
    if hasattr(weight, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([weight]):
            return weight.detach().clone()
    return weight.detach().clone()


def launch(mode: str, folder: Path, resume: bool = False) -> dict[str, Any]:
    """Run the processes of one mode and read what they trained."""
    out = folder / f"{mode}.pt"
    command = [sys.executable, __file__, "--worker", mode, "--out", str(out), *(["--resume"] if resume else [])]
    if mode != "alone":
        command[1:2] = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", __file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{mode} failed:\n{done.stderr[-3000:]}")
    return torch.load(out)


def main(argv: list[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    add_quick(parser, modes=["ddp"])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.worker:
        worker(arguments.worker, arguments.out, arguments.resume)
        return 0
    result: dict[str, Any] = {"bench": "ranks", "updates": UPDATES}
    holds = True
    with tempfile.TemporaryDirectory() as name:
        alone = launch("alone", Path(name))
        print(f"alone   parameters moved by up to {alone['moved']:.1e}; mean reward {_mean(alone['rewards']):.3f}")
        result["moved"] = alone["moved"]
        for mode in arguments.modes:
            if mode == "zero3" and find_spec("deepspeed") is None:
                print("zero3   not run: deepspeed is not installed")
                result[mode] = "not run: deepspeed is not installed"
                continue
            both = launch(mode, Path(name))
            resumed = launch(mode, Path(name), resume=True)
            difference, after = _difference(both, alone), _difference(resumed, both)
            print(
                f"{mode:6}  largest difference {difference:.1e} ({both['kind']} on two processes); "
                f"resumed after update 2: {after:.1e} from not stopped"
            )
            result[mode] = {"difference": difference, "resumed": after}
            holds &= max(difference, after) <= LIMIT
    print(json.dumps({**result, "limit": LIMIT, "holds": holds}))
    return 0 if holds else 1


def _difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    return max(float((first["weights"][name] - weight).abs().max()) for name, weight in second["weights"].items())


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    sys.exit(main())
