"""Write short tasks of real rows, with the notes of a faultless reader, for small models.

    python scripts/short_rows.py DATA OUT --split train|dev --tokenizer MODEL [--documents 2-10]

DATA holds the folders hotpotqa, 2wikimultihopqa and musique with the official files. Every row
becomes a task of few documents, its own first, each cut to whole sentences around what supports the
answer. So do the single hops: MuSiQue's decomposition and 2WikiMultihopQA's evidences, asked as in
`asked`. Of a gold document the note is its supporting sentence, without what stands in brackets, up
to the clause that matters, and with the title for a pronoun. Rows are used once a round; --n asks
for more rounds, with other documents. The last line is JSON.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Self

import yaml
from common import command_line, last_line

from atommem.envs.benchmarks.questions import HOTPOTQA, MUSIQUE, TWOWIKI, get_benchmark
from atommem.envs.benchmarks.rows import read_rows
from atommem.envs.synthetic.expert import Note
from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import save_tasks

# Not after an initial or a title of one or two letters.
_END = re.compile(
    r"(?:(?<=[.!?])(?<!\b[A-Z]\.)(?<!\b[A-Z][a-z]\.)|(?<=[.!?][\"”)]))\s+(?=[A-Z\"“(])"
)
_BRACKETS = re.compile(r"\s*\([^()]*\)")
_PRONOUN = re.compile(r"(He|She|It|They|His|Her|Its|Their)\b")
_QUESTIONS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
LONGEST = 30  # words of a note
ORDERED = 0.7  # share of tasks whose documents are in the order of the hops


@dataclass
class Row:
    """A question with its paragraphs as sentences.

    Attributes:
        gold: Places of the paragraphs that support the answer, in the order of the hops, with the
            places of their supporting sentences.
        needles: Texts that a supporting sentence is about, the answer among them.
    """

    id: str
    source: str
    kind: str
    question: str
    answers: list[str]
    paragraphs: list[tuple[str, list[str]]]
    gold: dict[int, list[int]]
    needles: list[str] = field(default_factory=list)

    def hop(self, number: int, question: str, answer: str, place: int, support: list[int]) -> Self:
        changes: Any = {"kind": "single", "question": question, "answers": [answer]}
        gold, name = {place: support}, f"{self.id}#{number}"
        return replace(self, id=name, gold=gold, needles=[answer], **changes)


def asked(subject: str, relation: str) -> str:
    question = _QUESTIONS.get(relation, f"What is the {relation} of SUBJECT?")
    return question.replace("SUBJECT", subject)


def name(title: str) -> str:
    """A title without what tells it from others."""
    return re.sub(r"\s*\([^()]*\)$", "", title)


def holds(text: str, needle: str) -> bool:
    return needle.lower() in text.lower()


def wiki_rows(source: str, split: str, data: Path) -> Iterator[Row]:
    for file in get_benchmark(source).find(split, data):
        for values in (row.values for row in read_rows(file)):
            paragraphs = [(title, [s.strip() for s in text]) for title, text in values["context"]]
            titles = [title for title, _ in paragraphs]
            gold: dict[int, list[int]] = {}
            for title, number in values["supporting_facts"]:
                place = titles.index(title) if title in titles else -1
                if place >= 0 and number < len(paragraphs[place][1]):
                    gold.setdefault(place, []).append(number)
            if {title for title, _ in values["supporting_facts"]} - set(titles) or not gold:
                continue
            triples = [tuple(triple) for triple in values.get("evidences", ())]
            question, answer = values["question"].strip(), values["answer"]
            # First the documents that the question names.
            order = sorted(gold, key=lambda place: not holds(question, name(titles[place])))
            needles = [answer, *(name(titles[p]) for p in gold), *(t[2] for t in triples)]
            gold = {place: gold[place] for place in order}
            kind, name_of = values["type"], values["_id"]
            row = Row(name_of, source, kind, question, [answer], paragraphs, gold, needles)
            yield row
            for number, (subject, relation, value) in enumerate(triples):
                for place in gold:
                    support = [n for n in gold[place] if holds(paragraphs[place][1][n], value)]
                    if name(titles[place]) == subject and support:
                        yield row.hop(number, asked(subject, relation), value, place, support)


def musique_rows(split: str, data: Path) -> Iterator[Row]:
    for file in get_benchmark(MUSIQUE).find(split, data):
        for values in (row.values for row in read_rows(file)):
            if not values["answerable"]:
                continue
            items = values["paragraphs"]
            paragraphs = [(i["title"], _END.split(i["paragraph_text"].strip())) for i in items]
            hops = values["question_decomposition"]
            found: list[str] = []
            gold: dict[int, list[int]] = {}
            singles = []
            for number, hop in enumerate(hops):
                place, answer = hop["paragraph_support_idx"], hop["answer"]
                text = re.sub(r"#(\d)", lambda m: found[int(m[1]) - 1], hop["question"]).strip()  # noqa: B023
                subject, _, relation = text.partition(" >> ")
                question = asked(subject, relation) if relation else text[0].upper() + text[1:]
                question = question if question.endswith("?") else f"{question}?"
                sentences = paragraphs[place][1]
                support = [n for n, s in enumerate(sentences) if holds(s, answer)][:1]
                gold.setdefault(place, []).extend(support or [0])
                found.append(answer)
                if support:
                    singles.append((number, question, answer, place, support))
            answers = [values["answer"], *values["answer_aliases"]]
            kind = values["id"].partition("__")[0]
            question = values["question"].strip()
            row = Row(values["id"], MUSIQUE, kind, question, answers, paragraphs, gold, found)
            yield from [row, *(row.hop(*single) for single in singles)]


def statement(title: str, sentences: list[str], needles: list[str]) -> str:
    """A short statement that stands alone, of supporting sentences."""
    parts = []
    for sentence in sentences:
        matters = lambda m: m[0] if any(holds(m[0], n) for n in needles) else ""  # noqa: E731
        kept = " ".join(_BRACKETS.sub(matters, sentence).split())
        if len(kept.split()) > LONGEST:
            # It may end with the clause that holds the last needle.
            ends = [kept.lower().rfind(n.lower()) + len(n) for n in needles if holds(kept, n)]
            least = max(ends, default=len(" ".join(kept.split()[: LONGEST // 2])))
            cut = re.search(r"[,;.](?=\s[a-z]|$)", kept[least:])
            kept = kept[: least + cut.start()] + "." if cut else kept
        parts.append(kept)
    text = " ".join(parts)
    if holds(text, name(title)):
        return text
    if begins := _PRONOUN.match(text):
        owner = "'s" if begins[0] in ("His", "Her", "Its", "Their") else ""
        return f"{name(title)}{owner}{text[begins.end() :]}"
    return f"{name(title)}: {text}"


def subject_of(question: str, titles: list[str]) -> str:
    """What to search for: the gold titles that the question names, or its longest name."""
    named = [name(title) for title in titles if holds(question, name(title))]
    runs = re.findall(r"[A-Z][\w'-]*(?: (?:of |the )?[A-Z][\w'-]*)*", question.partition(" ")[2])
    return " ".join(dict.fromkeys(named)) or max(runs, key=len, default=question)


class Cutter:
    """Cuts documents to whole sentences within `most` tokens."""

    def __init__(self, tokenizer: Any, most: int) -> None:
        self.most = most
        self.length = cache(lambda text: len(tokenizer.encode(text, add_special_tokens=False)))

    def cut(self, title: str, sentences: list[str], needed: list[int]) -> str:
        """The needed sentences and as many neighbours as fit, first those before."""
        low, high = min(needed, default=0), max(needed, default=0)
        left = self.most - self.length(title) - self.length(" ".join(sentences[low : high + 1]))
        while True:
            before = self.length(sentences[low - 1]) if low else left + 1
            after = self.length(sentences[high + 1]) if high + 1 < len(sentences) else left + 1
            if before <= left:
                low, left = low - 1, left - before
            elif after <= left:
                high, left = high + 1, left - after
            else:
                return " ".join(sentences[low : high + 1])


def make_task(row: Row, task_id: str, count: int, cutter: Cutter, rng: Random) -> Task | None:
    gold = list(row.gold)
    others = [place for place in range(len(row.paragraphs)) if place not in row.gold]
    chosen = rng.sample(others, min(max(count - len(gold), 0), len(others)))
    places = [*gold, *chosen]
    rng.shuffle(places)
    if rng.random() < ORDERED:
        in_order = iter(gold)
        places = [next(in_order) if place in row.gold else place for place in places]
    documents, notes = [], []
    for place in places:
        title, sentences = row.paragraphs[place]
        needed = sorted({*row.gold.get(place, ())})
        if sum(len(sentences[n].split()) for n in needed) > LONGEST or len(needed) > 2:
            matter = [n for n in needed if any(holds(sentences[n], one) for one in row.needles)]
            needed = (matter or needed)[:1]
        text = cutter.cut(title, sentences, needed)
        if cutter.length(f"{title}\n{text}") <= cutter.most:
            documents.append(Document(title, text, bool(needed)))
            main = [sentences[n] for n in needed]
            if main:
                notes.append(Note("create", main[0], statement(title, main, row.needles)))
        elif needed:
            return None
    titles = [row.paragraphs[place][0] for place in gold]
    details = {"type": row.kind, "hops": len(gold)}
    question = Question(row.question, tuple(dict.fromkeys(row.answers)), task_id, details)
    held = [n for n, document in enumerate(documents) if document.gold]
    metadata: dict[str, Any] = {"row": row.id, "query": subject_of(row.question, titles)}
    metadata["notes"] = [asdict(note) for note in notes]
    asked = (question.with_documents(held),)
    return Task(task_id, asked, tuple(documents), source=row.source, metadata=metadata)


def main(argv: list[str] | None = None) -> int:
    parser = command_line(__doc__)
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("out", type=Path, metavar="OUT", help="a .parquet or .jsonl file")
    parser.add_argument("--split", choices=["train", "dev"], required=True)
    parser.add_argument("--tokenizer", required=True, help="counts the tokens of a document")
    parser.add_argument("--documents", default="2-10", help="documents of a task (%(default)s)")
    parser.add_argument("--most_tokens", type=int, default=120, help="of a document (%(default)s)")
    parser.add_argument("--n", type=int, help="tasks (default: every row once)")
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args(argv)
    from transformers import AutoTokenizer

    low, high = map(int, arguments.documents.split("-"))
    rows = [
        *wiki_rows(HOTPOTQA, arguments.split, arguments.data),
        *wiki_rows(TWOWIKI, arguments.split, arguments.data),
        *musique_rows(arguments.split, arguments.data),
    ]
    cutter = Cutter(AutoTokenizer.from_pretrained(arguments.tokenizer), arguments.most_tokens)
    tasks: list[Task] = []
    too_long: set[str] = set()
    wanted, number = arguments.n or len(rows), 0
    while number < wanted:
        rng = Random(f"{arguments.seed}:{number}")
        if number % len(rows) == 0:
            Random(f"{arguments.seed}:round {number}").shuffle(rows)
        row = rows[number % len(rows)]
        task_id = f"short-{arguments.split}-{number:05d}"
        count = rng.randint(max(low, len(row.gold)), max(high, len(row.gold)))
        task = make_task(row, task_id, count, cutter, rng)
        number += 1
        if task is None:
            too_long.add(row.id)
        else:
            tasks.append(task)
    save_tasks(tasks, arguments.out)
    kinds = Counter(f"{t.source} {t.questions[0].metadata['type']}" for t in tasks)
    result = {"tasks": len(tasks), "rows": len(rows), "too_long": len(too_long), **kinds}
    return last_line({**result, "holds": bool(tasks)})


if __name__ == "__main__":
    raise SystemExit(main())
