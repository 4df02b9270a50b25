"""Read a file, answer questions, and say from what.

python examples/read_and_answer.py POLICY FILE QUESTION [QUESTION ...]
"""

import sys
from pathlib import Path

from atommem import Memory


def main(policy: str, file: str, *questions: str) -> None:
    """The questions are shown while the file is read, as in training."""
    with Memory(policy) as memory:
        memory.read(
            Path(file),
            questions=questions,
            progress=lambda read, all_: print(f"chunk {read} of {all_}"),
        )
        for question in questions:
            answer = memory.ask(question, keep=False)
            print(question, "-", answer.text or "(no answer)")
            for entry in answer.entries:
                print("  from:", entry.text)


if __name__ == "__main__":
    if len(sys.argv) <= 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
