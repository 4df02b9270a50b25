from pathlib import Path

import pytest
import yaml

from atommem.actions import ANSWER, ANSWER_ACTION, CALL, MEMORY_KINDS, ActionSpec, Body
from atommem.config import MemoryConfig
from atommem.dialects import get_dialect, load_templates, register_dialect
from atommem.dialects.templates import fill
from atommem.environment import find_environment
from atommem.errors import ConfigError, DialectError

KINDS = (*MEMORY_KINDS, ANSWER, CALL)
MINIMAL = {
    "system": "do {actions}",
    "scratchpad": "S {text}",
    "query": "R {text}",
    "memory": "M {entries}",
    "entry": "{handle} {text}",
}
SECTION = {
    "questions": "Q {questions}",
    "question_line": "{number} {text}",
    "chunk": "C {chunk}",
    "reading": "read",
    "answering": "answer",
    "read_notice": "",
}


def write(folder: Path, **changes: object) -> str:
    path = folder / "templates.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in {**MINIMAL, **changes}.items() if v is not None}))
    return str(path)


def test_unknown_dialect_names_the_known_ones() -> None:
    with pytest.raises(DialectError, match=r"klingon.*paper"):
        get_dialect("klingon")


def test_a_third_party_registers_a_dialect() -> None:
    tags = {kind: f"x_{kind}" for kind in KINDS}
    register_dialect("test_third_party", tags)
    register_dialect("test_third_party", tags)  # the same again is no conflict
    assert get_dialect("test_third_party").tags["create"] == "x_create"
    with pytest.raises(DialectError, match="other tags"):
        register_dialect("test_third_party", {kind: f"y_{kind}" for kind in KINDS})


def test_a_dialect_needs_a_tag_of_its_own_for_every_action() -> None:
    with pytest.raises(DialectError, match="no tag for delete"):
        register_dialect("test_gap", {kind: kind for kind in KINDS if kind != "delete"})
    with pytest.raises(DialectError, match="one tag for two actions"):
        register_dialect("test_same", dict.fromkeys(KINDS, "same"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system": None}, "missing field system"),
        ({"query": "no place for it"}, r"query lacks \{text\}"),
        ({"actions": {"create": 3}}, r"actions\.create is int"),
        ({"colour": "red"}, "unknown field colour"),
        ({"chat": "yes please"}, "field chat is str, expected bool"),
    ],
)
def test_a_broken_template_file_names_the_field(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(DialectError, match=message):
        load_templates(write(tmp_path, **changes))


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ({"chunk": None}, "pieces lacks chunk"),
        ({"chunk": "no place for it"}, r"piece chunk lacks \{chunk\}"),
        ({"colour": "red"}, "unknown piece colour"),
    ],
)
def test_a_broken_section_names_the_piece(tmp_path: Path, pieces: dict[str, object], message: str) -> None:
    section = {name: text for name, text in {**SECTION, **pieces}.items() if text is not None}
    path = write(tmp_path, environments={"longdoc": {"pieces": section}})
    with pytest.raises(DialectError, match=message):
        find_environment("longdoc").section(path)


def test_a_file_without_a_section_takes_the_environments_own(tmp_path: Path) -> None:
    longdoc = find_environment("longdoc")
    assert longdoc.section(write(tmp_path)) == longdoc.section("full")
    (tmp_path / "plain").mkdir()
    assert longdoc.section(write(tmp_path / "plain", chat=False)) == longdoc.section("compact")


def test_actions_of_an_environment_bring_their_tags() -> None:
    dialect = get_dialect("paper")
    flag, tool = ActionSpec("flag", Body.TEXT), ActionSpec("search", Body.ARGUMENTS)
    grammar = dialect.grammar([ANSWER_ACTION, flag, tool])
    text = '<flag>x</flag><tool_call>{"name": "search", "arguments": {"q": 1}}</tool_call>'
    assert [(action.kind, action.arguments) for action in grammar.parse(text).actions] == [
        ("flag", None),
        ("search", {"q": 1}),
    ]
    assert dialect.grammar().parse(text).actions == ()
    for clash in (ActionSpec("delete_memory", Body.TEXT), ActionSpec("x", Body.TEXT, tag="final_answer")):
        with pytest.raises(DialectError, match="for two actions"):
            dialect.grammar([ANSWER_ACTION, clash])


def test_a_dialect_of_whole_completions_has_to_know_the_phases() -> None:
    with pytest.raises(DialectError, match="has acting as well"):
        get_dialect("memagent", "memagent").grammar([ANSWER_ACTION], ("reading", "acting"))


def test_a_file_that_is_no_mapping_or_no_yaml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text("- a\n- b\n")
    with pytest.raises(DialectError, match="holds list"):
        load_templates(str(path))
    path = tmp_path / "broken.yaml"
    path.write_text("a: [1, 2\n")
    with pytest.raises(DialectError, match="not valid YAML"):
        load_templates(str(path))
    with pytest.raises(DialectError, match="no template set"):
        load_templates(str(tmp_path / "nowhere.yaml"))


def test_fill_leaves_other_braces_and_inserted_text_alone() -> None:
    assert fill(r"\boxed{answer} {text}", {"text": "{text} {chunk}"}) == r"\boxed{answer} {text} {chunk}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": "sideways"}, "layout is 'sideways'"),
        ({"query_tokens": 0}, "query_tokens"),
        ({"retrieve_k": 0}, "retrieve_k is 0"),
        ({"disabled_actions": ["answer"]}, "disabled_actions"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_value(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MemoryConfig(**changes)  # type: ignore[arg-type]
