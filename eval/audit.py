"""``atommem audit``: what a store holds, and what rules would drop."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scipy.sparse import csr_array, vstack
from scipy.sparse.csgraph import connected_components

from atommem.arguments import Parser, given_flags, make
from atommem.config import EmbedderConfig, check_least, fields_of, without_addresses
from atommem.embedding import make_embedder
from atommem.embedding.embedder import Embedder, Vectors
from atommem.envs.benchmarks.rows import read_rows
from atommem.errors import DataError, TraceError, check_writable
from atommem.files import write_json
from atommem.memory.log import Entry, Source, replay
from atommem.memory.rules import Candidate, StoreState, make_rule
from atommem.memory.store import VectorStore
from atommem.saved_memory import MEMORY_FILE, SCOPE, SavedMemory, scope_files
from atommem.session_state import SessionState
from atommem.trace import read_trace

RULES = ("fifo", "lru", "lfu", "length")
_BLOCK = 256
_SCOPES = dict(zip(SCOPE, ("user_id", "agent_id", "run_id"), strict=True))  # as in rows of mem0
_TEXT_FIELDS = ("text", "memory", "content", "data", "query")


@dataclass
class Audit:
    """Findings, by entry id, oldest first; `evicted` by rule.

    `never_shown` is None if no entry was ever shown, as in stores that do not record use.
    """

    entries: int
    duplicates: list[list[int]]
    never_shown: list[int] | None
    evicted: dict[str, list[int]] = field(default_factory=dict)


def main(argv: list[str]) -> int:
    parser = Parser(
        "atommem audit",
        "Inspect a memory: near-duplicates, entries never shown, and the entries that each rule "
        "would evict at a --capacity. Read-only.",
    )
    add = parser.add_argument
    add("store", type=Path, help="Saved memory, trace, or JSON Lines.")
    add("--capacity", type=int, help="Number of entries to keep.")
    add("--retention", nargs="+", default=list(RULES), help="Names of rules, with options.")
    add("--same", type=float, default=0.95, help="Least cosine of duplicates (%(default)s).")
    add("--scope", nargs="+", default=[], help="One user, agent or session: user=ann session=7.")
    flags = ("embedder", "embedder_model", "embedder_url")
    parser.add_settings("embedder", EmbedderConfig, names=flags)
    add("--out", type=Path, help="Write everything as JSON.")
    args = parser.parse_args(argv)
    check_least(args, capacity=1)
    for rule in args.retention:
        make_rule("retention", rule)  # reject wrong rules before loading a model
    config = make(EmbedderConfig, {**_embedder_of(args.store), **given_flags(argv, args)})
    if args.store.is_dir():  # of `Memory.save`
        args.store = _file_of(args.store, args.scope)
    check_writable("out", args.out, folder=False, inputs=[args.store])
    entries = read_store(args.store, args.scope)
    options = args.same, args.capacity, args.retention
    found = asyncio.run(audit(entries, make_embedder(config), *options))
    print(*_format(entries, found), sep="\n")
    if args.out is not None:
        write_json(args.out, asdict(found))
    return 0


def _embedder_of(store: Path) -> dict[str, Any]:
    if store.is_dir():
        return without_addresses(SavedMemory.read(store).embedder)
    try:
        settings = read_trace(store).config
    except TraceError:
        return {}
    found = settings.get("embedder", {})
    found = settings if isinstance(found, str) else found
    return fields_of(EmbedderConfig, without_addresses(found))


async def audit(
    entries: Sequence[Entry],
    embedder: Embedder,
    same: float = 0.95,
    capacity: int | None = None,
    rules: Sequence[str] = (),
) -> Audit:
    """Audit the entries of a store, oldest first; `same` is the least cosine of duplicates."""
    vectors = await embedder.embed([entry.text for entry in entries], "entry")
    unused = [entry.id for entry in entries if not entry.shown]
    duplicates = [[entries[row].id for row in rows] for rows in find_duplicates(vectors, same)]
    found = Audit(len(entries), duplicates, unused if len(unused) < len(entries) else None)
    if capacity is not None:
        found.evicted = {rule: evicted(entries, vectors, rule, capacity) for rule in rules}
    return found


def find_duplicates(vectors: Vectors, same: float) -> list[list[int]]:
    """Return the groups of rows that cosines above `same` connect."""
    blocks = [  # one after the other, to bound memory
        csr_array(vectors[start : start + _BLOCK] @ vectors.T > same)
        for start in range(0, len(vectors), _BLOCK)
    ]
    groups: dict[int, list[int]] = {}
    labels = connected_components(vstack(blocks), directed=False)[1] if blocks else ()
    for row, label in enumerate(labels):
        groups.setdefault(label, []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def evicted(entries: Sequence[Entry], vectors: Vectors, rule: str, capacity: int) -> list[int]:
    """Return the ids that a rule evicts one by one until `capacity` entries are left.

    The newest entry acts as the candidate: rules that reject it (``reject``) evict the newest.
    """
    retention = make_rule("retention", rule)
    held: dict[int, Entry] = {}
    store = VectorStore(vectors.shape[1])
    step = max((entry.updated for entry in entries), default=0) + 1

    def choice(entry: Entry, vector: Vectors) -> tuple[Candidate, StoreState]:
        made = entry.text, vector, entry.source or Source(entry.created), entry.score
        candidate = Candidate(*made, outcome=entry.outcome, details=entry.details)
        return candidate, StoreState(held, store, step, capacity, (0, len(held)))

    for entry, vector in zip(entries, vectors, strict=True):
        rating = retention.rate(*choice(entry, vector))
        held[entry.id] = replace(entry, score=entry.score if rating is None else float(rating))
        store.update({entry.id: vector})
    ids: list[int] = []
    while len(held) > capacity:
        newest = max(held)
        eviction = retention.evict(*choice(held[newest], store.rows([newest])[0]))
        ids.append(newest if eviction.entry_id is None else eviction.entry_id)
        del held[ids[-1]]
        store.update({ids[-1]: None})
    return ids


def read_store(path: Path, scope: Sequence[str] = ()) -> tuple[Entry, ...]:
    """Read a session file, a trace, or JSON Lines, of which `scope` (``user=ann``) chooses rows.

    Rows of JSON Lines have a ``text`` (or memory, content, data, query), and optionally the
    count of uses as ``shown`` and ``created_at``, by which they are sorted. mem0's ``get_all``
    gives such rows. Raises DataError for others, and for rows of several users, agents or runs.
    """
    try:
        with path.open("rb") as file:
            kind = json.loads(file.readline())["type"]
        if kind == "session":
            return tuple(replay(SessionState.load(path).operations).entries.values())
        if kind == "episode":
            steps = read_trace(path).episode.steps
            operations = [operation for step in steps for operation in step.operations]
            return tuple(replay(operations).entries.values())
    except TraceError as error:
        raise DataError(f"{path}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError):
        pass  # `read_rows` names what is wrong
    rows = [row.values for row in read_rows(path)]
    for name, _, value in (each.partition("=") for each in scope):
        rows = [row for row in rows if _scope_of(row, name) == value]
    for name in _SCOPES:
        if len(values := sorted({_scope_of(row, name) for row in rows})) > 1:
            raise DataError(
                f"{path} has rows of several {name}s: {', '.join(values[:5])}. Each has memories "
                f"of its own: give --scope {name}={values[0]}."
            )
    if rows and all(row.get("created_at") for row in rows):
        rows.sort(key=lambda row: _utc(str(row["created_at"])))
    entries = []
    for number, row in enumerate(rows, start=1):
        text = next((row[name] for name in _TEXT_FIELDS if row.get(name)), None)
        if text is None:
            raise DataError(f"row {number} has no text. Give one of {', '.join(_TEXT_FIELDS)}.")
        entries.append(Entry(number, str(text), number, number, shown=int(row.get("shown") or 0)))
    return tuple(entries)


def _scope_of(row: Mapping[str, Any], name: str) -> str:
    return str(row.get(name, row.get(_SCOPES.get(name, name))))


def _file_of(folder: Path, scope: Sequence[str]) -> Path:
    """Return the file of a saved memory, or of the one of its scopes that `scope` names."""
    scopes = {
        path: [f"{name}={value}" for name, value in zip(SCOPE, key, strict=True)]
        for key, path in scope_files(folder).items()
    }
    if not scope:
        if scopes:
            print(f"left out: the {len(scopes)} scopes of this memory; --scope user=NAME reads one")
        return folder / MEMORY_FILE
    found = [path for path, names in scopes.items() if {*scope} <= {*names}]
    if len(found) != 1:
        known = "; ".join(" ".join(scopes[path]) for path in found or scopes)
        problem = f"names {len(found)} scopes of {folder}. Give one: {known}."
        raise DataError(f"scope={' '.join(scope)}: {problem}")
    return found[0]


def _utc(time: str) -> datetime:
    try:
        found = datetime.fromisoformat(time)
    except ValueError as error:
        raise DataError(f"created_at={time}: not a time. Write it as 2026-01-31T12:00Z.") from error
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


def _format(entries: Sequence[Entry], found: Audit) -> list[str]:
    """Name the first five of each finding; ``--out`` has all."""
    texts = {entry.id: f"  {entry.id}: {' '.join(entry.text.split())[:100]}" for entry in entries}
    extra = sum(len(group) - 1 for group in found.duplicates)
    lines = [f"{found.entries:,} entries", f"near-duplicates: {extra:,} entries repeat another"]
    lines += [f"{texts[ids[0]]}  and {len(ids) - 1} more" for ids in found.duplicates[:5]]
    if found.never_shown is not None:
        lines.append(f"never shown: {len(found.never_shown):,}")
        lines += [texts[entry_id] for entry_id in found.never_shown[:5]]
    for rule, ids in found.evicted.items():
        first = ids and f", first {', '.join(map(str, ids[:8]))}"
        lines.append(f"{rule} evicts {len(ids):,}{first or ''}")
    return lines
