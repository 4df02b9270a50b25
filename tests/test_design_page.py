"""docs/design.md shows a step as the code makes it."""

from pathlib import Path
from types import ModuleType

import pytest

from tests.fakes import load_script

pytest.importorskip("transformers")
SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def design_step(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return load_script("design_step")


def test_the_step_in_the_design_page_is_what_the_code_does(design_step: ModuleType) -> None:
    made, shown = design_step.blocks(), design_step.on_page()
    assert list(shown) == list(made)
    for name, text in made.items():
        assert shown[name] == text, f"{name}: run python scripts/design_step.py --write"
