"""Merge the adapter into the demo model: `python -m examples.lora.merge --output DIR` writes an ordinary model folder.

A merged model costs nothing beside the base, and serves one variant alone; an adapter shares the base with others.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from examples.demo_model.measure import load_adapted

from .train import BASE, HERE


def merged(base: Path, adapter: Path) -> Any:
    """The model with the adapter in its weights, in fp32."""
    return load_adapted(base, adapter).merge_and_unload().eval()


def save(model: Any, base: Path, folder: Path) -> None:
    """Write the merged model with the base's tokenizer."""
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Merge the adapter into the demo model.")
    parser.add_argument("--base", type=Path, default=BASE)
    parser.add_argument("--adapter", type=Path, default=HERE / "adapter")
    parser.add_argument("--output", type=Path, required=True, help="folder that gets the merged model")
    options = parser.parse_args()
    save(merged(options.base, options.adapter), options.base, options.output)


if __name__ == "__main__":
    main()
