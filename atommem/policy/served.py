"""What the policies behind servers share: the client, the model's name, and what a refusal means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from atommem.errors import PolicyError, PromptTooLongError, UnknownModelError
from atommem.servers.client import ClientOptions, RefusedError, ServerClient


@dataclass(frozen=True, slots=True)
class Served:
    """A model's name on its server, and how long prompt and completion may be together (None is unknown)."""

    name: str
    context_length: int | None = None


class ServedPolicy:
    """A policy behind a server.

    Args:
        base_url: The server, with or without the closing ``/v1``.
        model: The model's name there; None asks ``/v1/models``, which must list exactly one.
        tokenizer: The policy's.
        options: Of the `ServerClient`.
    """

    def __init__(
        self, base_url: str, model: str | None, tokenizer: Any, options: ClientOptions
    ) -> None:
        self.tokenizer = tokenizer
        self._client = ServerClient(base_url, service="policy", **options)
        self._served = None if model is None else Served(model)

    async def model_name(self) -> str:
        """The model's name on the server; asks for it where none was given.

        Raises:
            OutageError: The server is out of reach.
            PolicyError: It does not serve exactly one model.
        """
        return (await self._model()).name

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        await self._client.close()

    async def _model(self) -> Served:
        """Episodes that start together may ask the server at the same time: harmless."""
        if self._served is None:
            self._served = await _only_model(self._client)
        return self._served

    def _refused(self, error: RefusedError, model: str, prompt: str) -> PolicyError:
        """What a refusal of a completion of `model` is; `prompt` are words for what it was asked."""
        url = self._client.base_url
        if error.status == 404:
            return UnknownModelError(
                f"{url} does not serve a model named {model!r} ({error}): check name and URL."
            )
        if error.too_long:
            return PromptTooLongError(f"{url} refused {prompt}: {error.message}")
        return PolicyError(
            f"{url} refused a completion of model {model!r} ({error}): check the model's name, the key "
            "(ATOMMEM_POLICY_API_KEY) and the sampling values."
        )


async def _only_model(client: ServerClient) -> Served:
    """The one model that the server lists under ``/v1/models``."""
    try:
        reply = await client.get("/v1/models")
        models = {str(item["id"]): item.get("max_model_len") for item in reply["data"]}
    except RefusedError as error:
        raise PolicyError(
            f"{client.base_url} does not list its models ({error}): name the model."
        ) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise PolicyError(
            f"{client.base_url}/v1/models returned no list: name the model."
        ) from error
    if len(models) != 1:
        shown = ", ".join(list(models)[:8])
        raise PolicyError(f"{client.base_url} serves {len(models)} models ({shown}): name one.")
    return Served(*next(iter(models.items())))
