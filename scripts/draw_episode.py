"""Draw an episode's trace as a picture: what was read, and what became of it in memory.

atommem ask letter.txt QUESTION --trace episode.jsonl
python scripts/draw_episode.py episode.jsonl docs/episode.svg
"""

import json
import sys
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

WIDTH, LEFT, RIGHT, LINE, PADDING = 720, 28, 388, 25, 20
STYLE = """
svg { font: 18px system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328 }
.page { fill: #ffffff } .rule { stroke: #d1d9e0 } .quiet { fill: #59636e }
.bold, .badge { font-weight: 600 } .badge { fill: #ffffff; font-size: 15px }
.read { fill: #0969da } .create { fill: #1a7f37 } .update { fill: #9a6700 }
.delete { fill: #cf222e } .answer { fill: #8250df }
.gone { fill: #59636e; text-decoration: line-through }
@media (prefers-color-scheme: dark) {
  svg { fill: #f0f6fc } .page { fill: #0d1117 } .rule { stroke: #3d444d }
  .quiet, .gone { fill: #9198a1 } .badge { fill: #0d1117 } .read { fill: #4493f8 }
  .create { fill: #3fb950 } .update { fill: #d29922 } .delete { fill: #f85149 }
  .answer { fill: #ab7df8 }
}"""
Text = tuple[str, str]  # class, line


def actions(step: dict[str, Any]) -> list[tuple[str, list[Text]]]:
    """Return (kind, lines) of every action that a step took."""
    found = []
    for operation in step["operations"]:
        kind, lines = operation["kind"], list[Text]()
        if kind == "update":
            lines += [("gone", line) for line in wrap(operation["before"], 33)]
        if kind in ("read", "create", "update", "delete"):
            text = operation["before" if kind == "delete" else "after"]
            found.append((kind, lines + [("", line) for line in wrap(text, 33)]))
    answers = [action["text"] for action in step["actions"] if action["kind"] == "answer"]
    found += [("answer", [("bold", line) for line in wrap(text, 33)]) for text in answers]
    return found


def draw(steps: list[dict[str, Any]], question: str) -> str:
    parts, y = list[str](), PADDING

    def write(x: int, row: int, text: Text, **more: str) -> None:
        extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        parts.append(f'<text class="{text[0]}" x="{x}" y="{row}"{extra}>{escape(text[1])}</text>')

    write(LEFT, y + 18, ("quiet", "it reads, one piece a step"))
    write(RIGHT, y + 18, ("quiet", "it writes to its memory"))
    y += 2 * LINE - 8
    for step in steps:
        parts.append(f'<path class="rule" d="M{LEFT} {y}H{WIDTH - LEFT}"/>')
        y += PADDING
        chunk = [item["values"].get("chunk", "") for item in step["observation"]["stream"]]
        read = [("", line) for line in wrap(" ".join(chunk), 34)]
        read = read or [("bold", line) for line in wrap(question, 32)]
        for row, text in enumerate(read):
            write(LEFT, y + 16 + row * LINE, text)
        below = y
        for kind, lines in actions(step):
            width = 9 * len(kind) + 16
            box = f'x="{RIGHT}" y="{below - 2}" width="{width}" height="24" rx="12"'
            parts.append(f'<rect class="{kind}" {box}/>')
            write(RIGHT + width // 2, below + 15, ("badge", kind), text_anchor="middle")
            for row, text in enumerate(lines):
                write(RIGHT, below + 16 + LINE * (row + 1), text)
            below += LINE * (len(lines) + 1) + 6
        if not actions(step):
            write(RIGHT, y + 16, ("quiet", "nothing"))
        y = max(y + LINE * len(read), below) + PADDING - 6
    size = f'viewBox="0 0 {WIDTH} {y}"'
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{STYLE}\n</style>\n'
        f'<rect class="page" width="{WIDTH}" height="{y}" rx="10"/>\n{body}\n</svg>\n'
    )


def main() -> int:
    trace, out = sys.argv[1:]
    lines = [json.loads(line) for line in Path(trace).read_text(encoding="utf-8").splitlines()]
    (question, *_) = lines[0]["task"]["questions"]
    steps = [line for line in lines if line["type"] == "step"]
    Path(out).write_text(draw(steps, question["text"]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
