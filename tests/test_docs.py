"""docs/tutorials as one reader follows them, one page after the other in one folder; and what pages show and claim."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import getitem
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from atommem import cli, dialects
from atommem.actions import MEMORY_ACTIONS
from atommem.config import MemoryConfig
from atommem.environment import EnvironmentConfig, environment_config
from atommem.envs.longdoc import Environments
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task_files import load_tasks, save_tasks
from atommem.errors import DataError
from atommem.grammar import Grammar
from atommem.memory.log import Outcome
from atommem.memory.memory import WorkingMemory
from tests.fakes import WordEmbedder, WordTokenizer, load_script
from tests.pages import ROOT, Reader, blocks

FOLDER = "docs/tutorials"
NAV = yaml.safe_load((ROOT / "mkdocs.yml").read_text().split("\nnav:")[1])
PAGES = (
    "own_documents",
    "own_environment",
    "own_rule",
)
ORDER = [f"{page}.md" for page in PAGES]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody with a model at hand, who has done the first page."""
    import torch

    from atommem.demo.recipe import PolicySize
    from atommem.demo.tiny_policy import make_model, prompt_words, word_tokenizer

    with Reader(tmp_path_factory.mktemp("reader")) as reader:
        tokenizer = word_tokenizer(
            [*prompt_words(environment_config("longdoc"), MemoryConfig()), "Ida Brook Tom Reed"]
        )
        torch.manual_seed(0)
        make_model(PolicySize(width=32, layers=1, max_positions=8192), tokenizer).save_pretrained(
            "model"
        )
        tokenizer.save_pretrained("model")
        reader.known = reader.follow("docs/train.md")
        yield reader


@pytest.mark.slow
def test_a_first_policy(reader: Reader) -> None:
    assert {"cold_start", "grpo", "eval", "heldout.parquet"} <= {
        path.name for path in Path("runs/demo").iterdir()
    }
    assert reader.known["memory"].readings[0].chunks == len(reader.known["task"].documents)
    assert reader.known["answer"].steps
    assert Path("runs/qwen3_0.6b_lora/adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_what_can_be_done_with_it(
    reader: Reader, undrawn: None, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.follow(f"{FOLDER}/own_documents.md")
    assert "Tom Reed" in capsys.readouterr().out
    summary = json.loads(Path("runs/letters_eval/summary.json").read_text())
    assert (summary["episodes"], summary["failed"]) == (2, 0)
    reader.follow(f"{FOLDER}/own_rule.md")
    assert "my_rules:LeastShown" in Path("runs/rules/mine/run.json").read_text()


@pytest.mark.slow
def test_the_examples(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from atommem.serve.served_model import ServedModel
    from tests.serve.servers import make_conversations, running

    monkeypatch.syspath_prepend(ROOT / "examples")  # as for any script: it finds its own folder
    documents = reader.known["task"].documents
    Path("book.txt").write_text("\n\n".join(document.text for document in documents))
    policy = "runs/demo/grpo"
    lines = [
        f"read_and_answer.py {policy} book.txt 'Who ?' 'Where ?'",
        f"compare.py runs/demo/cold_start {policy} runs/demo/heldout.parquet 2",
        f"own_rule.py {policy} book.txt 1",
        "serve_client.py book.txt 'Who ?'",
    ]
    assert {line.split()[0] for line in lines} == {
        path.name for path in (ROOT / "examples").glob("*.py")
    }
    with running(make_conversations(Path("log.db"), ServedModel.open(policy))) as server:
        for line in lines:
            reader.run(
                f"python {ROOT}/examples/{line}" + f" {server.url}/v1" * line.startswith("serve")
            )
    printed = capsys.readouterr().out
    for told in (
        f"chunk {len(documents)} of {len(documents)}",
        "Where ? - ",
        "EM 0.",
        "kept:",
        "ask again: ",
    ):
        assert told in printed


@pytest.fixture(scope="module")
def atlas(reader: Reader) -> Path:
    """What the page on an environment from outside leaves: a policy from nothing, trained, evaluated twice, served."""
    names = reader.follow(f"{FOLDER}/own_environment.md")
    # Two updates teach it little: sometimes it uses up its turns and gives no answer.
    assert names["answer"].status in ("completed", "incomplete")
    assert names["answer"].output
    return reader.folder / "runs" / "atlas"


@pytest.mark.slow
def test_it_is_trained_evaluated_traced_and_reported(
    atlas: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged = [
        json.loads(line) for line in (atlas / "grpo" / "metrics.jsonl").read_text().splitlines()
    ]
    updates = [entry for entry in logged if "loss" in entry]
    assert [entry["step"] for entry in updates] == [1, 2]
    for entry in updates:
        assert 0 <= entry["overlap"] == pytest.approx(entry["reward"])
        assert entry["overlap/atlas"] == pytest.approx(entry["overlap"])
        assert entry["actions/lookup"] > 0
        assert entry["sampling/sampling_logp_difference/mean"] < 1e-4
    settings = json.loads((atlas / "grpo" / "atommem_config.json").read_text())
    assert (settings["environment"], settings["turns"]) == ("atlas", 4)
    summary = json.loads((atlas / "after" / "summary.json").read_text())
    assert summary["episodes"] == 6
    assert set(summary["metrics"]) >= {"em", "overlap"}
    assert summary["means"]["actions/lookup"] > 0
    assert cli.main(["trace", str(min((atlas / "guide" / "traces").iterdir()))]) == 0
    folders = [str(atlas / name) for name in ("before", "after")]
    assert cli.main(["compare", *folders, "--metric", "overlap"]) == 0
    printed = capsys.readouterr().out
    for said in ("step 2/3, acting", "call: lookup", "overlap: ", "overlap on the 6 tasks"):
        assert said in printed
    report = atlas / "report"
    assert (
        cli.main(["report", *folders, "--out", str(report), "--training", str(atlas / "grpo")]) == 0
    )
    results = json.loads((report / "results.json").read_text())
    assert {group["dataset"] for group in results["groups"]} == {"atlas"}
    for file in ("tables.md", "report.html"):
        assert all(word in (report / file).read_text() for word in ("overlap", "lookup"))


@pytest.mark.slow
def test_what_only_documents_allow_is_refused_by_name(
    atlas: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = [
        "eval",
        "--policy",
        str(atlas / "sft"),
        "--data",
        "train.atlas",
        "--out",
        str(atlas / "rag"),
    ]
    assert cli.main([*evaluation, "--method", "rag"]) == 2
    assert (
        "method=rag: reads documents, and environment 'atlas' has none" in capsys.readouterr().err
    )
    plan = [
        "train",
        "grpo",
        "--model_name_or_path",
        str(atlas / "sft"),
        "--data",
        "train.atlas",
        "--dry_run",
    ]
    assert cli.main(plan) == 2
    assert "Atlas has no `shape`" in capsys.readouterr().err


@dataclass
class SeededConfig(EnvironmentConfig):
    seed: int = 0


class Seeded(Environments):
    config_class = SeededConfig


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["eval", "--policy", "x", "--out", "y"], ["train", "grpo", "--output_dir", "y"]]
)
def test_a_setting_that_a_command_has_too_is_refused_by_name(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command, "--data", "z", "--environment", f"{__name__}:Seeded"]) == 2
    assert "environment Seeded has a setting that this command has too" in capsys.readouterr().err


def test_atlas_has_120_lines_and_imports_only_the_core() -> None:
    files = [
        path.read_text()
        for path in (ROOT / "examples" / "atlas").rglob("*.py")
        if path.stem != "start"
    ]
    environment = ROOT / "examples" / "atlas" / "atommem_atlas" / "__init__.py"
    assert len(environment.read_text().splitlines()) <= 120
    imported = {
        line.split()[1]
        for text in files
        for line in text.splitlines()
        if line.startswith("from atommem.")
    }
    core = {"actions", "description", "environment", "errors", "observation"}
    assert {name.split(".")[1] for name in imported} == core


def test_every_page_is_followed() -> None:
    found = {path.name for path in (ROOT / FOLDER).iterdir()}
    assert [item["Tutorials"] for item in NAV if "Tutorials" in item] == [
        [f"tutorials/{page}" for page in ORDER]
    ]
    assert set(ORDER) == found
    for page in found:
        assert f'{page}")' in Path(__file__).read_text(), f"{page} is followed by no test"


TASK: dict[str, Any] = {
    "id": "a",
    "source": "mine",
    "questions": [{"text": "Who?", "answers": ["Ida", ""], "id": "q", "metadata": {"hops": 2}}],
    "documents": [{"title": "June", "text": "Ida writes.", "gold": True}],
    "metadata": {},
}
TEXT = {name: value for name, value in TASK.items() if name != "documents"} | {
    "context": "Ida writes."
}
OTHERS = [None, "", " ", "text", 7, True, [], {}, ["x"], ["", " "], [7], [{}], {"x": 1}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a task, itself left out."""
    for key, item in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield (*path, key)
        yield from places(item, (*path, key))


def test_what_the_schema_takes_the_reader_reads(tmp_path: Path) -> None:
    """Each place of a task taken out, or given every other value; the reader may take something empty for nothing."""
    ((_, schema),) = blocks(f"{FOLDER}/own_documents.md", "json")
    validator = jsonschema.Draft202012Validator(json.loads(schema))
    validator.check_schema(validator.schema)
    file, refused = tmp_path / "tasks.jsonl", 0
    for task in (TASK, TEXT):
        for (*way, last), other in product(places(task), (..., *OTHERS)):
            changed = copy.deepcopy(task)
            held: Any = reduce(getitem, way, changed)
            if other is ...:
                del held[last]
            else:
                held[last] = other
            file.write_text(json.dumps(changed) + "\n")
            try:
                read = bool(load_tasks(file))
            except DataError:
                read = False
            refused += not read
            lax = read and other is not ... and not other
            assert validator.is_valid(changed) == read or lax, (way, last, other, read)
    assert refused > 100
    save_tasks(generate(WorldConfig(), 3, 0), file)
    for line in file.read_text().splitlines():
        validator.validate(json.loads(line))


async def test_the_rules_that_are_shown_rule(tmp_path: Path) -> None:
    settings = MemoryConfig(
        capacity=2, retention="my_rules:LeastShown", admission="my_rules:NoDuplicates"
    )
    grammar = Grammar({spec.name: spec for spec in MEMORY_ACTIONS})
    with Reader(tmp_path) as reader:
        ((kind, block),) = blocks(f"{FOLDER}/own_rule.md", "python")
        reader.do(kind, block, {}, "own_rule.md")
        memory = WorkingMemory(WordEmbedder(), WordTokenizer(), settings)
        await memory.apply(grammar.parse("<create>red</create><create>blue</create>").actions, 0)
        operations = await memory.apply(
            grammar.parse("<create>red</create><create>green</create>").actions, 1
        )
    told = [(operation.kind, operation.outcome, operation.reason) for operation in operations]
    assert told == [
        ("create", Outcome.REJECTED, "admission:my_rules:NoDuplicates: repeats entry 1"),
        ("delete", Outcome.APPLIED, "shown 0 times"),
        ("create", Outcome.APPLIED, ""),
    ]


def test_the_dialect_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "_REGISTERED", dict(dialects._REGISTERED))
    defined: dict[str, Any] = {}
    for page in ("docs/extending.md",):
        for _, block in blocks(page, "python"):
            exec(compile(block, page, "exec"), defined)
    assert dialects.get_dialect("mine").tags["create"] == "remember"


def test_the_step_in_the_design_page_is_what_the_code_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    design_step = load_script("design_step")
    made, shown = design_step.blocks(), design_step.on_page()
    assert list(shown) == list(made)
    for name, text in made.items():
        assert shown[name] == text, f"{name}: run python scripts/design_step.py --write"
