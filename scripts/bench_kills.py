"""Does a served memory lose or double anything when its processes are killed?

    python scripts/bench_kills.py [--kills 50] [--databases sqlite postgresql pgbouncer]

Two gateways share a database. Eight clients write texts and ask, each with an Idempotency-Key; they
repeat a request at the other gateway until it is acknowledged, and then once more. By turns each
gateway gets SIGKILL, and so do the process of a connection of PostgreSQL (the server then drops all
and recovers) and pgbouncer (transaction mode). The policy is a script in the gateways.

The bar: 0 acknowledged texts or answers lost, 0 doubled, no error but 503.
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import last_line, read_options


def main() -> int:
    """Run the bench; returns the exit status."""
    from tests.serve.kills import DATABASES, kill_under_load

    options = read_options(__doc__, kills=(50, 4), databases=[*DATABASES])
    result: dict[str, Any] = {"holds": True}
    for name in options.databases:
        start, is_installed = DATABASES[name]
        if not is_installed:
            print(f"{name}: not installed")
            continue
        began = time.monotonic()
        with TemporaryDirectory() as folder, start(Path(folder)) as database:
            found = kill_under_load(database, options.kills)
        found["seconds"] = round(time.monotonic() - began)
        print(name, found, flush=True)
        result[name] = found
        wrong = found["lost"] or found["doubled"] or found["errors"].keys() - {"no answer", "503"}
        result["holds"] &= not wrong
    return last_line(result)


if __name__ == "__main__":
    sys.exit(main())
