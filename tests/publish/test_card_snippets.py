"""The snippets of cards run and agree: for an export, each starter, and a published model."""

from pathlib import Path

import pytest
from publish.card_snippets import run_snippets, snippets
from publish.conftest import turned_to_own_hub

from nnclr_hub import list_models, model_info
from nnclr_hub.publish.export import export_run
from nnclr_hub.publish.upload import publish_model

# the client itself calls httpx in a way that httpx wants changed
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(scope="module")
def cards(make_model, tmp_path_factory) -> dict[str, tuple[Path, str]]:
    """name -> the folder in which a reader would run its snippets, and the card."""
    work = tmp_path_factory.mktemp("cards")
    small = export_run(make_model("resnet50", {"channels": [4, 4, 4, 8]}, 64), work / "exported" / "small", graph=False)
    found = {"exported": (small.parent, (small / "README.md").read_text())}
    for name in list_models():
        (work / name).mkdir()
        (work / name / name).symlink_to(model_info(name).folder)
        found[name] = (work / name, (work / name / name / "README.md").read_text())
    return found


@pytest.fixture(scope="module")
def results(cards, image_files, tmp_path_factory) -> dict[str, dict]:
    """Return name -> result of `run_snippets`; "published" is the export at the tag of its card."""
    work = tmp_path_factory.mktemp("published")
    with turned_to_own_hub(work / "hub-cache") as hub:
        publish_model(cards["exported"][0] / "small", "org/published", tag="v1.0")
        card = hub.repositories["org/published"].files()["README.md"].decode()
        variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(work / "hf"), "HF_HUB_DISABLE_XET": "1"}
        (work / "elsewhere").mkdir()
        every = cards | {"published": (work / "elsewhere", card)}
        assert "./small" not in card
        assert all(len(snippets(one)) == 4 for _, one in every.values())
        answers = run_snippets(dict(every.values()), image_files, **variables)
    return {name: answers[folder] for name, (folder, _) in every.items()}


@pytest.mark.parametrize("name", ["exported", "published", *list_models()])
def test_every_snippet_runs_and_all_methods_agree(results, name):
    assert results[name]["shape"] == [2, 32 if name in ("exported", "published") else model_info(name).embed_dim]
    assert results[name]["timm"] == pytest.approx(1, abs=1e-5)
    assert results[name]["transformers"] == pytest.approx(1, abs=1e-5)
