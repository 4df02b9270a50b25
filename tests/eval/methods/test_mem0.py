"""Mem0: the real package, where it is installed, over a scripted policy."""

from __future__ import annotations

import json
import socket
import sys

import pytest

from atommem.errors import ConfigError, OutageError
from atommem.oplog import replay
from eval.methods import make_method
from tests.eval.methods.toys import TASK, make_setup, right


def script(prompt: str) -> str:
    """Remembers one statement of every chunk."""
    if "What you remember" in prompt:
        return right(prompt)
    found = "Bran lives in Port" if "Bran lives in Port." in prompt else f"a statement of {len(prompt)} letters"
    return json.dumps({"memory": [{"id": "0", "text": found}]})


def test_without_the_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mem0", None)
    with pytest.raises(ConfigError, match=r"pip install 'atommem\[mem0\]'"):
        make_method("mem0", make_setup()[0])


async def test_the_real_package_runs_without_network_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mem0")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    reached: list[object] = []
    monkeypatch.setattr(socket, "create_connection", lambda address, *more, **options: reached.append(address))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **options: reached.append(address) or [])
    setup, policy = make_setup(script)
    episode = await make_method("mem0", setup).run(TASK)
    assert reached == []
    assert episode.reward == 1.0
    assert [step.prompt for step in episode.steps] == policy.prompts
    assert len(policy.prompts) == 4 + 2
    entries = replay(operation for step in episode.steps for operation in step.operations).entries
    assert entries[4] == "Bran lives in Port"
    assert "- Bran lives in Port" in policy.prompts[4]
    assert episode.steps[4].view.retrieved[0].entry_id == 4
    assert [step.store_size for step in episode.steps] == [1, 2, 3, 4, 4, 4]


async def test_two_episodes_share_nothing() -> None:
    pytest.importorskip("mem0")
    setup, _ = make_setup(script)
    first, second = await make_method("mem0", setup).run_all([(TASK, 0), (TASK, 1)])
    assert [step.store_size for step in first.steps] == [step.store_size for step in second.steps] == [1, 2, 3, 4, 4, 4]


@pytest.mark.parametrize("part", ["policy", "embedder"])
async def test_outages_come_through_mem0(part: str) -> None:
    pytest.importorskip("mem0")
    setup, policy = make_setup(script)
    if part == "policy":
        policy.script = lambda prompt: OutageError("gone")
    else:
        setup.embedder.fail = OutageError("gone")  # type: ignore[attr-defined]
    assert (await make_method("mem0", setup).run(TASK)).error == "gone"


async def test_a_reply_that_is_no_json_stores_nothing() -> None:
    pytest.importorskip("mem0")
    setup, policy = make_setup(lambda prompt: right(prompt) if "What you remember" in prompt else "no")
    episode = await make_method("mem0", setup).run(TASK)
    assert episode.reward == 1.0
    assert "(nothing is remembered)" in policy.prompts[-1]
