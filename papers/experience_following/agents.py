"""What the paper's agents share, how a policy is asked, and RegAgent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import yaml

from atommem.embedding.embedder import Embedder, HashingEmbedder
from atommem.errors import DataError
from atommem.policy.contract import derived_seed
from papers.asking import Asker
from papers.experience import Similarity
from papers.inputs import load_published
from papers.regagent.simulation import make_world, similarity_follower
from papers.streams import SIMILARITIES, Shown, StreamRow, executions, read_stream, similarity_of
from papers.streams import cosine as cosine_of_x

PROMPTS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("prompts.yaml").read_text(encoding="utf-8")
)
"""The prompts of appendices A.2 to A.4 in words of ours, by agent."""


MISREADS = {"C1": (0.5, 0.2), "C2": (0.3, 0.2), "C3": (0.1, 0.1)}
"""Without a judge's model: how often a failure passes, and a success does not. Ours."""


class Agent:
    """One of the paper's agents; a subclass reads data, words prompts, and scores outputs.

    Attributes:
        folder: The user's files in the original formats; None: generated ones.
        asker: Of the policy; None: the agent's own script, `follow`, plays.
        judges: Askers of C1, C2 and C3; if one is missing, the truth is misread.
    """

    name: ClassVar[str]
    similarity: Similarity | None = None  # None: the cosine of the embedder's vectors
    asker: Asker | None = None
    judges: Sequence[Asker] = ()

    def __init__(self, folder: Path | None, seed: int, embedder: Embedder | None = None) -> None:
        paper = load_published("experience_following")
        self.settings: Mapping[str, Any] = paper["agents"].get(self.name, paper["stream"])
        self.prompts, self.folder, self.seed = PROMPTS.get(self.name, {}), folder, seed
        self.embedder = embedder or HashingEmbedder(64)

    def tasks(self, initial: int, n: int) -> list[StreamRow]:
        """Return the records of the initial memory, then `n` tasks at most."""
        rng = np.random.default_rng(self.seed)
        if self.folder is None:
            self._made = TemporaryDirectory(prefix="atommem-")  # as long as the agent
            self.folder = Path(self._made.name)
            self.generate(self.folder, initial, n, rng)
        rows = self.read(self.folder, initial, n, rng)
        if all(row.output is not None for row in rows):
            raise DataError(f"{self.folder}: has {len(rows)} rows, no more than initial={initial}.")
        return rows

    def generate(self, folder: Path, initial: int, n: int, rng: np.random.Generator) -> None:
        """Write data of ours in the original format."""
        raise NotImplementedError

    def read(self, folder: Path, initial: int, n: int, rng: np.random.Generator) -> list[StreamRow]:
        """Read the original format; raises DataError."""
        raise NotImplementedError

    async def act(self, row: StreamRow, shown: Shown, key: str) -> str:
        """Do one task with the retrieved records."""
        prompt = self.prompts["task"].format(**self.fields(row, shown))
        return await self.ask(prompt, key)

    async def ask(self, prompt: str, key: str) -> str:
        """Return the reply of the policy or of the script."""
        if self.asker is not None:
            return await self.asker.ask(self.prompts.get("system", ""), prompt, key)
        return self.follow(prompt, np.random.default_rng(derived_seed(key)))

    async def passes(
        self, judge: str, row: StreamRow, output: str, scored: Mapping[str, Any], number: int
    ) -> bool:
        """Return whether a coarse evaluator, C1 to C3, takes an output for a success."""
        key, place = f"{judge}/{self.seed}/{number}", list(MISREADS).index(judge)
        if place < len(self.judges):
            verdict = await self.judges[place].ask(*self.judge_prompt(row, output), key)
            return says_yes(verdict)
        false_positive, false_negative = MISREADS[judge]
        drawn = np.random.default_rng(derived_seed(key)).random()
        return bool(drawn >= false_negative if scored["outcome"] else drawn < false_positive)

    def fields(self, row: StreamRow, shown: Shown) -> dict[str, Any]:
        """Return what stands in the braces of the task's prompt."""
        raise NotImplementedError

    def follow(self, prompt: str, rng: np.random.Generator) -> str:
        """Return the follower's reply."""
        raise NotImplementedError

    def score(self, row: StreamRow, output: str) -> dict[str, Any]:
        """Return ``outcome`` (1 success, 0 failure) and perhaps an ``error``."""
        raise NotImplementedError

    def utility(self, scored: Mapping[str, Any]) -> float:
        """Return what a use of a record counts for it under the strict evaluator."""
        return float(scored["outcome"])

    def input_similarity(self, score: float) -> float:
        """Return the input similarity from a retrieval's score."""
        return score

    async def output_similarity(self, output: str, record: str) -> float:
        """Return the similarity of an output and the most similar record's: of embedded texts."""
        a, b = await self.embedder.embed([output, record], "entry")
        return float(a @ b)

    def true_output(self, row: StreamRow) -> str | None:
        """Return the right output, for error-free records; None if the data has none."""
        return None

    def judge_prompt(self, row: StreamRow, output: str) -> tuple[str, str]:
        """Return system and user text for a judge, whose first line is the verdict."""
        fields = self.fields(row, [])
        user = self.prompts["judge"].format(**fields, output=output)
        return self.prompts.get("judge_system", ""), user


def says_yes(verdict: str) -> bool:
    """Return whether a judge's first line is yes or CORRECT; an unreadable one is a no."""
    first = verdict.strip().split("\n", 1)[0].strip(" *.'\"`").lower()
    return first.startswith(("yes", "correct"))


def rbf(a: Any, b: Any) -> float:
    """Return exp(-squared distance) (appendix A.1, gamma 1)."""
    return float(np.exp(-np.sum((np.asarray(a, float) - np.asarray(b, float)) ** 2)))


class StreamAgent(Agent):
    """A user's stream, and the user's class, which does and scores its tasks."""

    name = "stream"

    def __init__(
        self, path: Path, made: Any, similarity: str, seed: int, embedder: Embedder | None = None
    ) -> None:
        super().__init__(path, seed, embedder)
        self.similarity, self._user = SIMILARITIES[similarity], made

    def read(self, folder: Path, initial: int, n: int, rng: np.random.Generator) -> list[StreamRow]:
        """Read the rows of the file `folder`; those with an output are the initial memory."""
        rows = sorted(read_stream(folder), key=lambda row: row.output is None)
        known = sum(row.output is not None for row in rows)
        return rows[max(0, known - initial) : known + n]

    async def act(self, row: StreamRow, shown: Shown, key: str) -> str:
        return str(await self._user.act(row, shown))

    def score(self, row: StreamRow, output: str) -> dict[str, Any]:
        return dict(self._user.score(row, output))

    def true_output(self, row: StreamRow) -> str | None:
        return row.truth if isinstance(row.truth, str) else None


class RegAgent(Agent):
    """Predicts w.x from guesses for inputs nearby; the data is generated as in appendix A.1.

    Its coarse evaluators are thresholds of the error.
    """

    name = "regagent"
    similarity = staticmethod(similarity_of(cosine_of_x))

    def tasks(self, initial: int, n: int) -> list[StreamRow]:
        paper = load_published("regagent")
        world = make_world(self.seed, paper["world"], initial, n)
        self._copy, self._coarse = similarity_follower(paper["follower"]), paper["coarse"]
        outputs = [self._guess(value) for value in world.known_outputs]
        truths = [*(world.known @ world.weights), *world.truths]
        return [
            StreamRow(json.dumps({"x": [round(v, 3) for v in x]}), float(truth), output)
            for x, truth, output in zip(
                [*world.known.tolist(), *world.inputs.tolist()],
                truths,
                [*outputs, *[None] * n],
                strict=True,
            )
        ]

    def fields(self, row: StreamRow, shown: Shown) -> dict[str, Any]:
        lines = [
            f"Input: {json.loads(record.text)['x']} {output}"
            for (record, _), output in zip(shown, executions(shown), strict=True)
        ]
        x = json.loads(row.query)["x"]
        return {"dim": len(x), "k": len(lines), "examples": "\n".join(lines), "x": x}

    def follow(self, prompt: str, rng: np.random.Generator) -> str:
        inputs = np.array([json.loads(x) for x in re.findall(r"Input: (\[[^\]]*\])", prompt)])
        x, known = inputs[-1], inputs[:-1]
        if not len(known):
            return self._guess(rng.normal())
        guesses = np.array([self._number(text) for text in prompt.split("Input: ")[1:-1]])
        near = known @ x / np.linalg.norm(known, axis=1) / np.linalg.norm(x)
        return self._guess(self._copy(x, known, guesses, near, rng.normal()))

    def score(self, row: StreamRow, output: str) -> dict[str, Any]:
        error = abs(self._number(output) - row.truth)
        return {"outcome": float(error <= 1), "error": error}

    async def output_similarity(self, output: str, record: str) -> float:
        return rbf(self._number(output), self._number(record))

    def true_output(self, row: StreamRow) -> str | None:
        return self._guess(row.truth)

    async def passes(
        self, judge: str, row: StreamRow, output: str, scored: Mapping[str, Any], number: int
    ) -> bool:
        return bool(scored["error"] <= self._coarse[judge])

    @staticmethod
    def _guess(value: float) -> str:
        return f"Guess: boxed{{{value:.2f}}}"

    @staticmethod
    def _number(text: str) -> float:
        """Return the last boxed number, or else the only number; far off without either."""
        boxed = re.findall(r"boxed\{+(-?\d+(?:\.\d+)?)", text)
        numbers = boxed[-1:] or re.findall(r"-?\d+\.?\d*", text)
        return float(numbers[0]) if len(numbers) == 1 else 1e6
