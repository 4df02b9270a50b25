"""Mem0: the real package, where it is installed, over a scripted policy."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from atommem.actions import ProblemReason
from atommem.errors import ConfigError, OutageError
from atommem.eval.eval_cli import main
from atommem.eval.methods import make_method
from atommem.eval.methods.mem0 import DATE, at_fixed_date
from atommem.memory.contents import replay
from tests.eval.methods.toys import TASK, TextPolicy, make_setup, right

# Not importorskip: it would import mem0 before its telemetry is switched off.
needs_mem0 = pytest.mark.skipif(find_spec("mem0") is None, reason="mem0ai is not installed")
ROOT = Path(__file__).resolve().parents[3]

NO_NETWORK = """
import asyncio, os, sys

reached = []

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg"):
        reached.append((event, arguments[1:]))
        raise OSError(f"no network: {event}")

sys.addaudithook(refuse)
assert not [name for name in os.environ if "KEY" in name]

from atommem.eval.methods import make_method
from tests.eval.methods.test_mem0 import script
from tests.eval.methods.toys import TASK, make_setup

setup, policy = make_setup(script)
episode = asyncio.run(make_method("mem0", setup).run(TASK))
assert (episode.reward, episode.steps[-1].store_size, len(policy.prompts)) == (1.0, 4, 6), episode
assert "mem0" in sys.modules and reached == [], reached
"""


def script(prompt: str) -> str:
    """Remembers one statement of every chunk."""
    if "What you remember" in prompt:
        return right(prompt)
    found = "Bran lives in Port" if "Bran lives in Port." in prompt else f"a statement of {len(prompt)} letters"
    return json.dumps({"memory": [{"id": "0", "text": found}]})


def reply_of(reply: str) -> tuple[object, TextPolicy]:
    """A setup whose model replies so to every chunk."""
    return make_setup(lambda prompt: right(prompt) if "What you remember" in prompt else reply)


@pytest.mark.parametrize("installed", [None, "1.0.2", "2.1.9", "3.0"])
def test_a_missing_package_is_named_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, installed: str | None
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr("atommem.eval.methods.mem0.version", version)
    wrong = "not installed" if installed is None else f"not the {installed} installed"
    with pytest.raises(ConfigError, match=rf"{wrong}: pip install 'atommem\[mem0\]'"):
        main(["--policy", "no/such/folder", "--data", "no/such/file", "--out", "out", "--method", "mem0"])
    with pytest.raises(ConfigError, match=wrong):
        make_method("mem0", make_setup()[0])


def test_a_broken_package_and_spacy_without_its_model_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atommem.eval.methods.mem0.version", lambda name: "2.10.1")
    monkeypatch.setattr("atommem.eval.methods.mem0.find_spec", lambda name: True if name == "spacy" else None)
    with pytest.raises(ConfigError, match="python -m spacy download en_core_web_sm"):
        make_method("mem0", make_setup()[0])
    monkeypatch.setattr("atommem.eval.methods.mem0.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "mem0.memory.telemetry", None)
    with pytest.raises(ConfigError, match=r"cannot be imported .*pip install 'atommem\[mem0\]'"):
        make_method("mem0", make_setup()[0])


@needs_mem0
def test_a_fresh_process_needs_no_network_no_key_and_no_home(tmp_path: Path) -> None:
    # In a network namespace of its own, where the machine gives one, not even loopback is up.
    unshare = ["unshare", "--map-root-user", "--net"]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        unshare = []
    (tmp_path / "scratch").mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path / "scratch")}
    command = [*unshare, sys.executable, "-c", NO_NETWORK]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"]


@needs_mem0
async def test_what_it_stores_and_finds_is_recorded() -> None:
    setup, policy = make_setup(script)
    episode = await make_method("mem0", setup).run(TASK)
    assert episode.reward == 1.0
    assert [step.prompt for step in episode.steps] == policy.prompts
    assert len(policy.prompts) == 4 + 2
    entries = replay(operation for step in episode.steps for operation in step.operations).entries
    assert entries[4].text == "Bran lives in Port"
    assert "- Bran lives in Port" in policy.prompts[4]
    assert episode.steps[4].view.retrieved[0].entry_id == 4
    assert [step.store_size for step in episode.steps] == [1, 2, 3, 4, 4, 4]
    # Before it stores something, it looks for what it has of the kind: a retrieval as that for a question is.
    reads = [op for step in episode.steps for op in step.operations if op.kind == "read"]
    assert [op.step for op in reads] == [0, 1, 2, 3, 4, 5]
    assert "Moss grows on stones." in str(reads[0].after)
    assert [op.after for op in reads[4:]] == [question.text for question in TASK.questions]


@needs_mem0
async def test_its_prompts_are_the_same_on_every_day() -> None:
    setup, policy = make_setup(script)
    await make_method("mem0", setup).run(TASK)
    tail = f"## Observation Date\n{DATE}\n\n## Current Date\n{DATE}\n\n# Output:"
    assert all(tail in prompt for prompt in policy.prompts[:4])
    assert at_fixed_date("## Observation Date\n1999-01-01\n\n## Observation Date\n2026-11-22") == (
        f"## Observation Date\n1999-01-01\n\n## Observation Date\n{DATE}"
    )
    assert at_fixed_date("on 1999-01-01") == "on 1999-01-01"


@needs_mem0
async def test_two_episodes_share_nothing() -> None:
    setup, _ = make_setup(script)
    first, second = await make_method("mem0", setup).run_all([(TASK, 0), (TASK, 1)])
    assert [step.store_size for step in first.steps] == [step.store_size for step in second.steps] == [1, 2, 3, 4, 4, 4]


@needs_mem0
@pytest.mark.parametrize("part", ["policy", "embedder"])
async def test_outages_come_through_mem0_at_once(part: str) -> None:
    setup, policy = make_setup(script)
    if part == "policy":
        policy.script = lambda prompt: OutageError("gone")
    else:
        setup.embedder.fail = OutageError("gone")  # type: ignore[attr-defined]
    assert (await make_method("mem0", setup).run(TASK)).error == "gone"
    calls = setup.embedder.calls  # type: ignore[attr-defined]
    assert (len(policy.prompts), len(calls)) == ((1, 1) if part == "policy" else (0, 1))


@needs_mem0
async def test_an_outage_while_a_reply_is_stored_is_not_tried_text_by_text() -> None:
    reply = json.dumps({"memory": [{"text": str(number)} for number in range(20)]})

    def script(prompt: str) -> str:
        setup.embedder.fail = OutageError("gone")  # type: ignore[attr-defined]
        return reply

    setup, _ = make_setup(script)
    assert (await make_method("mem0", setup).run(TASK)).error == "gone"
    assert len(setup.embedder.calls) == 2  # type: ignore[attr-defined]


@needs_mem0
@pytest.mark.parametrize(
    ("reply", "stored", "malformed"),
    [
        ("no", [], True),
        ("", [], True),
        ('{"memory": [' * 5000, [], True),
        ("[1]", [], False),
        ('{"memory": "text"}', [], False),
        ('{"memory": {"text": "x"}}', [], False),
        ('{"memory": ["x", 1, {"text": 5}, {"text": ["y"]}, {"text": " "}]}', [], False),
        ('{"memory": [{"text": {}}, {"text": "z", "attributed_to": [1]}]}', ["z"], False),
        ('Here: ```json\n{"memory": [{"text": "half \\ud800"}]}\n```', ["half ?"], False),
        ('{"memory": [{"text": "same"}, {"text": "same"}]}', ["same"], False),
    ],
)
async def test_no_reply_raises(reply: str, stored: list[str], malformed: bool) -> None:
    setup, _ = reply_of(reply)
    episode = await make_method("mem0", setup).run(replace(TASK, documents=TASK.documents[:1]))  # type: ignore[arg-type]
    assert episode.reward == 1.0
    entries = replay(operation for step in episode.steps for operation in step.operations).entries
    assert [entry.text for entry in entries.values()] == stored
    assert [problem.reason for problem in episode.steps[0].problems] == [ProblemReason.NOT_JSON] * malformed


@needs_mem0
async def test_blank_text_and_no_text() -> None:
    for documents in ((), (replace(TASK.documents[0], title="", text="  \n "),)):
        setup, policy = make_setup(script)
        assert (await make_method("mem0", setup).run(replace(TASK, documents=documents))).reward == 1.0
    assert "(nothing is remembered)" not in policy.prompts[-1]


@needs_mem0
async def test_a_cancelled_run_ends_at_once() -> None:
    setup, policy = make_setup(script)
    started = asyncio.Event()

    async def never(*arguments: object) -> None:
        started.set()
        await asyncio.Event().wait()

    policy.complete = never  # type: ignore[assignment,method-assign]
    run = asyncio.create_task(make_method("mem0", setup).run_all([(TASK, 0)]))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, 5)
