"""A transformers model in this process, which samples waiting prompts in batches."""

import asyncio
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self

from atommem.chat_format import turn_ends
from atommem.config import SHIPPED, shipped_policy
from atommem.errors import PolicyError
from atommem.micro_batching import RequestBatcher, Waiting
from atommem.plugins import hub_name, not_loaded, only_here
from atommem.policy.contract import Completion, Sampling, check_request, make_completion
from atommem.policy.decoding import Row, decode

_PROBE = 'Hello world, it\'s 12:30.\n\n  <b>x</b> é 北京 ( a ) , b ! {"k": [1]}'
FREE_PADDING = 4096  # padding tokens that a batch may have even if they exceed its real tokens

_Request = tuple[list[int], Sampling]


@dataclass(eq=False, repr=False)
class LocalPolicy:
    """Sample from a loaded causal language model, all waiting prompts as batches of similar length.

    A worker thread samples; while a batch runs, the next one collects. The model is used as it is
    at that moment, in eval mode, and gets its training mode back, so a trainer may update it
    between batches. A seeded request draws the same random numbers in any batch; logits depend on
    the batch's shape within rounding.

    `model` may be a peft model. The tokenizer's `turn_ends`, and the end-of-sequence tokens of the
    model's generation config, end a completion. `max_batch_tokens`, the most rows x (longest prompt
    + longest max_completion_length) in one batch, bounds the key-value cache; a single request may
    exceed it. `autocast` computes in bfloat16, as a trainer does whose weights are float32.
    """

    model: Any
    tokenizer: Any
    _: KW_ONLY
    max_batch_size: int = 256
    max_batch_tokens: int = 65_536
    autocast: bool = False

    samples_what_waits = True

    def __post_init__(self) -> None:
        config = self.model.config.get_text_config()
        self.context_length: int | None = getattr(config, "max_position_embeddings", None)
        self._eos_ids = _eos_ids(self.model, self.tokenizer)
        self._batcher: RequestBatcher[_Request, Completion] = RequestBatcher(self._complete_all)
        # One thread: event loops must not use the model concurrently.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="atommem-policy")

    @classmethod
    def from_pretrained(
        cls, path: str | Path, revision: str | None = None, base: str | None = None, **options: Any
    ) -> Self:
        """Load model and tokenizer from a folder (also of a peft adapter) or a hub name.

        The model goes to the first GPU if there is one, else to the CPU in float32. An adapter is
        put on `base`, or on the model that it names, whose tokenizer is its own.
        """
        import torch
        from transformers import AutoModelForCausalLM

        hide_weight_bars()
        device, dtype = ("cuda", "auto") if torch.cuda.is_available() else ("cpu", "float32")
        base = base or model_under(path)
        name, revision = hub_name(base) if base else (str(path), revision)
        found: dict[str, Any] = {"revision": revision, "local_files_only": only_here(name)}
        try:
            model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **found)
            if base is not None:
                model.load_adapter(str(path))
        except Exception as error:  # transformers raises many kinds for broken files
            reason = not_loaded(name, "a causal language model", error)
            if str(path) == shipped_policy(SHIPPED):
                reason += f" In a checkout, `python scripts/models.py {SHIPPED}` makes it."
            what = f"base_model={base}: the model under {path}" if base else name
            raise PolicyError(f"{what}: {reason}") from error
        own = Path(path, "tokenizer.json").is_file()
        tokenizer = read_tokenizer(path) if own and base else read_tokenizer(name, revision)
        return cls(model.to(device), tokenizer, **options)

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        check_request(prompt_ids, sampling, self.context_length)
        return await self._batcher.submit((prompt_ids, sampling))

    async def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _complete_all(self, waiting: list[Waiting[_Request, Completion]]) -> None:
        # Prompts arrive in any order; equal prompts must make equal batches.
        waiting.sort(key=lambda item: (item.request[0], item.request[1].seed or 0))
        requests = [item.request for item in waiting]
        lengths = [(len(ids), sampling.max_completion_length) for ids, sampling in requests]
        for indices in plan_batches(lengths, self.max_batch_size, self.max_batch_tokens):
            batch = [waiting[index] for index in indices]
            rows = [Row(*item.request, abandoned=item.future.done) for item in batch]
            sampling = asyncio.get_running_loop().run_in_executor(self._thread, self._sample, rows)
            for item, completion in zip(batch, await sampling, strict=True):
                item.resolve(completion)

    def _sample(self, rows: list[Row]) -> list[Completion]:
        import torch

        half = torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.autocast)
        with evaluating(self.model), half:
            decode(self.model, rows, self._eos_ids, pad_id=min(self._eos_ids, default=0))
        return [
            make_completion(self.tokenizer, row.token_ids, row.logprobs, row.stopped)
            for row in rows
        ]


def model_under(path: str | Path, given: str | None = None) -> str | None:
    """Return the model under an adapter: `given`, or the one that it names; None for another."""
    file = Path(path, "adapter_config.json")
    if not file.is_file():
        return None
    return given or json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path")


def hide_weight_bars() -> None:
    """Show no bars while transformers loads and saves weights; downloads keep theirs."""
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils import logging

    logging.disable_progress_bar()
    enable_progress_bars()


def read_tokenizer(name: str | Path, revision: str | None = None) -> Any:
    """Load a fast tokenizer that encodes as its ``tokenizer.json`` does, or raise PolicyError."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    found: dict[str, Any] = {"revision": revision, "local_files_only": only_here(name)}
    tokenizer: Any = None
    failure = None
    try:  # False: transformers would ask at the terminal whether to run the model's code
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **found)
    except Exception as error:  # tokenizers raises bare exceptions
        failure = error
    expected = _encoding_of_file(name, found)
    if expected not in (None, tokenizer and _encoding(tokenizer)):
        kind = "its tokenizer class" if tokenizer is None else type(tokenizer).__name__
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(name, **found)
        except Exception as error:
            tokenizer, failure = None, failure or error
        else:
            does = "changes text" if failure is None else "cannot be loaded"
            warnings.warn(f"{name}: {kind} {does}; tokenizer.json is read alone.", stacklevel=2)
    if not getattr(tokenizer, "is_fast", False):
        advice = "Give a model with a tokenizer.json."
        reason = f"{type(tokenizer).__name__} does not return the positions of tokens. {advice}"
        if tokenizer is None:
            failure = failure or ValueError("no file of one")
            reason = not_loaded(str(name), "a tokenizer", failure)
        if "mistral-common" in reason:  # which does not return the positions of tokens
            reason = f"its tekken.json cannot be read. {advice}"
        raise PolicyError(f"No tokenizer could be loaded from {str(name)!r}: {reason}") from failure
    tokenizer.clean_up_tokenization_spaces = False  # it would change what a policy writes
    return tokenizer


def _encoding_of_file(name: str | Path, found: Mapping[str, Any]) -> tuple[list[int], str] | None:
    from huggingface_hub import hf_hub_download
    from transformers import PreTrainedTokenizerFast

    folder, file = Path(name), "tokenizer.json"
    try:
        path = folder / file if folder.is_dir() else hf_hub_download(str(name), file, **found)
        return _encoding(PreTrainedTokenizerFast(tokenizer_file=str(path)))
    except Exception:  # there is none, or the hub is out of reach
        return None


def _encoding(tokenizer: Any) -> tuple[list[int], str] | None:
    try:
        ids = tokenizer.encode(_PROBE, add_special_tokens=False)
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    except Exception:  # tokenizers in Python raise what they like
        return None
    return ids, text


def plan_batches(
    lengths: Sequence[tuple[int, int]], max_batch_size: int, max_batch_tokens: int
) -> list[list[int]]:
    """Group requests (prompt tokens, max_completion_length) into batches of similar prompt length.

    The longest come first. Padding of a batch is at most its real prompt tokens or `FREE_PADDING`.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i][0]):
        larger = [*batches[-1], index] if batches else [index]
        prompts, limits = zip(*(lengths[i] for i in larger), strict=True)
        width, size, real = prompts[0], len(prompts), sum(prompts)
        if (
            1 < size <= max_batch_size
            and size * (width + max(limits)) <= max_batch_tokens
            and width * size - real <= max(real, FREE_PADDING)
        ):
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Put `model` into eval mode, and restore every module's mode afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    named = model.generation_config.eos_token_id
    ids = {*named} if isinstance(named, list) else {named}
    return frozenset((ids | turn_ends(tokenizer)) - {None})
