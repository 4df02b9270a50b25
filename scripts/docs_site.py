"""What mkdocs adds to the pages of docs/ (see mkdocs.yml): the README, and comments on fields."""

import re
from copy import copy
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

README = Path(__file__).parents[1] / "README.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as the first page, with its links as they are from within docs/."""
    text = README.read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


class Fields(griffe.Extension):
    """List the fields of each class that have no docstring, with the comments behind them."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Give `Memory` the documentation of the methods of `AsyncMemory` that it waits for."""
        memory, twin = pkg["api.Memory"], pkg["api.AsyncMemory"]
        for name in twin.members.keys() & memory.members.keys():
            if twin[name].docstring:
                memory[name] = copy(twin[name])
                memory[name].labels = twin[name].labels - {"async"}

    def on_class(self, *, cls: Any, **_: Any) -> None:
        fields = []
        for name, member in cls.members.items():
            if member.is_attribute and not (member.docstring or name.startswith("_")):
                comment: Any = re.search(r"  # (?!type:)(.*)$|$", member.source)
                shown = {"annotation": member.annotation, "description": comment[1] or ""}
                fields.append(griffe.DocstringAttribute(name, **shown))
        if fields:
            cls.docstring = cls.docstring or griffe.Docstring("", parent=cls)
            cls.docstring.parsed.append(griffe.DocstringSectionAttributes(fields))
