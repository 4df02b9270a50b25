"""The CIC-IoT agent: names the type of traffic of one flow of CIC-IoT2023."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from atommem.errors import DataError
from papers.experience_following.agents import Agent
from papers.streams import Shown, StreamRow, executions, relative_change, similarity_of

SOURCE = "Get CIC-IoT2023's CSV files from unb.ca/cic/datasets/iotdataset-2023.html."
_PROTOCOLS = {"ICMP": 1, "UDP": 17, "TCP": 6}


class CicIotAgent(Agent):
    """Classifies flows after the most similar ones, by their features."""

    name = "cic_iot"
    similarity = staticmethod(similarity_of(relative_change))

    def generate(self, folder: Path, initial: int, n: int, rng: np.random.Generator) -> None:
        with (folder / "part-00000.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*self.prompts["fields"], "label"], restval=0)
            writer.writeheader()
            writer.writerows(make_flow(rng, self.prompts["classes"]) for _ in range(initial + n))

    def read(self, folder: Path, initial: int, n: int, rng: np.random.Generator) -> list[StreamRow]:
        """Sample flows of the eight classes; the initial memory has right answers."""
        flows = read_flows(folder, self.prompts)
        rows: list[StreamRow] = []
        for place in rng.permutation(len(flows))[: initial + n]:
            flow, label = flows[place]
            output = self._right(flow, label) if len(rows) < initial else None
            rows.append(StreamRow(json.dumps(flow), label, output))
        return rows

    def _right(self, flow: Mapping[str, Any], label: str) -> str:
        """Return a right answer in the form of the prompt; it cites what differs from 0."""
        flags = [name for name, value in flow.items() if value in (1.0, "1")]
        return f"ANALYSIS: {', '.join(flags) or 'no flag'} set\nANSWER: {label}"

    def _features(self, query: str) -> str:
        names = self.prompts["fields"]
        return "\n".join(f"{names[name]}: {value}" for name, value in json.loads(query).items())

    def fields(self, row: StreamRow, shown: Shown) -> dict[str, Any]:
        form, outputs = self.prompts["example"], executions(shown)
        examples = [
            form.format(features=self._features(record.text), output=output)
            for (record, _), output in zip(shown, outputs, strict=True)
        ]
        features, classes = self._features(row.query), ", ".join(self.prompts["classes"])
        return {"examples": "\n".join(examples), "features": features, "classes": classes}

    def follow(self, prompt: str, rng: np.random.Generator) -> str:
        """Repeat the majority of the records; one time in five name a class at random."""
        answers = re.findall(r"^ANSWER: (\S+)$", prompt, re.MULTILINE)
        answer = str(rng.choice(self.prompts["classes"]))
        if answers and rng.random() < 0.8:
            answer = Counter(answers).most_common(1)[0][0]
        return f"ANALYSIS: as the examples\nANSWER: {answer}"

    def score(self, row: StreamRow, output: str) -> dict[str, Any]:
        """Return whether the right class, and no other, stands in the answer."""
        answer = output.rpartition("ANSWER:")[2]
        named = {name for name in self.prompts["classes"] if name in answer}
        return {"outcome": float(named == {row.truth})}

    def true_output(self, row: StreamRow) -> str:
        return self._right(json.loads(row.query), row.truth)


def make_flow(rng: np.random.Generator, classes: list[str]) -> dict[str, Any]:
    """Return a row of CIC-IoT2023's files; one flow in five has some fields of another class."""
    label = str(rng.choice(classes))
    flow = _typical(rng, label)
    if rng.random() < 0.2:
        other = _typical(rng, str(rng.choice(classes)))
        flow |= {name: other.get(name, 0) for name in ("Rate", "IAT", "AVG", "ack_flag_number")}
    return {**flow, "label": label}


def _typical(rng: np.random.Generator, label: str) -> dict[str, Any]:
    protocol = next((name for name in ("ICMP", "UDP") if name in label), "TCP")
    benign, size = label == "BenignTraffic", float(rng.normal(60, 5))
    flow: dict[str, Any] = {"Protocol Type": _PROTOCOLS[protocol], protocol: 1, "IPv": 1, "LLC": 1}
    if benign:
        flow |= {str(rng.choice(["HTTPS", "DNS", "SSH"])): 1, "ack_flag_number": 1}
        size = float(rng.normal(500, 150))
    flags = [name for name in ("syn", "psh", "ack", "rst", "fin") if name.upper() in label]
    flow |= {f"{name}_flag_number": 1 for name in flags}
    flow |= {f"{name}_count": round(rng.uniform(1, 3), 2) for name in flags if name != "psh"}
    if "HTTP_" in label:
        flow |= {"HTTP": 1, "ack_flag_number": 1, "flow_duration": rng.uniform(5, 50)}
    rate = rng.lognormal(3 if benign else 8, 1)
    return {
        **flow,
        "Header_Length": rng.lognormal(9 if benign else 5, 1),
        "Duration": 64,
        "Rate": rate,
        "Srate": rate,
        "Tot sum": 10 * size,
        **dict.fromkeys(("Min", "Max", "AVG", "Tot size"), size),
        "Std": 200 if benign else 1,
        "IAT": rng.uniform(8e7, 9e7),
        "Number": 9.5,
        "Magnitue": float(np.sqrt(2 * abs(size))),
        "Weight": 141.55,
    }


def read_flows(folder: Path, prompts: Mapping[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Read flows of the eight classes from all CSV files of a folder."""
    flows = []
    for path in sorted(folder.rglob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                if row.get("label") not in prompts["classes"]:
                    continue
                try:
                    flow = {
                        name: f"{float(row[name]):g}"
                        if name in prompts["discrete"]
                        else round(float(row[name]), 4)
                        for name in prompts["fields"]
                    }
                except (KeyError, ValueError) as error:
                    raise DataError(f"{path}, line {number}: {error!r}. {SOURCE}") from error
                flows.append((flow, row["label"]))
    return flows
