"""Run the Python blocks of several model cards in one process, because the imports take longest."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# run each card's blocks in a separate namespace, then compare the vectors of a.jpg by loading method
PROGRAM = """
import json, os, sys
import torch.nn.functional as F

results = {}
for folder, blocks in json.load(sys.stdin).items():
    print("in", folder, file=sys.stderr)
    os.chdir(folder)
    made = {"__name__": "__main__"}
    exec(blocks, made)
    encoder, vectors = made["encoder"], made["vectors"]
    x = encoder.transform.normalize(encoder.prepare("a.jpg")[None])
    methods = {"timm": made["backbone"].eval()(x), "transformers": made["model"].eval()(x).pooler_output.flatten(1)}
    cosines = {method: float(F.normalize(out)[0].detach().numpy() @ vectors[0]) for method, out in methods.items()}
    results[folder] = {"shape": list(vectors.shape), **cosines}
print(json.dumps(results))
"""


def snippets(card: str) -> list[str]:
    """Return the Python blocks of a card in order."""
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


def run_snippets(cards: dict[Path, str], image_files: list[Path], **environment: str) -> dict[Path, dict]:
    """Run all blocks of each card in its folder.

    Returns:
        folder -> the shape of its vectors, and the cosine of each other loading method with nnclr_hub for a.jpg.
    """
    for folder in cards:
        for name, image in zip(("a.jpg", "b.jpg"), image_files, strict=False):
            (folder / name).write_bytes(image.read_bytes())
        (folder / "nnclr_hub").symlink_to(ROOT)
    blocks = json.dumps({str(folder): "\n".join(snippets(card)) for folder, card in cards.items()})
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, input=blocks, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {Path(folder): one for folder, one in json.loads(done.stdout.splitlines()[-1]).items()}
