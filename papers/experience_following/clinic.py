"""EHRAgent: writes code that answers questions on MIMIC-III, or on a clinic of ours."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from atommem.errors import DataError
from papers.experience_following import interpreter
from papers.experience_following.agents import Agent
from papers.inputs import find_user_file, read_json_rows
from papers.streams import Shown, StreamRow, executions

SOURCE = (
    "Get EHRSQL-EHRAgent by github.com/wshi83/EhrAgent (needs access to MIMIC-III): mimic_iii.db, "
    "valid_preprocessed.json, and memory.json, rows with knowledge and code too."
)
ROUNDS = 10
"""Most programs for one question, as in EHRAgent's code; the first that runs is the answer's."""
_LOST = {"error": f"TimeoutError: no answer within {interpreter.SECONDS} seconds"}


class EhrAgent(Agent):
    """Asks for knowledge, then for code, which runs until one ends without an error."""

    name = "ehragent"

    def read(self, folder: Path, initial: int, n: int, rng: np.random.Generator) -> list[StreamRow]:
        """Read the records of the initial memory, and the questions that have an answer, once."""
        rows = read_json_rows(find_user_file(folder, ("memory.json",), SOURCE))[:initial]
        places = ("valid_preprocessed.json", "mimic_iii/valid_preprocessed.json")
        asked = read_json_rows(find_user_file(folder, places, SOURCE))
        self._database = find_user_file(folder, ("mimic_iii.db", "mimic_iii/mimic_iii.db"), SOURCE)
        found: dict[str, StreamRow] = {}
        try:
            tasks = (asked[place] for place in rng.permutation(len(asked)))
            for number, row in enumerate([*rows, *tasks]):
                answer, output = row.get("answer"), None
                text = ", ".join(map(str, answer)) if isinstance(answer, list) else str(answer)
                if number < len(rows):
                    output = json.dumps(
                        {"code": row["code"], "knowledge": row["knowledge"], "answer": text}
                    )
                if answer and not row.get("is_impossible"):
                    found.setdefault(row["template"], StreamRow(row["template"], text, output))
        except KeyError as error:
            raise DataError(f"{folder}: a row without {error}. {SOURCE}") from error
        return list(found.values())[: initial + n]

    async def act(self, row: StreamRow, shown: Shown, key: str) -> str:
        fixed = self.fields(row, shown)
        asked = self.prompts["knowledge"].format(**fixed)
        knowledge = await self.ask(asked, f"{key}/knowledge")
        prompt = first = self.prompts["task"].format(**{**fixed, "knowledge": knowledge})
        for number in range(ROUNDS):
            code = bare_code(await self.ask(prompt, f"{key}/{number}"))
            result = await run_code(code, self._database)
            if "answer" in result:
                break
            values = {"prompt": first, "code": code, "result": result["error"]}
            prompt = self.prompts["again"].format(**values)
        return json.dumps({"code": code, "knowledge": knowledge, "answer": "", **result})

    def fields(self, row: StreamRow, shown: Shown) -> dict[str, Any]:
        form, records = self.prompts["example"], [record for record, _ in shown]
        examples = [
            form.format(question=record.text, **json.loads(output))
            for record, output in zip(records, executions(shown), strict=True)
        ]
        parts = {name: self.prompts[name] for name in ("tables", "tools", "shots")}
        return {**parts, "question": row.query, "examples": "\n".join(examples)}

    def judge_prompt(self, row: StreamRow, output: str) -> tuple[str, str]:
        fields = {**self.fields(row, []), **json.loads(output)}
        return self.prompts["judge_system"], self.prompts["judge"].format(**fields)

    def score(self, row: StreamRow, output: str) -> dict[str, Any]:
        """Return exact match of the answers, in any order."""
        return {"outcome": float(answers(json.loads(output)["answer"]) == answers(row.truth))}

    async def output_similarity(self, output: str, record: str) -> float:
        return code_similarity(json.loads(output)["code"], json.loads(record)["code"])

    def generate(self, folder: Path, initial: int, n: int, rng: np.random.Generator) -> None:
        """Write a clinic of a dozen tables; the memory has half of the kinds of questions."""
        clinic = self.prompts["clinic"]
        size = 20 + (initial + n) // 4  # a patient has more than ten different questions
        patients = make_clinic(folder / "mimic_iii.db", clinic, size, rng)
        functions = interpreter.Functions(str(folder / "mimic_iii.db"))
        names = {name: getattr(functions, name) for name in ("LoadDB", "FilterDB", "GetValue")}
        rows: dict[str, dict[str, Any]] = {}
        while len(rows) < initial + n:
            kinds = clinic["questions"][: 4 if len(rows) < initial else None]
            form, code = kinds[rng.integers(len(kinds))]
            values = [rng.choice(patients), rng.choice(clinic["names"]["d_labitems"])]
            question, code = form.format(*values), code.format(*values)
            exec(code, scope := dict(names))
            row = {"knowledge": f"- {code.split(chr(39))[1]}", "code": code}
            row |= {"id": len(rows), "template": question, "answer": [str(scope["answer"])]}
            rows.setdefault(question, row)
        found = list(rows.values())
        (folder / "memory.json").write_text(json.dumps(found[:initial]))
        (folder / "valid_preprocessed.json").write_text(json.dumps(found[initial:]))

    def follow(self, prompt: str, rng: np.random.Generator) -> str:
        """Copy the first example's code with the values of the question; rarely know better."""
        if prompt.endswith("Knowledge:"):
            return "- as the examples"
        kinds = self.prompts["clinic"]["questions"]
        questions = re.findall(r"^Question: (.*)$", prompt, re.MULTILINE)
        code = re.search(r"Solution:\n(.*?)\n\n?(?:Question|\(End)", prompt, re.DOTALL)
        new, kind = _values(questions[-1], kinds)
        if code is None or rng.random() < 0.25:
            return str(kinds[kind][1].format(*new))
        text = code[1]
        for old, value in zip(_values(questions[0], kinds)[0], new, strict=False):
            text = text.replace(old, value)
        return text if rng.random() < 0.9 else text.replace("'SUBJECT_ID=", "'PATIENT=")


def bare_code(reply: str) -> str:
    """Return the code of a reply: in its fences, or all of it."""
    fenced = re.search(r"```(?:python)?\n(.*?)(?:```|$)", reply, re.DOTALL)
    return (fenced[1] if fenced else reply.removeprefix("Solution:")).strip()


async def run_code(code: str, database: Path) -> dict[str, str]:
    """Run code in the interpreter's process: ``answer`` or ``error``."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", interpreter.__file__, str(database.absolute())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
    )
    try:
        work = process.communicate(code.encode("utf-8", "replace"))
        out, _ = await asyncio.wait_for(work, interpreter.SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        return _LOST
    return dict(json.loads(out)) if out else {"error": "MemoryError: the program was ended"}


def answers(text: str) -> set[str]:
    """Return the parts of an answer: numbers to six digits, yes and True as 1."""
    parts = (part.strip(" '\"()[]").lower() for part in re.split(r", |,\)", text))
    found = set()
    for part in filter(None, parts):
        part = {"true": "1", "yes": "1", "false": "0", "no": "0", "none": "0"}.get(part, part)
        found.add(f"{float(part):.6g}" if re.fullmatch(r"-?\d+\.?\d*(e-?\d+)?", part) else part)
    return found


def code_similarity(code: str, other: str) -> float:
    """Return the share of `code` in `other`, by lines of trees without names and constants.

    This is what pycode_similar 1.4 counts (UnifiedDiff); 0 for code that cannot be parsed.
    """
    try:
        a, b = (_tree_lines(text) for text in (code, other))
    except (SyntaxError, ValueError):
        return 0.0
    blocks = SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / len(a)


def _tree_lines(code: str) -> list[str]:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        for name in ("id", "attr", "value", "arg"):
            if isinstance(getattr(node, name, None), str | int | float):
                setattr(node, name, "")
    return ast.dump(tree, annotate_fields=False, indent=1).splitlines()


def make_clinic(
    path: Path, clinic: Mapping[str, Any], size: int, rng: np.random.Generator
) -> list[int]:
    """Write a database of admissions and events of patients; returns the patients' numbers."""
    rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in clinic["tables"]}
    names = clinic["names"]
    for table in ("d_icd_diagnoses", "d_icd_procedures", "d_labitems"):
        titles = 1 if table == "d_labitems" else 2
        rows[table] = [(500 + i, *[name] * titles) for i, name in enumerate(names[table])]
    numbers: list[int] = (rng.choice(90_000, size, replace=False) + 10_000).tolist()
    for patient in numbers:
        rows["patients"].append((patient, str(rng.choice(["m", "f"])), "2050-01-01", None))
        for visit in range(int(rng.integers(1, 5))):
            day, one = f"210{visit}-0{rng.integers(1, 9)}-1", (patient, patient * 10 + visit)
            times = (f"{day}1 08:00:00", f"{day}5 10:00:00")
            rows["admissions"].append((*one, *times, "emergency", int(rng.integers(50, 60))))
            rows["diagnoses_icd"].append((*one, 500 + int(rng.integers(5)), times[0]))
            rows["icustays"].append((*one, one[1] + 7, "micu", *times))
            rows["transfers"].append((*one, "transfer", int(rng.integers(1, 60)), *times))
            rows["cost"].append((*one, "lab", round(rng.uniform(5, 900), 2)))
            for drug in rng.choice(names["prescriptions"], rng.integers(1, 4)):
                rows["prescriptions"].append((*one, *times, str(drug), "iv"))
                rows["procedures_icd"].append((*one, 500 + int(rng.integers(4)), times[0]))
            rows["labevents"] += [
                (*one, item, times[0], round(rng.uniform(1, 200), 1), "mg/dl")
                for item in range(500, 504)
            ]
    with closing(sqlite3.connect(path)) as database, database:
        for table, columns in clinic["tables"].items():
            database.execute(f"create table {table} (ROW_ID, {columns})")
            places = ", ".join("?" * (columns.count(",") + 2))
            numbered = [(i, *row) for i, row in enumerate(rows[table])]
            database.executemany(f"insert into {table} values ({places})", numbered)
    return numbers


def _values(question: str, kinds: list[list[str]]) -> tuple[list[str], int]:
    """Return a question's values and its kind."""
    for number, (form, _) in enumerate(kinds):
        pattern = re.escape(form).replace(r"\{0\}", r"(?P<a>\d+)").replace(r"\{1\}", r"(?P<b>\w+)")
        if found := re.fullmatch(pattern, question):
            return [value for _, value in sorted(found.groupdict().items())], number
    return [], 0
