"""A hook of mkdocs (see mkdocs.yml): the site's first page is the README."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

README = Path(__file__).parents[1] / "README.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README, with its links as they are from within docs/."""
    text = README.read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files
