"""vLLM servers in memory: an httpx transport that answers as they do."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from safetensors.numpy import load_file


@dataclass(eq=False)
class FakeServer:
    """One server: completions, adapters, health."""

    lora: bool = True
    up: bool = True  # whether connections to it succeed
    models: dict[str, str] = field(default_factory=lambda: {"policy": ""})  # adapters: folders
    asked: list[str] = field(default_factory=list)  # the model of every completion
    bodies: list[dict[str, Any]] = field(default_factory=list)  # of the same
    loads: list[str] = field(default_factory=list)  # adapters, in order
    in_flight: int = 0
    seconds: float = 0.0  # that a completion takes
    logprobs_mode: str = "raw_logprobs"
    choice: dict[str, Any] | None = field(default_factory=dict)  # replaces parts; None: sends none
    refusal: httpx.Response | None = None  # replaces every completion
    ignored: str | None = None  # a part of the names of adapter weights that have no effect

    def restart(self) -> None:
        self.models = {"policy": ""}
        self.up = True

    async def answer(self, request: httpx.Request) -> httpx.Response:
        if not self.up:
            raise httpx.ConnectError("connection refused", request=request)
        path = request.url.path
        body = json.loads(request.content) if request.content else {}
        if path == "/health":
            return httpx.Response(200)
        if path == "/v1/models":
            models = [{"id": name, "max_model_len": 64} for name in self.models]
            return httpx.Response(200, json={"data": models})
        if path.startswith("/v1/") and path.endswith("_lora_adapter"):
            return self._adapter(path, body)
        return await self._complete(request, body)

    def _adapter(self, path: str, body: dict[str, Any]) -> httpx.Response:
        name = body["lora_name"]
        if not self.lora:
            return httpx.Response(404, json={"detail": "Not Found"})
        if path == "/v1/unload_lora_adapter":
            known = self.models.pop(name, None) is not None
            return httpx.Response(200 if known else 404, text="unloaded")
        if name in self.models:
            message = f"The lora adapter '{name}' has already been loaded."
            return httpx.Response(400, json={"error": {"message": message}})
        self.models[name] = body["lora_path"]
        self.loads.append(name)
        return httpx.Response(200, text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _complete(self, request: httpx.Request, body: dict[str, Any]) -> httpx.Response:
        if body["model"] not in self.models:
            message = f"The model `{body['model']}` does not exist."
            return httpx.Response(404, json={"error": {"message": message}})
        self.asked.append(body["model"])
        self.bodies.append(body)
        self.in_flight += 1
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.in_flight -= 1
        if not self.up:
            raise httpx.RemoteProtocolError("server disconnected", request=request)
        scale = body["temperature"] if self.logprobs_mode == "processed_logprobs" else 1.0
        likeliest = {"token_id:0": 0.0, "token_id:1": -1.0 / scale, "token_id:2": -2.0 / scale}
        logprob = -0.5 - self._effect(self.models[body["model"]])
        logprobs = {"token_logprobs": [logprob], "top_logprobs": [likeliest]}
        choice = {"token_ids": [0], "finish_reason": "stop", "logprobs": logprobs}
        choices = [] if self.choice is None else [choice | self.choice]
        # Not httpx's json=: vLLM may write NaN, which httpx refuses to.
        return self.refusal or httpx.Response(200, content=json.dumps({"choices": choices}))

    def _effect(self, folder: str) -> float:
        file = Path(folder) / "adapter_model.safetensors"
        weights = load_file(file) if folder and file.is_file() else {}
        used = [w for name, w in weights.items() if not self.ignored or self.ignored not in name]
        return float(sum((weight**2).sum() for weight in used))


class Cluster:
    """Servers by host name; `transport` is what a client gets."""

    def __init__(self, *names: str) -> None:
        self.servers = {name: FakeServer() for name in names}
        self.transport = httpx.MockTransport(self._route)
        self.urls = [f"http://{name}" for name in names]

    def __getitem__(self, name: str) -> FakeServer:
        return self.servers[name]

    async def _route(self, request: httpx.Request) -> httpx.Response:
        return await self.servers[request.url.host].answer(request)
