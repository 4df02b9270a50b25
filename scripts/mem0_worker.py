"""mem0 by its own package, driven over standard input and output: a line of JSON in, a line of JSON out.

    python mem0_worker.py CONFIG        # CONFIG: what `Memory.from_config` takes, as JSON

`{"add": TEXT, "infer": BOOL}` gives the ids of what was added or changed; `{"search": QUERY, "k": K}` what was found.
Both come with the seconds that the package took. Runs in an environment of its own: it imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
import time
from typing import Any

USER = "bench"


def main() -> None:
    """Answer until standard input ends."""
    with contextlib.redirect_stdout(sys.stderr):
        from mem0 import Memory

        memory = Memory.from_config(json.loads(sys.argv[1]))
    # 2.x took the owner into the filters, and calls the limit top_k.
    new = "top_k" in inspect.signature(memory.search).parameters

    def done(asked: dict[str, Any]) -> dict[str, Any]:
        if "add" in asked:
            made = memory.add(asked["add"], user_id=USER, infer=asked["infer"])["results"]
            return {"ids": [item["id"] for item in made if item["event"] != "DELETE"]}
        scope = (
            {"top_k": asked["k"], "filters": {"user_id": USER}}
            if new
            else {"limit": asked["k"], "user_id": USER}
        )
        found = memory.search(asked["search"], **scope)["results"]
        return {"found": [{"id": item["id"], "text": item["memory"]} for item in found]}

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        begun = time.perf_counter()
        with contextlib.redirect_stdout(sys.stderr):
            try:
                answer = done(json.loads(line))
            except Exception as error:  # whatever the package raises is its outcome
                answer = {"failed": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps({**answer, "seconds": time.perf_counter() - begun}), flush=True)


if __name__ == "__main__":
    main()
