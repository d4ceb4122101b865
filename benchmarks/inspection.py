"""What `nnclr inspect` finds of planted errors, against other libraries where they are installed.

The others are imagededup, cleanvision, cleanlab and fastdup.

    python -m benchmarks.inspection DATA WORK --out WORK/inspection.json

DATA holds folders of labeled sets, each with train/CLASS/IMAGE. Of each, at most 2,800 images are copied to WORK, with:

- duplicates: 10 crops of 80% of the area, 10 JPEGs of quality 40, 10 mirror images and 10 images at 60% of the size;
- foreign images: 1%, from the next set;
- flipped labels: 5%, uniformly among the other classes;
- leaks: a fifth of the images is test/; 40 further copies of train/ images, of the same four kinds, are put there.

Peers run on the same files and, for vectors, on the same vectors.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from PIL import Image, ImageOps

MOST = 2800
KINDS = ("crop", "jpeg40", "mirror", "resize")
PER_KIND = 10
FOREIGN, FLIPPED, TEST = 0.01, 0.05, 0.2
SHOTS, DRAWS = (1, 2, 5), 10
Pairs = set[tuple[str, str]]


def plant(sets: list[Path], at: int, work: Path, most: int = MOST) -> dict[str, Any]:
    """Copy a set with planted errors to `work` and return what was planted; twice gives the same."""
    random = np.random.default_rng(0)
    paths = sorted(path for path in (sets[at] / "train").glob("*/*") if path.is_file())
    paths = [paths[i] for i in np.sort(random.permutation(len(paths))[:most])]
    others = sorted(path for path in (sets[(at + 1) % len(sets)] / "train").glob("*/*") if path.is_file())
    shutil.rmtree(work, ignore_errors=True)
    for part in ("train", "test"):
        (work / part).mkdir(parents=True)
    is_test = random.random(len(paths)) < TEST
    names, labels = [], []
    for i, path in enumerate(paths):
        names.append(f"{'test' if is_test[i] else 'train'}/{i:05d}.jpg")
        labels.append(path.parent.name)
        shutil.copyfile(path, work / names[-1])
    duplicates, leaks = [], []
    train = random.permutation(np.flatnonzero(~is_test))
    for k, i in enumerate(train[: 2 * PER_KIND * len(KINDS)]):
        leak = k >= PER_KIND * len(KINDS)
        kind = KINDS[k % len(KINDS)]
        name = f"{'test' if leak else 'train'}/copy{k:03d}_{kind}.jpg"
        with Image.open(paths[i]) as image:
            version(image.convert("RGB"), kind, random).save(work / name, quality=40 if kind == "jpeg40" else 90)
        duplicates.append((names[i], name))
        if leak:
            leaks.append((names[i], name))
    foreign = []
    for k, i in enumerate(random.permutation(len(others))[: round(FOREIGN * len(paths))]):
        foreign.append(f"train/foreign{k:03d}.jpg")
        shutil.copyfile(others[i], work / foreign[-1])
    classes = sorted(set(labels))
    given, flipped = list(labels), []
    for i in np.flatnonzero(random.random(len(labels)) < FLIPPED):
        given[i] = classes[(classes.index(labels[i]) + random.integers(1, len(classes))) % len(classes)]
        flipped.append(names[i])
    rows = "".join(f"{name},{label}\n" for name, label in zip(names, given, strict=True))
    (work / "labels.csv").write_text("path,label\n" + rows)
    planted = {"duplicates": duplicates, "leaks": leaks, "foreign": foreign, "flipped": flipped}
    return {**planted, "names": names, "labels": labels}


def version(image: Image.Image, kind: str, random: np.random.Generator) -> Image.Image:
    """Return another version of an image."""
    width, height = image.size
    if kind == "crop":
        w, h = round(width * 0.8**0.5), round(height * 0.8**0.5)
        x, y = int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1))
        return image.crop((x, y, x + w, y + h))
    if kind == "mirror":
        return ImageOps.mirror(image)
    if kind == "resize":
        return image.resize((max(1, round(width * 0.6)), max(1, round(height * 0.6))), Image.Resampling.BICUBIC)
    return image


def measure(work: Path, planted: dict[str, Any], model: str | None) -> dict[str, Any]:
    """Inspect a planted folder and score the findings."""
    from nnclr_hub.encoder.loader import load_encoder
    from nnclr_hub.hub.registry import default_model
    from nnclr_hub.inspect import near_duplicates
    from nnclr_hub.workbench.inspection.findings import find
    from nnclr_hub.workbench.inspection.subject import folder_subject

    began = process_time()
    subject = folder_subject(work, load_encoder(model or default_model()))
    seconds = process_time() - began
    findings = find(subject)
    found = findings.as_json()
    pairs = _pairs(one["items"] for kind in ("near_duplicates", "exact_duplicates") for one in found[kind])
    results: dict[str, Any] = {"images": len(subject.items), "cpu_s_embed": seconds, "cpu_s": process_time() - began}
    results["duplicates"] = _score_pairs(pairs, planted["duplicates"])
    alone = near_duplicates(subject.vectors)
    by_vectors = _pairs([subject.items[i] for i in group] for group in alone.groups)
    results["duplicates by vectors alone"] = _score_pairs(by_vectors, planted["duplicates"])
    crossing = {pair for pair in pairs if pair[0].split("/")[0] != pair[1].split("/")[0]}
    results["leaks"] = _score_pairs(crossing, planted["leaks"])
    scores = {one["item"]: one["score"] for one in found["outliers"]}
    foreign = set(planted["foreign"])
    results["outliers"] = {
        "auroc": _auroc(scores, foreign),
        "precision at n": _precision_at_n(scores, foreign),
    }
    suspects = {one["item"]: one["score"] for one in found["suspect_labels"]}
    flipped = set(planted["flipped"])
    results["flips"] = {
        "auroc": _auroc(suspects, flipped),
        "precision at n": _precision_at_n(suspects, flipped),
        "accuracy": found["accuracy"]["top1"],
        **_flags(found, flipped),
    }
    results["label next"] = label_next(subject, planted)
    results["peers"] = peers(work, planted, subject, findings)
    return results


def label_next(subject: Any, planted: dict[str, Any]) -> dict[str, Any]:
    """Return the accuracy of a linear probe on chosen and on random labels, on the images of test/."""
    from nnclr_hub.inspect import what_to_label_next
    from nnclr_hub.probe.linear import fit_linear_probe

    truth = dict(zip(planted["names"], planted["labels"], strict=True))
    place = {item: i for i, item in enumerate(subject.items)}
    train = np.array([place[name] for name in truth if name.startswith("train/")])
    test = np.array([place[name] for name in truth if name.startswith("test/")])
    labels = np.array([truth.get(item, "") for item in subject.items])
    random, count = np.random.default_rng(0), len(set(truth.values()))

    def accuracy(rows: np.ndarray) -> float:
        if len(set(labels[rows])) < 2:
            return 0.0
        probe = fit_linear_probe(subject.vectors[rows], labels[rows].tolist(), l2=1e-4)
        return float(np.mean(np.array(probe.predict(subject.vectors[test]).labels) == labels[test]))

    results = {}
    for shots in SHOTS:
        number = min(shots * count, len(train))
        # a tenth of the images is left out at random in each draw, because the choice itself is deterministic
        ours = []
        for _ in range(DRAWS):
            pool = train[random.random(len(train)) < 0.9]
            ours.append(accuracy(pool[what_to_label_next(subject.vectors[pool], min(number, len(pool)))]))
        chance = [accuracy(random.choice(train, number, replace=False)) for _ in range(DRAWS)]
        results[str(shots)] = {"ours": float(np.mean(ours)), "random": float(np.mean(chance))}
    return results


def peers(work: Path, planted: dict[str, Any], subject: Any, findings: Any) -> dict[str, Any]:
    """Return the scores of other libraries, as far as they are installed."""
    results: dict[str, Any] = {}
    if importlib.util.find_spec("imagededup"):
        from imagededup.methods import PHash

        flat = work.parent / f"{work.name}-flat"
        shutil.rmtree(flat, ignore_errors=True)
        flat.mkdir()
        for item in subject.items:
            shutil.copyfile(work / item, flat / item.replace("/", "__"))
        found = PHash(verbose=False).find_duplicates(image_dir=str(flat))
        pairs = {
            tuple(sorted((a.replace("__", "/"), b.replace("__", "/")))) for a, others in found.items() for b in others
        }
        results["imagededup PHash"] = _score_pairs(pairs, planted["duplicates"])
        shutil.rmtree(flat)
    if importlib.util.find_spec("cleanvision"):
        from cleanvision import Imagelab

        lab = Imagelab(data_path=str(work))
        lab.find_issues({"near_duplicates": {}, "exact_duplicates": {}}, n_jobs=1, verbose=False)
        groups = [one for kind in ("near_duplicates", "exact_duplicates") for one in lab.info[kind]["sets"]]
        pairs = _pairs([Path(path).relative_to(work).as_posix() for path in group] for group in groups)
        results["cleanvision"] = _score_pairs(pairs, planted["duplicates"])
    if importlib.util.find_spec("fastdup"):
        results |= _fastdup(work, planted)
    if importlib.util.find_spec("cleanlab"):
        from cleanlab.outlier import OutOfDistribution
        from cleanlab.rank import get_label_quality_scores

        quality = OutOfDistribution().fit_score(features=subject.vectors, verbose=False)
        scores = dict(zip(subject.items, (-quality).tolist(), strict=True))
        results["cleanlab outliers"] = {"auroc": _auroc(scores, set(planted["foreign"]))}
        numbers = np.array([findings.classes.index(subject.labels[i]) for i in findings.labeled])
        quality = get_label_quality_scores(numbers, findings.held_out.probabilities.astype(float))
        names = [subject.items[i] for i in findings.labeled]
        scores = dict(zip(names, (-quality).tolist(), strict=True))
        results["cleanlab label quality"] = {"auroc": _auroc(scores, set(planted["flipped"]))}
    if importlib.util.find_spec("sklearn"):
        from sklearn.neighbors import LocalOutlierFactor

        factor = LocalOutlierFactor().fit(subject.vectors).negative_outlier_factor_
        scores = dict(zip(subject.items, (-factor).tolist(), strict=True))
        results["scikit-learn LOF"] = {"auroc": _auroc(scores, set(planted["foreign"]))}
    return results


def _fastdup(work: Path, planted: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of fastdup's own features: pairs above two thresholds, and 1 - the nearest similarity."""
    import fastdup

    found = fastdup.create(input_dir=str(work), work_dir=str(work.parent / f"{work.name}-fastdup"))
    found.run(overwrite=True, threshold=0.0, nearest_neighbors_k=3, num_threads=1, verbose=False)
    table = found.similarity()
    names = {name: Path(name).resolve().relative_to(work.resolve()).as_posix() for name in set(table.filename_from)}
    names |= {name: Path(name).resolve().relative_to(work.resolve()).as_posix() for name in set(table.filename_to)}
    nearest: dict[str, float] = {}
    results: dict[str, Any] = {}
    for a, score in zip(table.filename_from, table.distance, strict=True):
        nearest[names[a]] = max(float(score), nearest.get(names[a], -1.0))
    for least in (0.9, 0.96):
        near = table[table.distance >= least]
        pairs = _pairs([names[a], names[b]] for a, b in zip(near.filename_from, near.filename_to, strict=True))
        results[f"fastdup, similarity {least}"] = _score_pairs(pairs, planted["duplicates"])
    scores = {name: 1 - score for name, score in nearest.items()}
    results["fastdup outliers"] = {"auroc": _auroc(scores, set(planted["foreign"]))}
    return results


def _pairs(groups: Iterable[Iterable[str]]) -> Pairs:
    listed = [list(group) for group in groups]
    return {(a, b) for group in listed for a in group for b in group if a < b}


def _score_pairs(found: Any, planted: Iterable[Iterable[str]]) -> dict[str, float]:
    """Return precision and recall; pairs of two original images count as wrong, though some are real duplicates."""
    true = {tuple(sorted(pair)) for pair in planted}
    right = len(true & set(found))
    return {
        "precision": right / max(1, len(found)),
        "recall": right / len(true),
        "false": len(found) - right,
        **{kind: sum(kind in pair[0] + pair[1] for pair in true & set(found)) for kind in KINDS},
    }


def _flags(found: dict[str, Any], flipped: set[str]) -> dict[str, float]:
    """Return how many labels are flagged, with precision and recall."""
    flagged = {one["item"] for one in found["suspect_labels"] if one["flagged"]}
    right = len(flagged & flipped)
    precision, recall = right / max(1, len(flagged)), right / len(flipped)
    return {"flagged": len(flagged), "flagged precision": precision, "flagged recall": recall}


def _auroc(scores: dict[str, float], positive: set[str]) -> float:
    from scipy.stats import rankdata

    names = list(scores)
    ranks = rankdata([scores[name] for name in names])
    is_positive = np.array([name in positive for name in names])
    count = int(is_positive.sum())
    return float((ranks[is_positive].sum() - count * (count + 1) / 2) / (count * (len(names) - count)))


def _precision_at_n(scores: dict[str, float], positive: set[str]) -> float:
    top = sorted(scores, key=lambda name: -scores[name])[: len(positive)]
    return sum(name in positive for name in top) / len(positive)


def main() -> None:
    """Plant and measure every set."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("data", type=Path)
    arguments.add_argument("work", type=Path)
    arguments.add_argument("--sets", nargs="*", help="names of folders of DATA; default all")
    arguments.add_argument("--most", type=int, default=MOST, help="images per set")
    arguments.add_argument("--model", help="default: the default encoder")
    arguments.add_argument("--out", type=Path)
    given = arguments.parse_args()
    sets = [given.data / name for name in given.sets] if given.sets else sorted(p for p in given.data.iterdir())
    results = {}
    for at, one in enumerate(sets):
        planted = plant(sets, at, given.work / one.name, given.most)
        results[one.name] = measure(given.work / one.name, planted, given.model)
        print(json.dumps({one.name: results[one.name]}, indent=1), flush=True)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
