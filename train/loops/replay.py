"""``atommem train replay DIR``: an update that stopped a run, once more on the very episodes that it had.

`atommem.train.resume.faults.FailedStep` wrote them. The run is set up as it was, continued from the checkpoint before
the update, and given the recorded episodes instead of new ones: rows, advantages, loss and gradients come out as they
did.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from accelerate import PartialState
from transformers import TrainerCallback

from atommem.activity import ActivityClock
from atommem.arguments import Parser
from atommem.config import MemoryConfig
from atommem.environment import find_environment
from atommem.episode import Episode
from atommem.errors import ConfigError, DataError
from atommem.policy.contract import Sampling
from atommem.trace import read_trace
from atommem.train.loops.grpo import grpo_trainer
from atommem.train.resume.faults import EPISODES_FOLDER, REPORT_FILE, DivergedError
from atommem.train.rollout.backend import Backend
from atommem.train.settings import parse

_SHOWN = 8


@dataclass(frozen=True)
class FailedRun:
    """A ``failed/step-N`` folder, read.

    Attributes:
        update: The update that failed, from 0.
        error: What happened.
        checkpoint: The state before the update; None if it was the first one.
        arguments, config: The command line, and its YAML file's contents.
        episodes: All ranks' episodes by (task id, sample).
    """

    update: int
    error: str
    checkpoint: str | None
    arguments: list[str]
    config: dict[str, Any] | None
    episodes: dict[tuple[str, int], Episode] = field(default_factory=dict)


def read_failed(folder: str | Path) -> FailedRun:
    """Read a ``failed/step-N`` folder.

    Raises:
        DataError: It is none, or holds no episodes.
    """
    path = Path(folder) / REPORT_FILE
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        settings = report["settings"]
        run = FailedRun(
            report["update"],
            report["error"],
            report["checkpoint"],
            settings["arguments"],
            settings["config"],
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path} cannot be read ({error!r}): give a failed/step-N folder of a GRPO run."
        ) from error
    for trace in sorted((Path(folder) / EPISODES_FOLDER).glob("*.jsonl")):
        episode = read_trace(trace).episode
        run.episodes[episode.task_id, episode.sample] = episode
    if not run.episodes:
        raise DataError(
            f"{folder} holds no episodes: the run stopped before the update had any ({run.error})."
        )
    return run


class RecordedRunner:
    """Stands where an `EpisodeRunner` would and returns recorded episodes.

    Args:
        episodes: By task id and sample.
        environments: What the tasks belong to (an environment's class will do: no episode is run).
        memory: The settings that the episodes ran under.
    """

    def __init__(
        self, episodes: Mapping[tuple[str, int], Episode], environments: Any, memory: MemoryConfig
    ) -> None:
        self.episodes = episodes
        self.max_in_flight = None
        nothing = SimpleNamespace(close=_nothing)
        self.agent = SimpleNamespace(
            policy=nothing,
            embedder=nothing,
            sampling=Sampling(),
            activity=ActivityClock(),
            environments=environments,
            memory=memory,
        )

    async def run_all(
        self, jobs: Sequence[tuple[Any, int]], on_episode: Any = None
    ) -> list[Episode]:
        """The episode of each ``(task, sample)``.

        Raises:
            DataError: One was not recorded: the data or the settings are not those of the run.
        """
        try:
            return [self.episodes[task.id, sample] for task, sample in jobs]
        except KeyError as error:
            raise DataError(
                f"the episode {error.args[0]} was not recorded: data, seed and group size have to be the run's."
            ) from error


class Inspection(TrainerCallback):
    """Looks at one update and stops the run after it.

    Attributes:
        bad: Names of the parameters whose gradients are not finite.
    """

    def __init__(self) -> None:
        self.bad: list[str] = []

    def watch(self, trainer: Any) -> None:
        """Look at the gradients as soon as they are there: clipping by a norm that is NaN makes all of them NaN."""
        training_step = trainer.training_step

        def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
            loss = training_step(model, *args, **kwargs)
            self.bad = [
                name
                for name, p in model.named_parameters()
                if p.grad is not None and not bool(p.grad.isfinite().all())
            ]
            return loss

        trainer.training_step = watched

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called after the update."""
        control.should_training_stop, control.should_save, control.should_evaluate = (
            True,
            False,
            False,
        )


def main(argv: Sequence[str]) -> int:
    """Entry point of ``atommem train replay``.

    Raises:
        AtomMemError: The folder or a setting is wrong.
    """
    parser = Parser("atommem train replay", __doc__)
    parser.add_argument("folder", help="A failed/step-N folder.")
    overrides = list(argv[1:])
    run = read_failed(parser.parse_args(list(argv[:1])).folder)
    replay(run, overrides)
    return 0


def replay(run: FailedRun, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Repeat the update and print what came out; what is written besides is removed.

    Args:
        run: What was recorded.
        overrides: Flags on top of the run's own (``--learning_rate 1e-7``).

    Returns:
        ``loss`` and ``grad_norm`` as logged (``grad_norm`` None when the update diverged again), ``error``, and
        ``not_finite``: parameters whose gradient is not.

    Raises:
        ConfigError: The checkpoint before the update is gone, or other updates began its episodes.
    """
    if run.checkpoint is not None and not Path(run.checkpoint).is_dir():
        raise ConfigError(
            f"the state before the update was {run.checkpoint}, which is gone: restore it."
        )
    with tempfile.TemporaryDirectory() as scratch:
        return _replay(run, [*run.arguments, *overrides], Path(scratch))


def _replay(run: FailedRun, arguments: list[str], scratch: Path) -> dict[str, Any]:
    if run.config is not None:
        (scratch / "config.yaml").write_text(yaml.safe_dump(run.config), encoding="utf-8")
        arguments = ["--config", str(scratch / "config.yaml"), *arguments]
    processes = PartialState().num_processes
    args = parse("grpo", arguments).args
    if args.rerolls:
        raise ConfigError(
            f"the run had rerolls {args.rerolls}, which no record has: it cannot be repeated."
        )
    if args.carried_groups:
        raise ConfigError(
            f"the run had carried_groups {args.carried_groups}: the update trained on groups that the one before it "
            "began, and cannot be repeated by itself."
        )
    total = (args.generation_batch_size or 0) // (args.steps_per_generation or 1)
    arguments += [
        "--per_device_train_batch_size",
        str(total // processes),
        "--output_dir",
        str(scratch),
    ]
    # As it was sampled, so that it is corrected: there is no engine.
    settings = parse("grpo", [*arguments, "--report_to", "none", "--save_strategy", "no"])
    inspection = Inspection()
    runner: Any = RecordedRunner(
        run.episodes, find_environment(settings.run.environment.environment), settings.run.memory
    )
    trainer = grpo_trainer(settings, make_backend=lambda _: Backend(runner), callbacks=[inspection])
    inspection.watch(trainer)
    print(f"update {run.update + 1} stopped the run: {run.error}")
    outcome: dict[str, Any] = {"loss": math.nan, "grad_norm": None, "error": None, "not_finite": []}
    try:
        trainer.train(resume_from_checkpoint=run.checkpoint)
    except DivergedError as error:
        outcome |= {"error": str(error.__cause__), "not_finite": inspection.bad}
        print(
            f"it diverged again; {len(inspection.bad)} parameters have gradients that are not finite, the first ones:"
        )
        for name in inspection.bad[:_SHOWN]:
            print(f"  {name}")
    else:
        logged = next(entry for entry in reversed(trainer.state.log_history) if "loss" in entry)
        outcome |= {"loss": logged["loss"], "grad_norm": logged.get("grad_norm")}
        print(
            f"this time it went through: loss {logged['loss']:.6g}, gradient norm {logged.get('grad_norm')}"
        )
    finally:
        trainer.close()
    return outcome


async def _nothing() -> None:
    return None
