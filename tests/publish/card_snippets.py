"""The Python blocks of a model card, and a process that runs them all."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def snippets(card: str) -> list[str]:
    """The Python blocks of a card, in their order."""
    return re.findall(r"```python\n(.*?)```", card, re.DOTALL)


def run_snippets(card: str, folder: Path, pictures: list[Path], **environment: str) -> list[str]:
    """Runs all blocks in one process, in `folder`, and prints what they made of a.jpg."""
    for name, picture in zip(("a.jpg", "b.jpg"), pictures, strict=False):
        (folder / name).write_bytes(picture.read_bytes())
    (folder / "nnclr_hub").symlink_to(ROOT)
    code = "\n".join(snippets(card)) + (
        "\nimport torch.nn.functional as F\n"
        "print(vectors.shape)\n"
        "x = encoder.transform.normalise(encoder.prepare('a.jpg')[None])\n"
        "print(F.normalize(backbone.eval()(x)).detach().numpy() @ vectors[0])\n"
        "print(F.normalize(model.eval()(x).pooler_output.flatten(1)).detach().numpy() @ vectors[0])\n"
    )
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
