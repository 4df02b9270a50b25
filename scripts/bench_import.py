"""Bar: `import atommem` takes under 0.5 s. Median of 5 fresh interpreters; the bare interpreter beside it."""

import json
import statistics
import subprocess
import sys
import time


def seconds(code: str) -> float:
    """Median wall-clock of a fresh interpreter that runs `code`."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> int:
    """Print the table and the JSON line; 0 when the bar holds."""
    rows = {"bare interpreter": "pass", "import atommem": "import atommem", "the loop": "import atommem.episode_runner"}
    figures = {name: round(seconds(code), 3) for name, code in rows.items()}
    for name, value in figures.items():
        print(f"{name:<20} {value:>7.3f} s")
    holds = figures["import atommem"] < 0.5
    print(json.dumps({"seconds": figures, "limit": 0.5, "holds": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
