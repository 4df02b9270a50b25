"""Open the policy of a `PolicyConfig`: a model folder, one or several servers, or a chat server."""

import hashlib
import json
import re
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

from atommem.config import PolicyConfig
from atommem.errors import PolicyError, suggest_path
from atommem.plugins import hub_name
from atommem.policy.local import LocalPolicy, model_under, read_tokenizer
from atommem.policy.server import ChatPolicy, ServerPolicy
from atommem.policy.server_pool import ServerPool

_HASHED_BYTES = 1 << 20
_MODEL_FILES = {".json", ".jinja", ".safetensors", ".txt", ".bin"}
_MUTE = re.compile(
    "(?<!LMHead)(?<!DoubleHeads)Model$|ForMaskedLM|Classification|QuestionAnswering|ForPreTraining"
)
"""In the name of an architecture that writes no text, unless it brings its own code."""


def open_policy(settings: PolicyConfig) -> LocalPolicy | ServerPolicy | ServerPool | ChatPolicy:
    """Load the model, or make the client of its servers; ``close()`` it after use."""
    first, *others = settings.policy
    if not settings.is_server:
        model, revision = hub_name(model_folder("policy", first))
        return LocalPolicy.from_pretrained(
            model,
            revision=revision,
            base=settings.base_model,
            max_batch_size=settings.max_inflight_tasks,
            max_batch_tokens=settings.max_batch_tokens,
        )
    # Connections need open files, of which the soft limit often allows 1,024.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    name = settings.tokenizer
    if name and not Path(name, "tokenizer.json").is_file():  # an adapter may be without one
        name = model_under(name, settings.base_model) or name
    tokenizer = None if name is None else read_tokenizer(*hub_name(name))
    # While others are gone, one server of a pool may get all requests.
    options: Any = {"tokenizer": tokenizer, "max_in_flight": settings.max_inflight_tasks}
    if settings.api == "chat":
        return ChatPolicy(first, settings.model, **options)
    if others:
        return ServerPool(settings.policy, settings.model, **options)
    return ServerPolicy(first, settings.model, **options)


def model_folder(setting: str, name: str) -> str:
    """Return `name`, unless it is a path without a whole model: transformers would ask the hub."""
    path = Path(name).expanduser()
    if any((path / file).is_file() for file in ("config.json", "adapter_config.json")):
        from safetensors import SafetensorError, safe_open

        has_weights = any(file.suffix in (".safetensors", ".bin") for file in path.iterdir())
        if setting == "policy" and not has_weights:  # in training they may lie elsewhere (Tinker)
            raise PolicyError(f"{setting}={name}: has no weights (*.safetensors). Copy them there.")
        for weights in path.glob("*.safetensors"):
            try:
                safe_open(weights, framework="np")
            except SafetensorError as error:
                problem = f"{weights.name} is cut off or damaged ({error}). Copy it again."
                raise PolicyError(f"{setting}={name}: {problem}") from error
        # The loader says what is wrong with a broken file.
        with suppress(OSError, ValueError, AttributeError, TypeError):
            config = json.loads((path / "config.json").read_bytes())
            (kind,) = config.get("architectures") or ("",)
            if _MUTE.search(kind) and "auto_map" not in config:
                problem = f"{kind} writes no text. Give a causal language model"
                raise PolicyError(f"{setting}={name}: {problem}.")
        return str(path)
    if path.exists():
        inside = ", ".join(sorted(str(config.parent) for config in path.glob("*/config.json")))
        fix = f"Give a model in it: {inside}" if inside else "Give one with config.json and weights"
        server = ", or a server's URL" if setting == "policy" else ""
        raise PolicyError(f"{setting}={name}: not the folder of a model. {fix}{server}.")
    local = (".", "/", "~", "runs/")
    if Path(path.parts[0]).is_dir() or name.startswith(local) or name.count("/") != 1:
        fix = f"{suggest_path(path)}, and names of a hub are OWNER/NAME"
        raise PolicyError(f"{setting}={name}: there is no such folder{fix}.")
    return name


async def policy_identity(settings: PolicyConfig, policy: Any) -> dict[str, Any]:
    """Identify the policy: by its model's files, by a hub's commit, or by a server's model name."""
    if settings.is_server:
        api = {} if settings.api == "completions" else {"api": settings.api}
        return {"model": await policy.model_name(), "tokenizer": settings.tokenizer, **api}
    name = settings.policy[0]
    found = {"path": name.rstrip("/"), "fingerprint": fingerprint(name)}
    config = getattr(getattr(policy, "model", None), "config", None)
    commit = getattr(config, "_commit_hash", None)
    return {**found, "commit": commit} if commit else found


def fingerprint(folder: str, model: str = "") -> str:
    """Return 16 hexadecimal digits that identify a model's files, or else its names.

    Small files count whole, large ones by start and end. Of a server's `model`, whose weights
    cannot be seen, `folder` is that of the tokenizer.
    """
    digest = hashlib.sha256(model.encode())
    path = Path(folder).expanduser()
    if not folder or not path.is_dir():
        digest.update(folder.encode())
        return digest.hexdigest()[:16]
    for file in sorted(item for item in path.iterdir() if item.suffix in _MODEL_FILES):
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as stream:
            digest.update(stream.read(_HASHED_BYTES))
            stream.seek(max(stream.tell(), size - _HASHED_BYTES))
            digest.update(stream.read())
    return digest.hexdigest()[:16]
