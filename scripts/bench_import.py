"""Bar: `import atommem` takes under 0.5 s. Median of 5 fresh interpreters; the bare interpreter beside it."""

import statistics
import subprocess
import sys
import time

from quick import add_quick, command_line, last_line


def seconds(code: str, times: int) -> float:
    """Median wall-clock of so many fresh interpreters that run `code`."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> int:
    """Print the table and the JSON line; 0 when the bar holds."""
    parser = command_line(__doc__)
    parser.add_argument("--times", type=int, default=5)
    add_quick(parser, times=1)
    times = parser.parse_args().times
    rows = {
        "bare interpreter": "pass",
        "import atommem": "import atommem",
        "the loop": "import atommem.episode_runner",
    }
    figures = {name: round(seconds(code, times), 3) for name, code in rows.items()}
    for name, value in figures.items():
        print(f"{name:<20} {value:>7.3f} s")
    holds = figures["import atommem"] < 0.5
    return last_line({"seconds": figures, "limit": 0.5, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
