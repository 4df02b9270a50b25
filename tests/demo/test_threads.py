"""The number of threads that is fastest is found, and found again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from atommem.demo.threads import Threads


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_fastest_is_taken_and_tried_again_when_the_machine_changes() -> None:
    seconds, now, used = {1: 0.2, 2: 0.1, 4: 0.3}, 0.0, []
    threads = Threads(4, lambda: now)
    for update in range(600):
        if update == 300:  # a neighbour takes the second core
            seconds[2] = 0.8
        threads.update()
        used.append(torch.get_num_threads())
        now += seconds[used[-1]]
    assert used[:30] == [1] * 10 + [2] * 10 + [4] * 10
    assert set(used[30:200]) == {2}
    assert set(used[230:400]) == {2}
    assert set(used[430:]) == {1}


def test_no_more_threads_than_there_were() -> None:
    threads = Threads(1)
    for _ in range(40):
        threads.update()
        assert torch.get_num_threads() == 1
