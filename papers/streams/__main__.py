"""Run the experiment: ``python -m papers.streams``."""

from papers.cli import main

raise SystemExit(main("streams"))
