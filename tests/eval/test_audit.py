"""Audits of each kind of store, and what rules would drop."""

from pathlib import Path

import pytest

from atommem.actions import Action
from atommem.api import Memory
from atommem.embedding.embedder import HashingEmbedder
from atommem.errors import DataError
from atommem.eval import audit as audit_module
from atommem.eval.audit import audit, read_store
from atommem.rollout import Session
from tests.envs.benchmark_rows import write_lines
from tests.eval.toys import evaluated, make_runner, make_task
from tests.fakes import ScriptedPolicy, WordTokenizer

TEXTS = [*["Ann lives in Brent"] * 2, "Bob likes tea", "Ann lives in Lorne now", "It rains"]


async def test_audit_finds_duplicates_and_evictions(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS])
    entries, rules = read_store(path), ("fifo", "reject")
    found = await audit(entries, HashingEmbedder(256), capacity=3, rules=rules)
    assert (found.entries, found.duplicates, found.never_shown) == (5, [[1, 2]], None)
    assert found.evicted["fifo"] == [1, 2]
    assert found.evicted["reject"] == [5, 4]


def test_read_store_sorts_by_time_and_keeps_users_apart(tmp_path: Path) -> None:
    rows = [
        {"memory": "second", "created_at": "2026-01-01T09:00:00-08:00", "user_id": "ann"},
        {"memory": "first", "created_at": "2026-01-01T16:00:00Z", "user_id": "ann"},
        {"memory": "other", "created_at": "2026-01-01T16:00:00", "user_id": "bob"},
    ]
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match="several users: ann, bob"):
        read_store(path)
    assert [entry.text for entry in read_store(path, ["user=ann"])] == ["first", "second"]


def test_audit_reads_one_scope_of_a_saved_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = WordTokenizer()
    policy = ScriptedPolicy(tokenizer, lambda prompt: "<create_memory>Ann sings</create_memory>")
    memory = Memory(policy, tokenizer=tokenizer, embedder="hashing")
    for scope in ({"user": "ann"}, {"user": "ann", "session": "7"}, {"user": "bob"}):
        memory.scope(**scope).read("Ann sings.")
    store = str(memory.save(tmp_path / "memory"))
    assert audit_module.main([store]) == 0
    out = capsys.readouterr().out
    assert out.startswith("without the 3 scopes")
    assert audit_module.main([store, "--scope", "user=ann", "session=7"]) == 0
    assert "1 entries" in capsys.readouterr().out
    with pytest.raises(DataError, match="names 2 scopes"):
        audit_module.main([store, "--scope", "user=ann"])


async def test_read_store_reads_sessions_and_traces(tmp_path: Path) -> None:
    session = Session(make_runner()[0].agent, "k")
    await session.memory.apply([Action("create", "bob hums"), Action("create", "ann sings")], 0)
    session.state().save(tmp_path / "s.jsonl")
    assert [entry.text for entry in read_store(tmp_path / "s.jsonl")] == ["bob hums", "ann sings"]
    await evaluated([make_task("a")], tmp_path)
    (path,) = (tmp_path / "traces").iterdir()
    assert [entry.text for entry in read_store(path)] == ["seen", "seen"]
