"""Keep a file in a conversation of `atommem serve` with OpenAI's client, and ask.

atommem serve --policy POLICY &
python examples/serve_client.py FILE QUESTION [URL]
"""

import sys
from pathlib import Path

from openai import OpenAI


def main(file: str, question: str, url: str = "http://127.0.0.1:8765/v1") -> None:
    """The goal tells a policy that was trained with the questions in view what to look for."""
    client = OpenAI(base_url=url, api_key="none")
    (model,) = (item.id for item in client.models.list())
    conversation = client.conversations.create(metadata={"goal": question})
    content = Path(file).read_text(encoding="utf-8")
    client.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "user", "content": content}]
    )
    answer = client.responses.create(model=model, conversation=conversation.id, input=question)
    print(answer.output_text or "(no answer)")
    print(f"ask again: conversation {conversation.id}, a year from now if you like")


if __name__ == "__main__":
    if len(sys.argv) <= 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
