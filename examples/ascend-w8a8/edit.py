"""The edits that omni-infer's guide makes by hand around msModelSlim: `edit.py before MODEL`, `edit.py after RESULT`.

before (step 7): modeling_deepseek.py imports no flash_attn, which Ascend lacks; config.json has no quantization_config,
because transformers 4.48 loads no float8. after (step 9): config.json names the architecture as a list, and 61 layers,
because the 62nd is the draft layer (MTP). Running it again changes nothing.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

FLASH = re.compile(r"^if is_flash_attn_2_available\(\):\n(?:[ \t]+.*\n)+", re.MULTILINE)
PULLED = "drydock-model.json"
"""The hashes of `./inv model pull`."""
ARCHITECTURE, LAYERS = "DeepseekV3ForCausalLM", 61


def before(folder: Path) -> list[str]:
    """Edit a model as published; return what was changed. Exits if it is another model."""
    config = read(folder)
    if config.get("architectures") != [ARCHITECTURE]:
        sys.exit(f"{folder}/config.json: found {config.get('architectures')}, expected [{ARCHITECTURE!r}]")
    links = [path.name for path in folder.iterdir() if path.is_symlink()]
    if links:
        sys.exit(f"{folder}/{links[0]}: is a link, which msModelSlim refuses: copy the model, or `./inv model pull` it")
    done = []
    if config.pop("quantization_config", None) is not None:
        write(folder, config)
        done.append("config.json: removed quantization_config")
    source = folder / "modeling_deepseek.py"
    old = source.read_text(encoding="utf-8")
    new = FLASH.sub(lambda found: "".join(f"# {line}\n" for line in found[0].splitlines()), old)
    if new != old:
        replace(source, new)
        done.append("modeling_deepseek.py: commented out the import of flash_attn")
    if done and (folder / PULLED).exists():
        (folder / PULLED).unlink()
        done.append(f"removed {PULLED}: the folder is no longer as it was pulled")
    return done


def after(folder: Path) -> list[str]:
    """Edit a result; return what was changed."""
    config = read(folder)
    wanted = {"architectures": [ARCHITECTURE], "num_hidden_layers": LAYERS}
    done = [f"config.json: {key} = {value}" for key, value in wanted.items() if config.get(key) != value]
    if done:
        write(folder, {**config, **wanted})
    return done


def read(folder: Path) -> dict[str, Any]:
    """Return a model's config.json."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


def write(folder: Path, config: dict[str, Any]) -> None:
    """Replace a model's config.json."""
    replace(folder / "config.json", json.dumps(config, indent=2) + "\n")


def replace(path: Path, text: str) -> None:
    """Write a file whole and not writable for others, as msModelSlim requires it."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(0o644)
    temporary.replace(path)


if __name__ == "__main__":
    for line in {"before": before, "after": after}[sys.argv[1]](Path(sys.argv[2])):
        sys.stdout.write(f"{line}\n")
