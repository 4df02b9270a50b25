"""Audits of each kind of store, and what rules would drop."""

from __future__ import annotations

import json
import pickle
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atommem.actions import Action
from atommem.embedding.embedder import HashingEmbedder
from atommem.errors import ConfigError, DataError
from atommem.eval import audit as audit_module
from atommem.eval.audit import audit, main, read_store
from atommem.eval.retention_cli import main as check_rules
from atommem.session_state import SessionState
from atommem.trace import write_trace
from tests.atommem.sessions import CREATE, READ, memory
from tests.envs.benchmark_rows import write_lines
from tests.train.toys import make_episode, make_step

TEXTS = [
    "Ann lives in Brent",
    "Ann lives in Brent",
    "Bob likes tea",
    "Ann lives in Lorne now",
    "It rains",
]


def rows(path: Path, **more: Any) -> Path:
    return write_lines(path, [{"text": text, **more} for text in TEXTS])


async def test_audit_finds_duplicates_contradictions_and_evictions(tmp_path: Path) -> None:
    async def judge(one: str, other: str) -> bool | None:
        return None if "tea" in one + other else "Brent" in one and "Lorne" in other

    store = read_store(rows(tmp_path / "a.jsonl"))
    rules = ("fifo", "reject", "redundancy", "length")
    found = await audit(store, HashingEmbedder(256), budget=3, rules=rules, judge=judge)
    assert (found.entries, found.duplicates, found.never_shown) == (5, [[1, 2]], None)
    assert found.contradictions == [(1, 4), (2, 4)]
    assert found.asked[0] >= 2
    assert found.evicted["fifo"] == [1, 2]
    assert found.evicted["reject"] == [5, 4]
    assert found.evicted["redundancy"][0] == 1
    assert found.evicted["length"] == [5, 3]


async def test_read_store_reads_sessions_and_traces(tmp_path: Path) -> None:
    m = memory(retrieve_k=1)
    written = [Action(CREATE, "bob hums"), Action(CREATE, "ann sings"), Action(READ, "ann")]
    operations = tuple(await m.apply(written, 0))
    SessionState("k", 1, 0, m.start, operations).save(tmp_path / "s.jsonl")
    store = read_store(tmp_path / "s.jsonl")
    assert (store.kind, [entry.shown for entry in store.entries]) == ("session of AtomMem", [0, 1])
    step = replace(make_step([1], [2]), operations=operations)
    write_trace(tmp_path / "t.jsonl", replace(make_episode("t", 0, 1.0, []), steps=[step]), {})
    assert read_store(tmp_path / "t.jsonl").entries == store.entries


class PointStruct:
    """A point as Qdrant's local mode pickles it: a pydantic model of a class that we lack."""

    def __init__(self, payload: dict[str, Any]) -> None:
        self.id, self.vector, self.payload = "x", [0.1], payload

    def __getstate__(self) -> dict[str, Any]:
        return {
            "__dict__": dict(vars(self)),
            "__pydantic_fields_set__": {"id"},
            "__pydantic_private__": None,
        }

    @property
    def blob(self) -> bytes:
        return pickle.dumps(self, protocol=3).replace(
            __name__.encode(), b"qdrant_client.http.models.models"
        )


def mem0_store(path: Path, *points: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE points (id TEXT PRIMARY KEY, point BLOB)")
    connection.executemany("INSERT INTO points VALUES (?, ?)", enumerate(points))
    connection.commit()
    connection.close()
    return path


def test_read_store_of_mem0_loads_no_pickled_class(tmp_path: Path) -> None:
    payloads = [
        {"data": text, "hash": "h", "created_at": f"2026-01-0{day}"}
        for text, day in (("new", 9), ("old", 8))
    ]
    blobs = [PointStruct(payload).blob for payload in payloads]
    mem0_store(tmp_path / "mem0" / "collection" / "mem0" / "storage.sqlite", *blobs)
    store = read_store(tmp_path / "mem0")
    assert (store.kind, [entry.text for entry in store.entries]) == ("mem0", ["old", "new"])
    with pytest.raises(DataError, match=r"builtins\.print, which is not allowed"):
        read_store(mem0_store(tmp_path / "bad.sqlite", pickle.dumps(print, protocol=3)))


@pytest.mark.parametrize("text", ["", "no json", '{"type": "session"}\n', "\udcff\0"])
def test_read_store_of_another_file_raises(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text, errors="surrogateescape")
    with pytest.raises(DataError):
        read_store(tmp_path / "x")


@pytest.mark.parametrize("point", [pickle.dumps({"a": 1})[:-3], "text"])
def test_read_store_with_a_damaged_point_of_mem0_raises(tmp_path: Path, point: Any) -> None:
    with pytest.raises(DataError, match="is not a local store of mem0"):
        read_store(mem0_store(tmp_path / "bad.sqlite", point))


def test_find_pairs_equals_a_search_of_all_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "_BATCH", 7)
    rows = np.random.default_rng(0).standard_normal((60, 3), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = np.tril(rows @ rows.T, -1)
    groups, close = audit_module.find_pairs(rows, 0.97, 12)
    linked = (cosines + cosines.T > 0.97) | np.eye(60, dtype=bool)
    reached = np.linalg.matrix_power(linked.astype(float), 60) > 0
    assert groups == [
        list(np.flatnonzero(row))
        for at, row in enumerate(reached)
        if row.sum() > 1 and row.argmax() == at
    ]
    others = np.where(cosines > 0.97, -1, cosines)
    newer, older = np.unravel_index(
        np.argsort(-others, axis=None, kind="stable")[:12], others.shape
    )
    assert close == list(zip(older.tolist(), newer.tolist(), strict=True))


def test_audit_command_prints_and_writes_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = rows(tmp_path / "a.jsonl", shown=0), tmp_path / "audit.json"
    assert main([str(path), "--embedder", "hashing", "--budget", "3", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for text in ("1 entries repeat another", "never shown: 5", "fifo evicts 2, first 1, 2"):
        assert text in printed
    assert json.loads(out.read_text())["duplicates"] == [[1, 2]]
    with pytest.raises(ConfigError, match="given together"):
        main([str(path), "--embedder", "hashing", "--judge_url", "http://127.0.0.1:1"])


def test_retention_command_checks_and_lists_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_rules(["check", "lru"]) == 0
    assert check_rules(["list"]) == 0
    assert "ebbinghaus" in capsys.readouterr().out
