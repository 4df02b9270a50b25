"""What all pages share, reports and the server's own: colours in light and dark, layout down to a phone's width."""

from __future__ import annotations

from pathlib import Path


def page_asset(name: str) -> str:
    """``front.css`` or ``front.js``, as it is. The script needs a button of the id ``theme``."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
