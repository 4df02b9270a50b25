"""Two ranks: with vLLM servers, whichever of them each can reach, and with groups that are replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.train.harness import torchrun
from tests.train.rollout.server_ranks_worker import train_replacing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    folder = tmp_path_factory.mktemp("ranks")
    torchrun("rollout.server_ranks_worker", folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_all_ranks_ask_for_the_same_adapters(seen: list[dict[str, Any]]) -> None:
    first, second = (rank["one lost"] for rank in seen)
    assert len(set(first["loads"]["a"])) == 3
    assert first["loads"]["b"] == first["loads"]["a"] == second["loads"]["b"]
    assert second["loads"]["a"] == []
    assert (first["error"], second["error"], first["readable"], first["logged"]) == ("", "", True, 3)


def test_a_rank_that_has_no_server_ends_the_run_for_all(seen: list[dict[str, Any]]) -> None:
    first, second = (rank["all lost"] for rank in seen)
    assert "no server has answered" in second["error"]
    assert "see the other processes" in first["error"]


def test_whole_weights_are_gathered_once_for_all_servers(seen: list[dict[str, Any]]) -> None:
    """Two updates: each rank gathers every parameter twice, whatever the number of servers, and one of them sends."""
    first, second = (rank["whole"] for rank in seen)
    for rank in (first, second):
        assert rank["gathered"] == 2 * rank["parameters"]
        assert rank["serving"] == ["http://a", "http://b"]
    assert first["transfers"] == [[["http://a", "http://b"], 2 * first["parameters"], "bfloat16"]]
    assert second["transfers"] == []


def test_each_rank_replaces_its_groups_as_one_process_does(seen: list[dict[str, Any]], tmp_path: Path) -> None:
    first, second = (rank["replacing"] for rank in seen)
    alone = train_replacing(tmp_path, processes=1)
    assert sorted(map(tuple, first["jobs"] + second["jobs"])) == sorted(alone["jobs"])
    assert first["replaced"] == second["replaced"] == alone["replaced"]
    assert sum(alone["replaced"]) > 0
