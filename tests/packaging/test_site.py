"""The documentation as a site: every page is in it, every link leads somewhere, readers load nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {page.stem: page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")}
    assert {page.stem for page in (ROOT / "docs").rglob("*.md")} | {"index"} <= set(pages)
    assert 'id="atommem.episode_runner.EpisodeRunner.run"' in pages["api"]
    for name, page in pages.items():
        loaded = re.findall(r"<(?:script|img|iframe|link)[^>]+?(?:src|href)=[\"'](https?://[^\"']*)", page)
        assert not loaded, f"{name} loads {loaded}"
