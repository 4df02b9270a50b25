"""Model, embedder, tasks and traces of the shipped recipes, in a size for tests."""

import random
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from atommem.envs.task import Document, Question, Task
from atommem.envs.task_files import save_tasks
from tests.fakes import word_level
from tests.train.toys import make_model

ELEMENTS = [
    *("<final_answer>\\boxed{c0}</final_answer>", "<final_answer>\\boxed{c1}</final_answer>"),
    *("<create_memory>a fact</create_memory>", "<create_memory>c0 city</create_memory>"),
    *("<read_memory>a fact</read_memory>", "<read_memory>city</read_memory>"),
    *("<update_scratchpad>c0</update_scratchpad>", "<delete_memory>Memory 1</delete_memory>"),
    *("<update_memory>Memory 1: c1 city</update_memory>", "<create_memory>", "\\boxed{c0}"),
]
CALLS = [
    '<tool_call>{"name": "search", "arguments": {"query": "city"}}</tool_call>',
    '<tool_call>{"name": "visit", "arguments": {"page": "page 1"}}</tool_call>',
    "<tool_call>",
]
"""For policies of the web."""
WORDS = ["c0", "c1", "city", "fact", "town", "which", "a"]
WORDS += ["Memory", "1:", "2:", "memory", "scratchpad", "question"]
DATA = ["hotpotqa_train.parquet", "mixed_train.jsonl", "hotpotqa_small.parquet"]
WEB_DATA = "asearcher_train.parquet"


def make_tokenizer(web: bool = False) -> PreTrainedTokenizerFast:
    """A token is a whole element, so that a random policy acts and answers."""
    words = ["<unk>", *ELEMENTS, *(CALLS if web else ()), *WORDS, "<eos>", "<pad>"]
    return word_level(words, unk_token="<unk>", model_max_length=4096)


def make_world(folder: Path, head_dim: int = 8, words: int = 0, web: bool = False) -> None:
    """``model``, ``embedder``, and under ``data`` the task files that recipes name, in `folder`.

    Documents have so many further `words` of their own; a `web` policy calls tools.
    """
    tokenizer = make_tokenizer(web)
    model = make_model(vocabulary=len(tokenizer), spread=0.1, positions=4096, head_dim=head_dim)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    make_embedder(folder / "embedder", tokenizer)
    (folder / "data").mkdir()
    for name in DATA:
        save_tasks(make_tasks(words=words), folder / "data" / name)
    asked = [Task(task.id, task.questions[:1], source="asearcher") for task in make_tasks()]
    save_tasks(asked, folder / "data" / WEB_DATA)


def make_tasks(count: int = 12, words: int = 0) -> list[Task]:
    """Two questions each; every answer is c0."""
    rng = random.Random(0)
    questions = (Question("which city", ("c0",)), Question("which town", ("c0",)))
    texts = ("c0 city", "c1 town", "a fact")

    def documents(first: int) -> tuple[Document, ...]:
        own = ([text, *rng.choices(WORDS, k=words)] for text in texts[first:] + texts)
        return tuple(Document("", " ".join(parts)) for parts in own)

    return [Task(f"task-{i}", questions, documents(i % 3)) for i in range(count)]


def make_embedder(folder: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    sizes |= {"num_hidden_layers": 1, "vocab_size": len(tokenizer)}
    BertModel(BertConfig(initializer_range=1.0, **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformer = Transformer(str(folder), max_seq_length=256)
    SentenceTransformer(modules=[transformer, Pooling(16)]).save(str(folder))
