"""LiteLLM's proxy: OpenAI's client through it, with a conversation and with an earlier response."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from openai import APIConnectionError, OpenAI

server = {"model": "openai/scripted", "api_base": f"{sys.argv[1]}/v1", "api_key": "none"}
config = {"model_list": [{"model_name": "memory", "litellm_params": server}]}
key = f"sk-{secrets.token_hex(32)}"
env = {**os.environ, "LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
fact: Any = {"role": "user", "content": "Ann lives in Rome."}
question: Any = {"role": "user", "content": "Where does Ann live?"}
with TemporaryDirectory() as folder:
    file = Path(folder, "config.yaml")
    file.write_text(json.dumps(config))
    proxy = Path(sys.executable).with_name("litellm")
    command = [proxy, "--config", file, "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(command, env=env, stdout=sys.stderr)
    try:
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, timeout=60)
        while True:
            try:
                client.models.list()
                break
            except APIConnectionError:
                assert process.poll() is None, "the proxy has ended"
                time.sleep(0.5)
        direct = OpenAI(base_url=server["api_base"], api_key="none")
        place = {"conversation": direct.conversations.create(items=[fact]).id}
        chat = client.chat.completions.create(model="memory", messages=[question], extra_body=place)
        assert chat.choices[0].message.content == "Ann lives in Rome.", chat
        history: Any = [fact, chat.choices[0].message, question]
        chunks = client.chat.completions.create(
            model="memory", messages=history, stream=True, stream_options={"include_usage": True}
        )
        text, tokens = "", 0
        for chunk in chunks:
            tokens += chunk.usage.total_tokens if chunk.usage else 0
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        assert text == "Ann lives in Rome.", text
        assert tokens > 0
        first = client.responses.create(model="memory", input=[fact])
        second = client.responses.create(
            model="memory", input="Where does Ann live?", previous_response_id=first.id
        )
        assert second.output_text == "Ann lives in Rome.", second
    finally:
        process.terminate()
        process.wait()
