"""What goes to the hub: read from the requests that the real client sends to a server of ours."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from atommem.config import MemoryConfig, load_config, save_config
from atommem.train.loops.launch import push
from atommem.train.resume.checkpoint import save_final
from atommem.train.resume.checkpoint_files import MARKER
from atommem.train.resume.faults import CheckpointError
from tests.loopback import Quiet, answering, listening
from tests.train.harness import make_config, make_trainer
from tests.train.toys import make_model, mixed_episode

REPO = "someone/policy"


@contextmanager
def hub(
    monkeypatch: pytest.MonkeyPatch, status: int = 200
) -> Iterator[list[tuple[str, dict[str, bytes]]]]:
    """The commits that a hub was sent: title, and files by path."""
    commits: list[tuple[str, dict[str, bytes]]] = []

    class Handler(Quiet):
        def do_POST(self) -> None:  # noqa: N802  # the name that http.server calls
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.headers["Authorization"] == "Bearer hf_secret"
            answering(self.answer(self.path, body), "application/json", status)(self, b"")

        def answer(self, path: str, body: bytes) -> dict[str, Any]:
            url = f"http://{self.headers['Host']}/{REPO}"
            if path == "/api/repos/create":
                return {"url": url}
            if path.startswith(f"/api/models/{REPO}/preupload/"):
                how = {"uploadMode": "regular", "shouldIgnore": False}
                return {
                    "files": [{"path": one["path"], **how} for one in json.loads(body)["files"]]
                }
            if path.startswith(f"/api/models/{REPO}/commit/"):
                head, *lines = (json.loads(line) for line in body.splitlines())
                files = [line["value"] for line in lines if line["key"] == "file"]
                contents = {file["path"]: base64.b64decode(file["content"]) for file in files}
                commits.append((head["value"]["summary"], contents))
                return {"success": True, "commitOid": "0" * 40, "commitUrl": f"{url}/commit/0"}
            return {"errors": [], "warnings": []}  # of the card's head

    with listening(Handler) as host:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr(
            "transformers.utils.hub._hf_api", HfApi(f"http://{host}", token="hf_secret")
        )
        yield commits


def trained(folder: Path, **settings: Any) -> Any:
    config = make_config(
        folder, push_to_hub=True, hub_model_id=REPO, learning_rate=1e-3, **settings
    )
    trainer, _, _ = make_trainer(
        make_model(), config, mixed_episode, settings=[MemoryConfig(capacity=5)]
    )
    trainer.train()
    return trainer


# Between two updates on a rollout, so that its tokens, which are texts of the data, are in the checkpoint.
SAVES = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1, "steps_per_generation": 2}
MODEL = {
    "README.md",
    "atommem_config.json",
    "config.json",
    "model.safetensors",
    "tokenizer_config.json",
}


def test_the_model_goes_with_card_and_settings_and_nothing_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with hub(monkeypatch) as commits:
        trainer = trained(out, hub_strategy="end", hub_always_push=True, **SAVES)
        for private in (
            "wandb/run/x",
            "traces/step-1/x",
            "samples/step-1.txt",
            "failed/step-1/x",
            "eval/traces/x",
        ):
            (out / private).parent.mkdir(parents=True, exist_ok=True)
            (out / private).write_text("Ann lives in Rome")
        save_final(trainer)
        assert not commits  # no checkpoint, and what is saved is not yet whole
        push(trainer)
    ((title, files),) = commits
    assert title == "End of training"
    assert files.keys() >= MODEL
    assert not any(b"Ann lives in Rome" in content for content in files.values())
    assert not [name for name in files if name.startswith("checkpoint")]
    assert files["model.safetensors"] == (out / "model.safetensors").read_bytes()
    assert json.loads(files["atommem_config.json"])["capacity"] == 5
    card = files["README.md"].decode()
    assert "atommem" in card
    assert f"atommem eval --policy {REPO} " in card
    assert f"vllm serve {REPO} " in card


@pytest.mark.parametrize(("strategy", "kept"), [("every_save", False), ("all_checkpoints", True)])
def test_checkpoints_go_as_the_strategy_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, kept: bool
) -> None:
    with hub(monkeypatch) as commits:
        trainer = trained(tmp_path, hub_strategy=strategy, hub_always_push=True, **SAVES)
        trainer._finish_current_push()
    by_title = dict(commits)
    model = by_title.pop("Training in progress, step 1")
    assert model.keys() >= MODEL
    state = ("optimizer", "scheduler", "rng_state", "rollout", "trainer_state")
    assert not [name for name in model if name.startswith(state)]
    assert load_config(tmp_path / "checkpoint-1") == json.loads(model["atommem_config.json"])
    if kept:
        whole = by_title.pop("Training in progress, step 1, checkpoint")
        assert {
            f"checkpoint-1/{name}" for name in (*MODEL, "optimizer.pt", "rollout_0.pt", MARKER)
        } <= whole.keys()
    assert not by_title


def test_a_hub_that_refuses_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub(monkeypatch):
        trainer = trained(tmp_path)
    save_final(trainer)
    with (
        hub(monkeypatch, status=403),
        pytest.raises(CheckpointError, match="could not be pushed") as refused,
    ):
        push(trainer)
    assert str(tmp_path) in str(refused.value)
    assert "--resume" in str(refused.value)
    assert (tmp_path / "model.safetensors").is_file()


def test_a_model_on_the_hub_has_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save_config(tmp_path, MemoryConfig(dialect="released"))
    asked: list[tuple[str, str, str | None]] = []

    def download(
        repo: str, name: str, revision: str | None = None, local_files_only: bool = False
    ) -> str:
        asked.append((repo, name, revision))
        return str(file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert load_config(f"{REPO}@v1")["dialect"] == "released"
    for path in (
        "./someone/policy",
        "policy",
        "/someone/policy",
        "runs/some/policy",
        str(tmp_path / "not/there"),
    ):
        assert load_config(path) == {}
    assert asked == [(REPO, "atommem_config.json", "v1")]
    monkeypatch.undo()
    assert load_config(REPO) == {}, "no test asks the hub"
