"""Run folders as `nnclr pretrain` leaves them, without pretraining."""

import json
from pathlib import Path

REPORT = "<!doctype html><html lang=en><title>A run</title><h1>A run</h1><p>Epoch {epoch}</p></html>"


def write_run(folder: Path, *, step: int = 40, steps: int = 100, report: str | None = None) -> Path:
    """Write a run that has reached a step; report: its HTML, "" for no report."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"recipe": "small", "steps": steps, "epochs": 10}))
    lines = [{"step": at, "epoch": at / 10, "loss": 5 - at / 50, "knn/val": 0.4} for at in range(10, step + 1, 10)]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if report != "":
        (folder / "report.html").write_text(report or REPORT.format(epoch=step // 10))
    return folder
