"""The judge: what it is asked, what counts as a verdict, and that none is never a 0."""

from __future__ import annotations

import json
from collections.abc import Iterable

import httpx
import pytest

from atommem.envs.longdoc.environment import LongDocConfig, LongDocEnvironments
from atommem.envs.scoring.judge import LLMJudge, read_verdict
from atommem.envs.task import Question, Task
from atommem.errors import ConfigError, OutageError, PolicyError
from atommem.servers.client import ServerClient
from tests.fakes import WordTokenizer

QUESTION = Question("Where?", ("Port", "Harbour"))


class Server:
    """Replies with the given texts (a number is an HTTP status), the last one for ever."""

    def __init__(self, replies: Iterable[str | int]) -> None:
        self.replies = list(replies)
        self.bodies: list[dict[str, object]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, int):
            return httpx.Response(reply, json={"message": "no"})
        return httpx.Response(200, json={"choices": [{"message": {"content": reply}}]})

    def judge(self) -> LLMJudge:
        transport = httpx.MockTransport(self)
        client = ServerClient(
            "http://judge", service="judge", timeout=5, retries=1, max_in_flight=4, backoff=0.0, transport=transport
        )
        return LLMJudge(client, "m")


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("CORRECT", 1.0),
        ("incorrect", 0.0),
        ("**INCORRECT**", 0.0),
        ("The town is a port.\n\nVerdict: Correct.\n", 1.0),
        ("<think>It is CORRECT</think>\nINCORRECT", 0.0),
        ("It is not correct", None),
        ("CORRECT or INCORRECT", None),
        ("", None),
        (None, None),
    ],
)
def test_verdicts(reply: str | None, verdict: float | None) -> None:
    assert read_verdict({"choices": [{"message": {"content": reply}}]}) == verdict
    assert read_verdict({"choices": []}) is None


async def test_the_judge_sees_question_golds_and_answer() -> None:
    server = Server(["CORRECT"])
    assert await server.judge()(QUESTION, "{golds} a harbour") == 1.0
    (body,) = server.bodies
    assert (body["model"], body["temperature"]) == ("m", 0.0)
    prompt = body["messages"][0]["content"]  # type: ignore[index]
    assert "Where?" in prompt
    assert "Port | Harbour" in prompt
    assert "judge: {golds} a harbour" in prompt  # what an answer says is not filled in


async def test_an_unreadable_verdict_is_asked_for_again_and_then_an_outage() -> None:
    server = Server(["maybe", "INCORRECT"])
    assert await server.judge()(QUESTION, "x") == 0.0
    assert [body["seed"] for body in server.bodies] == [0, 1]
    server = Server(["maybe"])
    with pytest.raises(OutageError, match=r"no verdict that can be read in 3 attempts.*maybe"):
        await server.judge()(QUESTION, "x")


async def test_a_judge_that_is_gone_is_an_outage_and_one_that_refuses_an_error() -> None:
    with pytest.raises(OutageError, match="HTTP 503"):
        await Server([503]).judge()(QUESTION, "x")
    with pytest.raises(PolicyError, match=r"refused a request.*404"):
        await Server([404]).judge()(QUESTION, "x")


async def test_judged_answers_can_be_the_reward() -> None:
    server = Server(["CORRECT", "INCORRECT"])
    environments = LongDocEnvironments(
        WordTokenizer(), LongDocConfig(reward="judge", judge_url="http://judge", judge_model="m")
    )
    environments.judge = server.judge()
    task = Task("t", (QUESTION, QUESTION, QUESTION, QUESTION))
    score = await environments.score(task, ["the port town", " ", "Rome", None])
    assert score.reward == score.metrics["judge"] == 0.25
    assert [item["judge"] for item in score.question_metrics] == [1.0, 0.0, 0.0, 0.0]
    assert len(server.bodies) == 2  # nothing was answered: there is nothing to judge
    assert score.metrics["sub_em"] == 0.25
    await environments.close()


def test_settings_of_the_judge_come_together() -> None:
    with pytest.raises(ConfigError, match="give both or none"):
        LongDocConfig(judge_url="http://x")
    with pytest.raises(ConfigError, match="reward is judge"):
        LongDocConfig(reward="judge")
