"""The stage `tinker`: its loss against ours, and a run on a service in memory."""

import json
import tarfile
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import httpx
import numpy as np
import pytest

pytest.importorskip("tinker")
import tinker
import torch
from safetensors.torch import save_file

from atommem.config import load_config
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError
from atommem.integrations.tinker import ROW_MEAN, connect, loss_config, make_data
from atommem.integrations.tinker_train import LOSS_FNS, TinkerTrainer
from atommem.train.checkpoints import last_checkpoint
from atommem.train.console import METRICS_FILE, read_metrics
from atommem.train.errors import TrainingFault
from atommem.train.loops.update_step import policy_loss
from atommem.train.objective.rows import EpisodeSize, Row, Tokens, normalizer, token_weight
from atommem.train.settings import parse
from atommem.train.train_config import TrainConfig
from tests.fakes import word_level


def server_loss(datum: Any, logprobs: torch.Tensor, loss_fn: str, config: Any) -> torch.Tensor:
    """The token losses of the API's documentation."""
    inputs = {
        name: torch.tensor(value.data, dtype=torch.float64)
        for name, value in datum.loss_fn_inputs.items()
    }
    advantages, ratio = inputs["advantages"], torch.exp(logprobs - inputs["logprobs"])
    if loss_fn == "importance_sampling":
        return -ratio * advantages
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    if loss_fn == "cispo":
        return -clipped.detach() * logprobs * advantages
    return -torch.min(ratio * advantages, clipped * advantages)


@pytest.mark.parametrize("reduction", ["sum", ROW_MEAN])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo", "cispo"])
def test_make_data_gives_the_server_our_loss_and_gradient(tmp_path, loss_type, reduction):
    high = 5.0 if loss_type == "cispo" else 0.28
    args: Any = TrainConfig(
        output_dir=str(tmp_path), loss_type=loss_type, epsilon_high=high, report_to="none"
    )
    args.loss_fn = LOSS_FNS[loss_type]
    random = np.random.default_rng(0)
    sizes = [EpisodeSize(9, 2), EpisodeSize(4, 1)]
    rows = []
    for prompt, length, episode, advantage in ((5, 6, 0, 0.7), (8, 3, 0, 0.7), (3, 4, 1, -0.4)):
        weight = token_weight(length, sizes[episode], args.normalization)
        logprobs = random.uniform(-3, 0, length)
        rows.append(Row(range(prompt), range(length), logprobs, advantage, weight))
    over = normalizer(sizes, args.normalization, 16)
    tokens = Tokens.of(rows, torch.device("cpu"))
    start = tokens.logprobs.double() + torch.from_numpy(random.normal(0, 0.4, 13))

    ours = start.clone().requires_grad_()
    (policy_loss(args)(ours, tokens, tokens.old_logprobs)[0] / over).backward()
    theirs = start.clone().requires_grad_()
    data = make_data(rows, over, reduction)
    losses = []
    for datum, own in zip(data, theirs.split(tokens.counts), strict=True):
        before = torch.zeros(datum.model_input.length - len(own), dtype=torch.float64)
        of_row = server_loss(datum, torch.cat([before, own]), args.loss_fn, loss_config(args))
        losses.append(of_row.mean() if reduction == ROW_MEAN else of_row.sum())
    loss = torch.stack(losses)
    (loss.mean() if reduction == ROW_MEAN else loss.sum()).backward()
    assert theirs.grad is not None
    torch.testing.assert_close(theirs.grad, ours.grad, rtol=1e-5, atol=1e-8)


# A run ------------------------------------------------------------------------------------------

ANSWERS = [rf"<final_answer>\boxed{{{city}}}</final_answer>" for city in ("Oslo", "Rome")]
WORDS = ["Anna", "Oslo", *ANSWERS, "<eos>", "<pad>"]


def done(value: Any) -> Any:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Service:
    """A Tinker server in memory, whose samples depend on their seed and the updates so far."""

    def __init__(self, tokenizer: Any, base_model: str) -> None:
        self.tokenizer = tokenizer
        served = SimpleNamespace(model_name=base_model, max_context_length=None)
        self.get_server_capabilities = lambda: SimpleNamespace(supported_models=[served])
        url = done(SimpleNamespace(url="http://127.0.0.1/archive"))
        self.get_checkpoint_archive_url = lambda run, name: url
        self.create_rest_client = self.save_weights_and_get_sampling_client = lambda: self
        self.states: dict[str, int] = {}
        self.sent: list[Any] = []
        self.sampled: list[list[int]] = []
        self.updates = 0
        self.breaks = False
        self.reply_metrics = {"loss:sum": 0.0}

    def create_lora_training_client(self, **settings: Any) -> Self:
        assert settings["rank"] == 8
        return self

    def create_training_client_from_state_with_optimizer(self, path: str) -> Self:
        self.updates = self.states[path]
        return self

    async def sample_async(self, prompt: Any, count: int, settings: Any) -> Any:
        if self.breaks and (settings.seed % 2 or not settings.temperature):
            raise tinker.APIConnectionError(request=httpx.Request("POST", "http://127.0.0.1"))
        answer = ANSWERS[(settings.seed + self.updates) % 2]
        ids = [*self.tokenizer.encode(answer, add_special_tokens=False), settings.stop[0]]
        self.sampled.append(prompt.to_ints() + ids)
        sequence = SimpleNamespace(tokens=ids, logprobs=[-0.5] * len(ids), stop_reason="stop")
        return SimpleNamespace(sequences=[sequence])

    def forward_backward(self, data: Any, loss_fn: str, config: Any) -> Any:
        self.sent.append((data, loss_fn, config))
        outputs = [{"logprobs": d.loss_fn_inputs["logprobs"], "elementwise_loss": 0} for d in data]
        return done(SimpleNamespace(loss_fn_outputs=outputs, metrics=self.reply_metrics))

    def optim_step(self, adam: Any) -> Any:
        self.sent.append(adam)
        self.updates += 1
        return done(SimpleNamespace(metrics=None))

    def save_state(self, name: str) -> Any:
        if self.breaks and len(self.states) == 3:
            raise tinker.APIConnectionError(request=httpx.Request("POST", "http://127.0.0.1"))
        self.states[f"tinker://run/weights/{name}"] = self.updates
        return done(SimpleNamespace(path=f"tinker://run/weights/{name}"))

    def save_weights_for_sampler(self, name: str) -> Any:
        return done(SimpleNamespace(path=f"tinker://run/sampler_weights/{name}"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    word_level(WORDS).save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    document = Document("Anna", "Anna Oslo")
    tasks = [Task(str(i), (Question("Anna", ("Oslo",)),), (document,)) for i in range(8)]
    save_tasks(tasks, tmp_path / "tasks.jsonl")
    return folder


def make_trainer(model: Path, service: Service | None = None, **given: Any) -> TinkerTrainer:
    settings: dict[str, Any] = {
        **{"model_name_or_path": model, "data": model.parent / "tasks.jsonl", "lora_r": 8},
        **{"num_generations": 8, "per_device_train_batch_size": 16, "embedder": "hashing"},
        **{"chunking": "documents", "max_steps": 3, "max_grad_norm": 0.5, "save_steps": 1},
        **{"report_to": "none", "output_dir": model.parent / "out", **given},
    }
    resume = settings.pop("resume", None)
    argv = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    parsed = parse("tinker", argv)
    if service is None:
        service = Service(word_level(WORDS), str(model))
    return TinkerTrainer(parsed, service, resume)


@pytest.mark.slow
def test_run_trains_on_sampled_ids_and_resumes_where_it_was(model, monkeypatch):
    whole = make_trainer(model, output_dir=model.parent / "whole")
    whole.train()
    first = make_trainer(model, max_steps=2)
    first.train()
    checkpoint = last_checkpoint(model.parent / "out")
    assert checkpoint is not None
    rest = make_trainer(model, first.service, resume=str(checkpoint))
    rest.train()
    whole.close(), first.close(), rest.close()

    def lists(sent: Any) -> Any:
        data, *loss = sent
        named = [datum.loss_fn_inputs.items() for datum in data]
        return loss, [{name: value.data for name, value in items} for items in named]

    passes, steps = whole.service.sent[::2], whole.service.sent[1::2]
    assert [lists(p) for p in passes] == [lists(p) for p in rest.service.sent[::2]]
    assert [adam.learning_rate for adam in steps] == pytest.approx([1e-4, 2e-4 / 3, 1e-4 / 3])
    assert steps[0].grad_clip_norm == 0.5
    datum = passes[0][0][0]
    assert [*datum.model_input.to_ints(), datum.loss_fn_inputs["target_tokens"].data[-1]] in (
        whole.service.sampled
    )
    entries = read_metrics(model.parent / "out" / METRICS_FILE)
    assert [entry["step"] for entry in entries] == [1, 2, 3]
    assert {"reward", "em", "loss", "ratio", "tokens/completion"} <= entries[-1].keys()

    name, saved = "base_model.model.layers.0.mlp.up_proj.lora_A.weight", model.parent / "saved"
    saved.mkdir()
    (saved / "adapter_config.json").write_text('{"r": 8, "target_modules": null}')
    save_file({name: torch.zeros(1)}, saved / "adapter_model.safetensors")
    with tarfile.open(model.parent / "archive", mode="w:gz") as files:
        files.add(saved, "")
    content, request = (model.parent / "archive").read_bytes(), httpx.Request("GET", "http://a")
    response = httpx.Response(200, content=content, request=request)
    monkeypatch.setattr(httpx, "get", lambda url, **_: response)
    folder = rest.download("final", model.parent / "final")
    assert load_config(folder)["chunking"] == "documents"
    adapter = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    assert adapter["target_modules"] == ["up_proj"]


def test_run_leaves_failed_episodes_out_and_ends_with_a_checkpoint_if_most_fail(model):
    trainer = make_trainer(model, max_failed_fraction=1.0)
    trainer.service.breaks = True
    trainer.train()
    (entry,) = [e for e in trainer.state.log_history if e["step"] == 1]
    assert 0 < entry["failed"] < 16
    trainer.args.max_failed_fraction, trainer.state.max_steps = 0.1, 4
    with pytest.raises(TrainingFault, match=r"--resume continues from .*checkpoint-3"):
        trainer.train()  # nor can the server save
    trainer.close()
    held = {"eval_data": model.parent / "tasks.jsonl", "eval_strategy": "epoch"}
    held |= {"eval_temperature": 0.0, "save_strategy": "no", "max_steps": 5}
    evaluated = make_trainer(model, trainer.service, **held)
    evaluated.args.max_failed_fraction = 0.9
    with pytest.raises(TrainingFault, match="8 of 8 episodes of the evaluation failed"):
        evaluated.train()
    assert evaluated.state.global_step == 4  # an epoch: two tasks an update
    evaluated.close()


def test_run_refuses_a_server_that_divides_rows_by_their_length(model):
    trainer = make_trainer(model)
    trainer.service.reply_metrics = {}
    with pytest.raises(ConfigError, match="--server_reduction row_mean"):
        trainer.train()
    assert trainer.service.updates == 0
    trainer.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("beta", "0.1"), ("temperature", "0.7"), ("push_to_hub", "true"), ("loss_fn", "dro")],
        *[("use_dora", "true"), ("lora_dropout", "0.1"), ("load_in_4bit", "true")],
    ],
)
def test_settings_the_api_cannot_honour_are_refused(model, name, value):
    with pytest.raises(ConfigError, match=name):
        make_trainer(model, **{name: value})


def test_connect_never_sends_a_key_over_plain_http(monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret")
    with pytest.raises(ConfigError, match="plain http"):
        connect("http://gpu.example:8000")
    monkeypatch.delenv("TINKER_API_KEY")
    with pytest.raises(ConfigError, match="TINKER_API_KEY"):
        connect(None)
