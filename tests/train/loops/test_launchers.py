"""The shipped launchers start real training, here with gloo."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast

from atommem.config import save_config
from atommem.environment import environment_config
from atommem.envs.task_files import save_tasks
from atommem.envs.web.net.recording import Recording
from atommem.train.checkpoints import list_checkpoints
from tests.fakes import word_level
from tests.train.harness import ROOT, launch
from tests.train.loops.test_end_to_end import MEMORY, SETTINGS, make_tasks
from tests.train.toys import make_model

pytestmark = pytest.mark.slow


def train(folder: Path, flags: str) -> subprocess.CompletedProcess[str]:
    """`accelerate launch` with configs/accelerate/ddp.yaml, two processes, and the real command."""
    command = f"""accelerate.commands.launch --config_file {ROOT}/configs/accelerate/ddp.yaml
        --num_processes 2 --mixed_precision no --main_process_port 0 -m atommem.cli train grpo
        --model_name_or_path model --use_cpu --data tasks.jsonl --report_to none {flags}"""
    return launch(folder, *command.split(), OMP_WAIT_POLICY="passive")


def look_up(word: str) -> str:
    """Look a word up.

    Args:
        word: The word.
    """
    return f"{word} is a city"


def make_calling_tokenizer(words: int) -> PreTrainedTokenizerFast:
    """Make a tokenizer whose tokens are whole calls or answers."""
    calls = [
        f'<tool_call>{{"name":"look_up","arguments":{{"word":"w{number}"}}}}</tool_call>'
        for number in range(words)
    ]
    answers = [
        f"<final_answer>\\boxed{{c{number % 2}}}</final_answer>{number}"
        for number in range(words // 2)
    ]
    return word_level(["<unk>", *calls, *answers, "<eos>", "<pad>"], unk_token="<unk>")


def spent(recording: Path) -> int:
    """Calls that were paid for."""
    file = Recording(recording, read_only=True)
    ((calls, cost),) = file.spent().values()
    file.close()
    assert cost == pytest.approx(0.5 * calls)
    return calls


def test_spent_budget_stops_two_processes_that_resume_with_more(
    tmp_path: Path,
) -> None:
    """They pay from one recording; what comes of it is what had come of it without a limit."""
    tokenizer, folder = make_calling_tokenizer(200), tmp_path / "model"
    make_model(vocabulary=len(tokenizer), spread=0.1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    web = environment_config("web", tools=["tests.train.loops.test_launchers:look_up"], max_calls=2)
    save_config(folder, MEMORY, SETTINGS[1], SETTINGS[3], web)
    save_tasks(make_tasks(), tmp_path / "tasks.jsonl")
    flags = """--num_generations 4 --per_device_train_batch_size 4 --max_steps 4 --save_steps 10
        --seed 1 --environment web --call_prices look_up=0.5 --learning_rate 1e-2
        --max_completion_length 1 --resume"""
    whole = train(tmp_path, f"{flags} --output_dir whole --recording whole.db")
    assert whole.returncode == 0, whole.stderr[-3000:]
    enough = spent(tmp_path / "whole.db")
    assert enough > 20
    calls = enough // 2
    limited = train(tmp_path, f"{flags} --output_dir out --recording c.db --call_budget {calls}")
    assert limited.returncode != 0
    assert spent(tmp_path / "c.db") == calls
    assert f"call_budget={calls} is spent" in limited.stderr, limited.stderr[-3000:]
    assert limited.stderr.count("--resume continues from the last checkpoint") == 2, limited.stderr[
        -3000:
    ]
    assert list_checkpoints(tmp_path / "out")[-1].name in (
        "checkpoint-1",
        "checkpoint-2",
        "checkpoint-3",
    )
    assert not (tmp_path / "out" / "failed").exists()
    done = train(tmp_path, f"{flags} --output_dir out --recording c.db")
    assert done.returncode == 0, done.stderr[-3000:]
    ours, expected = (load_file(tmp_path / run / "model.safetensors") for run in ("out", "whole"))
    assert all(torch.equal(ours[name], weight) for name, weight in expected.items())
    # Calls in flight at the stop, and equal calls of both ranks, may be made twice.
    assert abs(spent(tmp_path / "c.db") - enough) <= 4
