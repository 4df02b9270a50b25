"""AgentDriver: plans three seconds of driving after the most similar experience."""

from __future__ import annotations

import ast
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from atommem.errors import DataError
from papers.experience_following.agents import Agent, rbf
from papers.streams import Shown, StreamRow, executions, minus_distance, similarity_of

SOURCE = "Get Agent-Driver's data from github.com/USC-GVL/Agent-Driver (nuScenes' licence applies)."
GOALS = ("RIGHT", "LEFT", "FORWARD")
Array = npt.NDArray[np.float64]


class DriverAgent(Agent):
    """Plans six waypoints from the state of the car and one earlier trajectory."""

    name = "agentdriver"
    similarity = staticmethod(similarity_of(minus_distance))  # exp(-d) of far records is 0 for all

    def generate(self, folder: Path, initial: int, n: int, rng: np.random.Generator) -> None:
        for name in ("memory", "val", "finetune"):
            (folder / name).mkdir()
        scenes = {f"{i:032x}": make_scene(rng) for i in range(initial + n)}
        known, tasks = list(scenes)[:initial], list(scenes)[initial:]
        database = {token: scenes[token] for token in known}
        (folder / "memory" / "database.pkl").write_bytes(pickle.dumps(database))
        samples = []
        for token in tasks:
            scene = scenes[token]
            (folder / "val" / f"{token}.pkl").write_bytes(pickle.dumps(scene))
            objects = [f"{kind} at ({x:.2f},{y:.2f})" for kind, x, y in scene["objects"]]
            texts = {"perception": "Front objects: " + (", ".join(objects) or "none") + "\n"}
            texts |= {"commonsense": "Keep to the lane; keep distance.\n", "reasoning": ""}
            samples.append({"token": token, "ego": ego_text(scene), **texts})
        (folder / "finetune" / "data_samples_val.json").write_text(json.dumps(samples))
        (folder / "split.json").write_text(json.dumps({"train": known, "val": tasks}))

    def read(self, folder: Path, initial: int, n: int, rng: np.random.Generator) -> list[StreamRow]:
        """Take the first records of the memory, and sample scenes of the split ``val``."""
        try:
            memory = load_arrays(folder / "memory" / "database.pkl")
            samples = json.loads((folder / "finetune" / "data_samples_val.json").read_text())
            texts = {sample["token"]: sample for sample in samples}
            tokens = json.loads((folder / "split.json").read_text())["val"]
            tokens = [tokens[i] for i in rng.permutation(len(tokens))[:n]]
            rows = [self._row(scene) for scene in list(memory.values())[:initial]]
            rows = [StreamRow(row.query, row.truth, self.true_output(row)) for row in rows]
            for token in tokens:
                scene, text = load_arrays(folder / "val" / f"{token}.pkl"), texts.get(token, {})
                parts = ("perception", "commonsense", "reasoning")
                found = [ego_text(scene), *(str(text.get(part) or "") for part in parts)]
                row = self._row(scene)
                rows.append(StreamRow(row.query, row.truth, None, "".join(found)))
        except (OSError, KeyError, TypeError, IndexError, ValueError) as error:
            raise DataError(f"{folder}: not AgentDriver's layout ({error!r}). {SOURCE}") from error
        return rows

    def _row(self, scene: Mapping[str, Any]) -> StreamRow:
        ego, goal, history = keys(scene)
        query = {"ego": ego.tolist(), "goal": goal.tolist(), "history": history.tolist()}
        return StreamRow(json.dumps(query), np.asarray(scene["ego_fut_traj"])[1:7, :2].tolist())

    def fields(self, row: StreamRow, shown: Shown) -> dict[str, Any]:
        form, outputs = self.prompts["example"], executions(shown)
        scores = [self.input_similarity(score) for _, score in shown]
        pairs = zip(scores, outputs, strict=True)
        examples = [form.format(score=s, output=waypoints_text(waypoints(o))) for s, o in pairs]
        target = self.true_output(row)  # the authors' code shows its judge the true path
        return {"problem": row.problem, "examples": "\n".join(examples), "target": target}

    def follow(self, prompt: str, rng: np.random.Generator) -> str:
        """Copy the experience, the nearer the more, and else go on at the present speed."""
        vx, vy = (float(v) for v in re.findall(r"\(vx,vy\): \((.*?),(.*?)\)", prompt)[0])
        path = np.outer(np.arange(1, 7), [vx, vy])
        found = re.search(r"score: ([\d.]+):\n.*\n(\[.*\])", prompt)
        if found:
            weight = 0.3 + 0.7 * float(found[1])
            path = weight * waypoints(found[2]) + (1 - weight) * path
        noise = rng.normal(scale=0.6) * np.outer(np.arange(1, 7) / 6, [0.3, 1])
        return waypoints_text(path + noise)

    def score(self, row: StreamRow, output: str) -> dict[str, Any]:
        """Return UniAD's mean L2 at 1, 2 and 3 seconds as ``error``; a success is below 2.5."""
        gaps = np.linalg.norm(waypoints(output) - np.array(row.truth), axis=1)
        error = float(gaps[[1, 3, 5]].mean())
        return {"outcome": float(error < 2.5), "error": error}

    def utility(self, scored: Mapping[str, Any]) -> float:
        return -float(scored["error"])

    def input_similarity(self, score: float) -> float:
        return float(np.exp(score))

    async def output_similarity(self, output: str, record: str) -> float:
        return rbf(waypoints(output), waypoints(record))

    def true_output(self, row: StreamRow) -> str:
        return waypoints_text(np.array(row.truth))


def waypoints(text: str) -> Array:
    """Return the first list of a reply, shape (6, 2); without six points the car stands still."""
    try:
        found = np.array(ast.literal_eval(text[text.index("[") : text.index("]") + 1]), dtype=float)
    except (ValueError, SyntaxError, TypeError):
        return np.zeros((6, 2))
    return found if found.shape == (6, 2) and np.isfinite(found).all() else np.zeros((6, 2))


def waypoints_text(path: Array) -> str:
    """Return a path as AgentDriver writes it."""
    return "[" + ", ".join(f"({x:.2f},{y:.2f})" for x, y in path) + "]"


def keys(scene: Mapping[str, Any]) -> tuple[Array, Array, Array]:
    """Return ego state (9), goal (3) and history (10), as AgentDriver compares scenes."""
    state, steps = np.asarray(scene["ego_states"]), np.asarray(scene["ego_hist_traj_diff"])
    ax, ay = steps[-1] - steps[-2]
    vx, vy, head = 0.5 * state[[0, 1, 7]]
    ego = np.array([vx, vy, state[4], ax, ay, state[2], state[3], head, state[8]])
    return ego, np.asarray(scene["goal"], dtype=float), np.asarray(scene["ego_hist_traj"]).ravel()


def ego_text(scene: Mapping[str, Any]) -> str:
    """Return the car's state in AgentDriver's form."""
    ego, goal, history = keys(scene)
    vx, vy, yaw, ax, ay, cx, cy, head, steering = ego
    return (
        f"*****Ego States:*****\nCurrent State:\n - Velocity (vx,vy): ({vx:.2f},{vy:.2f})\n"
        f" - Heading Angular Velocity (v_yaw): ({yaw:.2f})\n"
        f" - Acceleration (ax,ay): ({ax:.2f},{ay:.2f})\n - Can Bus: ({cx:.2f},{cy:.2f})\n"
        f" - Heading Speed: ({head:.2f})\n - Steering: ({steering:.2f})\n"
        f"Historical Trajectory (last 2 seconds): {waypoints_text(history.reshape(-1, 2)[:4])}\n"
        f"Mission Goal: {GOALS[int(np.argmax(goal))]}\n"
    )


class _Arrays(pickle.Unpickler):
    """Reads dictionaries of numbers, texts and numpy arrays; a pickle can name nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        known = ("_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer")
        if module.split(".")[0] == "numpy" and name in known:
            return super().find_class(module, name)
        raise DataError(f"a pickle of AgentDriver's data names {module}.{name}: refused.")


def load_arrays(path: Path) -> Any:
    """Load one of AgentDriver's pickles."""
    with path.open("rb") as file:
        return _Arrays(file).load()


def make_scene(rng: np.random.Generator) -> dict[str, Any]:
    """Return a scene: a steady past, and a future that turns for the goal, or brakes for a car."""
    goal = int(rng.choice(3, p=[0.2, 0.2, 0.6]))
    speed, accel = rng.uniform(0, 5), rng.normal(scale=0.15)  # metres a half second
    gap = rng.uniform(3, 30)
    history = np.array([[0, -speed * t + accel * t * t / 2] for t in range(4, -1, -1)], float)
    brakes = gap < 2 * speed
    turn = {0: 0.12, 1: -0.12, 2: 0.0}[goal] * min(1.0, speed / 2)
    future, heading, point = [[0.0, 0.0]], 0.0, np.zeros(2)
    for _ in range(6):
        speed = max(0.0, speed + (-0.6 if brakes else accel))
        heading += turn
        point = point + speed * np.array([np.sin(heading), np.cos(heading)])
        future.append(point.tolist())
    velocity = 2 * (history[-1] - history[-2])
    state = [*velocity, 0.1 * accel, 9.8, turn / 4, 4.08, 1.73, velocity[1], turn]
    return {
        "ego_states": np.array(state),
        "ego_hist_traj": history,
        "ego_hist_traj_diff": np.diff(history, axis=0),
        "ego_fut_traj": np.array(future),
        "goal": np.eye(3)[goal],
        "objects": [("car", 0.0, round(gap, 2))] if gap < 20 else [],
    }
