"""Which model is served, and as it was trained; refused settings; `atommem serve` as a process."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from atommem import cli
from atommem.config import EmbedderConfig, MemoryConfig
from atommem.embedding import make_embedder
from atommem.environment import environment_config, make_factory
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task import chunk_task, joined_text
from atommem.errors import ConfigError
from atommem.eval.methods import Setup, make_method
from atommem.memory.log import Operation
from atommem.policy.contract import Sampling
from atommem.run import RunConfig
from atommem.serve.served_model import ServedModel
from atommem.servers.vllm_process import free_port
from atommem.train.rollout.rollouts import Rollouts
from tests.fakes import ScriptedPolicy, WordTokenizer
from tests.loopback import fake_vllm_python, make_checkpoint
from tests.serve.servers import items, note_taker, opened, scripted, until

pytestmark = pytest.mark.slow  # transformers is imported


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("demo") / "grpo")


def test_settings_that_change_the_prompt_are_refused(run):
    model = ServedModel.open(str(run), temperature=0.0, max_completion_length=4)
    assert (model.agent.sampling.max_completion_length, model.name) == (4, "grpo")
    with pytest.raises(ConfigError, match=r"retrieve_k=.*trained with .*Leave out --retrieve_k"):
        ServedModel.open(str(run), retrieve_k=9)
    with pytest.raises(ConfigError, match="retrieve_k=9: trained with 6"):
        ServedModel.open("smollm2", retrieve_k=9)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--host 0.0.0.0", "--keys FILE"),
        ("--active 0", "active=0: must be at least 1"),
        ("--vllm --policy http://host:8000", "http://host:8000 is a server already"),
        ("--db sqlite://", "Give sqlite:///FILE"),
    ],
)
def test_serve_without_keys_places_or_a_file_is_refused(flags, message, run, capsys):
    assert cli.main(["serve", "--policy", str(run), *flags.split()]) == 2
    assert message in capsys.readouterr().err


def test_serve_with_vllm_starts_answers_and_ends_on_sigterm(run, tmp_path):
    python = fake_vllm_python(tmp_path, text="<final_answer>\\boxed{Rome}</final_answer>")
    port, db = str(free_port()), f"sqlite:///{tmp_path / 'log.db'}"
    command = [sys.executable, "-m", "atommem.cli", "serve", "--policy", str(run), "--vllm"]
    command += ["--port", port, "--db", db]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "VLLM_PYTHON": python}
    pipe = subprocess.PIPE

    def ready() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=30).status_code == 200
        return False

    streams: Any = {"stdout": pipe, "stderr": pipe, "text": True, "cwd": tmp_path}
    with subprocess.Popen(command, env=environment, **streams) as process:
        try:
            assert process.stderr is not None
            url = next(line for line in process.stderr if "starting vLLM" in line).split()[5]
            until(ready, 240)  # it imports transformers, minutes on a busy machine
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
            answer = client.responses.create(model="grpo", input="Where does Ann live?")
            assert answer.output_text == "Rome"
            process.send_signal(signal.SIGTERM)
            log, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert '"route": "/v1/responses"' in log
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    assert "--model" in (tmp_path / "runs" / "serve" / f"vllm_{port}.log").read_text()


# One scripted policy: training, evaluation and serving show, write and answer the same tokens ---


MEMORY = MemoryConfig(retrieve_k=3, entry_tokens=12)


def without_names(operations: Iterable[Operation]) -> list[Operation]:
    """Sources without the name of the text or question, which only a served one has."""
    found = []
    for item in operations:
        if item.source and (piece := item.source.piece):
            chunk = None if piece.startswith("msg_q") else piece.split(", ")[-1]
            item = replace(item, source=replace(item.source, piece=chunk))
        found.append(item)
    return found


@pytest.mark.parametrize(("shown", "chunking"), [("reading", "tokens"), ("answering", "documents")])
async def test_training_evaluation_and_serving_give_the_same_tokens(shown, chunking, tmp_path):
    tokenizer = WordTokenizer()
    world = {"chunking": chunking, "chunk_tokens": 30, "questions_shown": [shown]}
    environment = environment_config("longdoc", **world)
    embedder = make_embedder(EmbedderConfig(embedder="hashing"))
    task = next(generate(WorldConfig(), 1, 3))
    policy = ScriptedPolicy(tokenizer, note_taker)

    sampling = Sampling(max_completion_length=200)
    run = RunConfig(memory=MEMORY, environment=environment, sampling=sampling)
    limits = {"episode_max_tokens": None, "episode_max_seconds": None, "max_inflight_tasks": -1}
    args: Any = SimpleNamespace(**limits)
    trained = await Rollouts(args, run, tokenizer, embedder).runner(policy).run(task)

    factory = make_factory(environment, tokenizer)
    setup = Setup(run, policy, embedder, factory)
    evaluated = await make_method("atommem", setup).run(task)
    for one, other in zip(evaluated.steps, trained.steps, strict=True):
        assert one.token_ids == other.token_ids
        assert one.operations == other.operations
    assert evaluated.answers == trained.answers

    settings = {"retrieve_k": 3, "entry_tokens": 12, "max_completion_length": 200, **world}
    model = scripted(policy=policy, **settings)
    (question,) = task.questions
    texts = chunk_task(task, tokenizer, "documents", 0)
    texts = texts if chunking == "documents" else [joined_text(task)]
    goal = {"goal": question.text} if shown == "reading" else {}
    with opened(tmp_path, model) as (server, http):
        body = {**items(*texts), "metadata": goal}
        name = http.post("/v1/conversations", json=body).raise_for_status().json()["id"]
        answer = server.client().responses.create(
            model="scripted", conversation=name, input=question.text
        )
        steps = http.get(f"/v1/conversations/{name}/steps", params={"limit": 100}).json()["data"]
        served = server.conversations.log.load(name, "local", "none")[1].operations

    assert len(steps) == len(trained.steps) > 3
    assert [step["prompt_ids"] for step in steps] == [step.prompt_ids for step in trained.steps]
    assert [step["token_ids"] for step in steps] == [step.token_ids for step in trained.steps]
    assert question.text in steps[-1]["prompt"]
    operations = [item for step in trained.steps for item in step.operations]
    assert without_names(served) == without_names(operations)
    assert answer.output_text == trained.answers[0]
