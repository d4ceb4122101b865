"""The Python blocks of model cards, and one process that runs those of several: its imports take longer than they."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# each card's blocks in a namespace of their own; then what its three doors made of a.jpg
PROGRAM = """
import json, os, sys
import torch.nn.functional as F

told = {}
for folder, blocks in json.load(sys.stdin).items():
    print("in", folder, file=sys.stderr)
    os.chdir(folder)
    made = {"__name__": "__main__"}
    exec(blocks, made)
    encoder, vectors = made["encoder"], made["vectors"]
    x = encoder.transform.normalize(encoder.prepare("a.jpg")[None])
    doors = {"timm": made["backbone"].eval()(x), "transformers": made["model"].eval()(x).pooler_output.flatten(1)}
    cosines = {door: float(F.normalize(out)[0].detach().numpy() @ vectors[0]) for door, out in doors.items()}
    told[folder] = {"shape": list(vectors.shape), **cosines}
print(json.dumps(told))
"""


def snippets(card: str) -> list[str]:
    """The Python blocks of a card, in their order."""
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


def run_snippets(cards: dict[Path, str], image_files: list[Path], **environment: str) -> dict[Path, dict]:
    """Runs all blocks of each card in the folder that it is given for.

    Returns:
        folder -> the shape of its vectors, and for each other door the cosine of its vector of a.jpg to ours.
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
