"""Rows as a server of the Tinker API takes them: hosted Tinker, SkyRL, and others.

A row is what that API takes: token ids, their log-probabilities at sampling, and an advantage of
every token. Its losses have neither normalizer nor token weights nor a KL term, so the first two
are multiplied into the advantages.
"""

import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tinker
from safetensors import safe_open

from atommem.errors import ConfigError
from atommem.servers.client import check_key_is_safe
from atommem.train.objective.rows import Row

KEY = "TINKER_API_KEY"
ROW_MEAN = "row_mean"
REDUCTIONS = ("sum", ROW_MEAN)


def connect(base_url: str | None) -> tinker.ServiceClient:
    """Return a client of the server; None is hosted Tinker."""
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    key = os.environ.get(KEY)
    if base_url is None:
        if not key:
            raise ConfigError(f"{KEY}: hosted Tinker needs one. Set it, or give --base_url.")
        return tinker.ServiceClient()
    if key:
        check_key_is_safe(KEY, base_url)
    return tinker.ServiceClient(base_url=base_url, api_key=key or "tml-none")


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

    `normalizer` is of all rows of the update. A server adds up token losses by `reduction`:
    ``sum``, or ``row_mean``, which divides by the row's length and the number of rows.
    """
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
    """Unpack an adapter, with the names of its modules: SkyRL's configuration has none."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    with safe_open(folder / "adapter_model.safetensors", "pt") as weights:
        modules = {name.partition(".lora_")[0].rpartition(".")[2] for name in weights.keys()}  # noqa: SIM118  # not iterable
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["target_modules"] = config.get("target_modules") or sorted(modules)
    config["task_type"] = "CAUSAL_LM"
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
