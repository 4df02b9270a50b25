"""Run the experiment: ``python -m papers.traceretain``."""

from papers.cli import main

raise SystemExit(main("traceretain"))
