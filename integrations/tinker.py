"""Sample from a server of the Tinker API, and hand it rows: hosted Tinker, SkyRL, and others.

A row is what that API takes: token ids, their log-probabilities at sampling, and an advantage of
every token. Its losses have neither normalizer nor token weights nor a KL term, so the first two
are multiplied into the advantages.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from safetensors import safe_open

from atommem.config import is_loopback
from atommem.errors import ConfigError, OutageError, PolicyError
from atommem.policy.contract import Completion, Sampling, check_request, make_completion
from atommem.servers.client import PLAIN_HTTP
from atommem.train.objective.rows import Row

if TYPE_CHECKING:
    import tinker

KEY = "TINKER_API_KEY"
ROW_MEAN = "row_mean"
REDUCTIONS = ("sum", ROW_MEAN)


def connect(base_url: str | None) -> tinker.ServiceClient:
    """Return a client of the server; None is hosted Tinker."""
    try:
        import tinker
    except ImportError as error:
        raise ConfigError(f"a Tinker server: {error}. pip install 'atommem[tinker]'.") from error
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    key = os.environ.get(KEY)
    if base_url is None:
        if not key:
            raise ConfigError(f"{KEY}: hosted Tinker needs one. Set it, or give --base_url.")
        return tinker.ServiceClient()
    plain = urlsplit(base_url).scheme != "https" and not is_loopback(base_url)
    if key and plain and os.environ.get(PLAIN_HTTP) != "1":
        raise ConfigError(
            f"base_url={base_url}: {KEY} would cross the network unencrypted. Use https, unset "
            f"it, or set {PLAIN_HTTP}=1 on a private network."
        )
    return tinker.ServiceClient(base_url=base_url, api_key=key or "tml-none")


class TinkerPolicy:
    """Sample from the weights that `sampler` holds; set it again after an update."""

    def __init__(self, sampler: Any, tokenizer: Any, context_length: int | None = None) -> None:
        self.sampler = sampler
        self.tokenizer = tokenizer
        self._context_length = context_length

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion; raises as `Policy.complete` does."""
        import tinker

        check_request(prompt_ids, sampling, self._context_length)
        settings = tinker.SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            seed=sampling.seed,
            stop=[self.tokenizer.eos_token_id],
        )
        prompt = tinker.ModelInput.from_ints(prompt_ids)
        try:
            reply = await self.sampler.sample_async(prompt, 1, settings)
        except tinker.APIStatusError as error:
            if error.status_code in (408, 409, 429) or error.status_code >= 500:
                raise OutageError(f"the Tinker server failed: {error}") from error
            raise PolicyError(f"the Tinker server refused a completion: {error}") from error
        except tinker.TinkerError as error:
            raise OutageError(f"the Tinker server failed: {error}") from error
        (sampled,) = reply.sequences
        stopped = sampled.stop_reason == "stop"
        source = "the Tinker server"
        return make_completion(self.tokenizer, sampled.tokens, sampled.logprobs, stopped, source)

    async def close(self) -> None:
        """Do nothing: the client ends with the process."""


def loss_config(args: Any) -> dict[str, float] | None:
    """Return the clip bounds of ``args.loss_fn`` as bounds of the ratio."""
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    if args.loss_fn == "cispo":
        # SkyRL's lower bound is 0.8 if it is not given; CISPO has none.
        return {"clip_low_threshold": 0.0, "clip_high_threshold": high}
    if args.loss_fn == "ppo":
        return {"clip_low_threshold": 1 - args.epsilon, "clip_high_threshold": 1 + high}
    return None


def make_data(rows: Sequence[Row], normalizer: float, reduction: str) -> list[tinker.Datum]:
    """Return `rows` for ``forward_backward``, so that the server's loss is ours.

    Args:
        normalizer: Of all rows of the update (`atommem.train.objective.rows.normalizer`).
        reduction: How the server adds up token losses: ``sum``, or ``row_mean``, by which it
            divides those of a row by the row's length and the sum by the number of rows.
    """
    import tinker

    data = []
    for row in rows:
        targets = row.ids[1:].astype(np.int64)
        scale = row.advantage * row.weight / normalizer
        if reduction == ROW_MEAN:
            scale *= len(targets) * len(rows)
        logprobs, advantages = np.zeros((2, len(targets)), dtype=np.float32)
        logprobs[-len(row.logprobs) :] = row.logprobs
        advantages[-len(row.logprobs) :] = scale
        inputs = {"target_tokens": targets, "logprobs": logprobs, "advantages": advantages}
        prompt = tinker.ModelInput.from_ints(row.ids[:-1].tolist())
        data.append(tinker.Datum(model_input=prompt, loss_fn_inputs=inputs))
    return data


def trained_logprobs(reply: Any, rows: Sequence[Row]) -> np.ndarray:
    """Return the log-probabilities of all completion tokens from ``forward_backward``'s reply."""
    outputs = zip(reply.loss_fn_outputs, rows, strict=True)
    return np.concatenate(
        [np.asarray(out["logprobs"].data, np.float32)[-len(row.logprobs) :] for out, row in outputs]
    )


def unpack_adapter(archive: bytes, folder: Path) -> None:
    """Unpack an adapter that peft can load.

    SkyRL's configuration names no modules, so peft would take its own and leave the others'
    weights out.
    """
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    with safe_open(folder / "adapter_model.safetensors", "pt") as weights:
        modules = {name.partition(".lora_")[0].rpartition(".")[2] for name in weights.keys()}  # noqa: SIM118  # not iterable
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["target_modules"] = config.get("target_modules") or sorted(modules)
    config["task_type"] = "CAUSAL_LM"
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
