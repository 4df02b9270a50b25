"""Run the experiment: ``python -m papers.amac``."""

from papers.cli import main

raise SystemExit(main("amac"))
