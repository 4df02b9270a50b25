"""What a dry run is told of web tasks."""

from __future__ import annotations

from pathlib import Path

from atommem.description import TaskShape
from atommem.envs.task import Question, Task
from atommem.envs.task_files import save_tasks
from tests.envs.web.test_environment import web

SUPPOSED = TaskShape("supposed", 1000, 200, 0, 0, 5.5, 0, 3)


def test_the_most_that_an_episode_may_be(tmp_path: Path) -> None:
    environments = web(max_calls=7, chunk_tokens=50)
    shape = environments.shape(None, SUPPOSED)
    assert (shape.stream_steps, shape.stream_tokens, shape.questions, shape.reads) == (7, 50, 1.0, 0)
    assert not shape.same_stream
    path = tmp_path / "tasks.jsonl"
    questions = tuple(Question(f"q{number}", ("a",)) for number in range(3))
    save_tasks([Task("a", questions[:1]), Task("b", questions)], path)
    measured = environments.shape(str(path), SUPPOSED)
    assert (measured.tasks, measured.questions, measured.stream_steps) == (2, 2.0, 7)
    assert str(path) in measured.source
