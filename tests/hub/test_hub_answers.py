"""hf-hub: against a server on this machine that answers as the Hub does: downloads, and every way they can fail."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import TAG, TOKEN, HubServer, running_hub

from nnclr_hub.hub.layout import WEIGHTS, sha256_of

REFUSALS = {  # repository -> status, and the header by which the Hub tells refusals apart
    "org/removed": (404, "RepoNotFound"),
    "org/gated": (403, "GatedRepo"),
    "org/ill": (418, ""),
    "org/asleep": (503, ""),
}
RESOLVE = """
import json, sys
from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.hub.sources import resolve, verify
answers = {}
for source in sys.argv[1:]:
    try: answers[source] = verify(source)[1].sha256
    except NNCLRHubError as error: answers[source] = f"{type(error).__name__}: {error}"
assert "torch" not in sys.modules
print(json.dumps(answers))
"""


def fetch(hub: HubServer, cache: Path, *sources: str, code: str = RESOLVE, **environment: str) -> dict[str, str]:
    """source -> sha256 of the weights, or the error's class and sentence, from a process that talks to the server."""
    command = [sys.executable, "-c", code, *(f"hf-hub:{source}" for source in sources)]
    done = subprocess.run(
        command, env=hub.environment(cache, **environment), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert not [answer for answer in answers.values() if "\n" in answer]
    return {source.removeprefix("hf-hub:"): answer for source, answer in answers.items()}


@pytest.fixture(scope="module")
def hub(model, make_model, tmp_path_factory):
    spoilt = shutil.copytree(model, tmp_path_factory.mktemp("spoilt") / "model")
    shutil.copy(make_model(seed=1) / "model.safetensors", spoilt)
    empty = tmp_path_factory.mktemp("empty")
    (empty / "README.md").write_text("nothing here")
    repositories = {"org/name": model, "org/token": model, "org/spoilt": spoilt, "org/empty": empty}
    root = shutil.copytree(model, tmp_path_factory.mktemp("root") / "files")
    (root / WEIGHTS).rename(root / f"named-{sha256_of(root / WEIGHTS)[:8]}.safetensors")
    with running_hub(repositories, root) as hub:
        hub.repositories["org/token"].private = True
        hub.refusals |= REFUSALS
        yield hub


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hf")


@pytest.fixture(scope="module")
def answers(hub, cache) -> dict[str, str]:
    sources = ["org/name", f"org/name@{TAG}", f"org/name@{hub.head('org/name')}", "org/name@v9", *REFUSALS]
    return fetch(hub, cache, *sources, "org/gone", "org/..", "org/na--me", "org/token", "org/spoilt", "org/empty")


@pytest.fixture(scope="module")
def want(model) -> str:
    return sha256_of(model / WEIGHTS)


def test_a_repository_is_downloaded(answers, hub, want):
    assert [answers[f"org/name{at}"] for at in ("", f"@{TAG}", f"@{hub.head('org/name')}")] == [want] * 3


@pytest.mark.parametrize(
    ("kind", "sources"),
    [
        ("UnknownModel", ["org/gone", "org/removed", "org/token", "org/gated", "org/name@v9"]),
        ("ModelError", ["org/ill", "org/asleep"]),
        ("InvalidRequest", ["org/..", "org/na--me"]),
        ("TamperedModel", ["org/spoilt"]),
        ("ModelFilesMissing", ["org/empty"]),
    ],
)
def test_each_refusal_is_reported_in_one_line(answers, kind, sources):
    assert {answers[source].partition(":")[0] for source in sources} == {kind}


def test_a_token_opens_a_private_repository_and_an_invalid_one_is_named_without_its_value(hub, tmp_path, want):
    assert fetch(hub, tmp_path, "org/token", HF_TOKEN=TOKEN) == {"org/token": want}
    for number, token in enumerate(("hf_wrong", "hf_sécret")):
        refused = fetch(hub, tmp_path / str(number), "org/token", HF_TOKEN=token)["org/token"]
        assert refused.startswith("UnknownModel: ")
        assert "HF_TOKEN" in refused
        assert token not in refused


@pytest.mark.parametrize(
    ("broken", "kind"), [pytest.param("half", "ModelError", marks=pytest.mark.slow), ("flipped", "TamperedModel")]
)
def test_a_file_that_changed_on_the_way_is_refused_and_the_next_download_completes_it(
    hub, tmp_path, want, broken, kind
):
    """The client itself does not look."""
    hub.broken[WEIGHTS] = broken
    try:
        assert fetch(hub, tmp_path, "org/name")["org/name"].startswith(f"{kind}: ")
    finally:
        hub.broken.clear()
    if broken == "half":
        assert fetch(hub, tmp_path, "org/name") == {"org/name": want}


@pytest.mark.slow
def test_cached_files_need_no_network(hub, answers, cache, want):
    """Check offline mode and an unreachable server; a missing file names the variable and the cache."""
    asked = len(hub.asked)
    commit = hub.head("org/name")
    answer = fetch(hub, cache, "org/name", f"org/name@{commit}", "org/new", f"org/new@{commit}", HF_HUB_OFFLINE="1")
    assert len(hub.asked) == asked
    assert answer["org/name"] == answer[f"org/name@{commit}"] == want
    for source in ("org/new", f"org/new@{commit}"):
        assert answer[source].startswith("ModelFilesMissing: ")
        assert "HF_HUB_OFFLINE" in answer[source]
    dead = fetch(hub, cache, "org/name", "org/new", f"org/new@{commit}", HF_ENDPOINT="http://127.0.0.1:9")
    assert dead["org/name"] == want
    for source in ("org/new", f"org/new@{commit}"):
        assert dead[source].startswith("ModelFilesMissing: ")
        assert "http://127.0.0.1:9 cannot be reached" in dead[source]


def test_a_proxy_is_used(hub, tmp_path, want):
    """The host does not exist; the proxy, here the stand-in itself, answers for it."""
    proxy = {"HF_ENDPOINT": "http://hub.invalid", "HTTP_PROXY": hub.url, "http_proxy": hub.url}
    assert fetch(hub, tmp_path, "org/name", **proxy) == {"org/name": want}
    none = {"HF_ENDPOINT": "http://hub.invalid", "HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    assert "HTTPS_PROXY" in fetch(hub, tmp_path / "2", "org/name", **none)["org/name"]


def test_a_full_disk_is_reported(hub, tmp_path):
    """Simulate a full disk with the limit on the size of a file."""
    code = "import resource, sys; sys.dont_write_bytecode = True  # Python would leave half a file\n"
    code += "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n" + RESOLVE
    answer = fetch(hub, tmp_path, "org/name", code=code)["org/name"]
    assert answer.startswith("ModelError: ")
    assert "disk" in answer


@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_is_shown_or_not(hub, tmp_path, progress):
    code = (
        "import sys; from nnclr_hub.hub.sources import resolve\n"
        f"resolve('hf-hub:org/name', progress={progress})\n"
        f"resolve(sys.argv[1], progress={progress})"
    )
    environment = hub.environment(tmp_path)
    del environment["HF_HUB_DISABLE_PROGRESS_BARS"]
    (named,) = hub.root.glob("named-*")
    command = [sys.executable, "-c", code, f"{hub.url}/{named.name}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert ("Fetching" in done.stderr, "100%" in done.stderr) == (progress, progress)
    assert progress or done.stderr == ""


def test_a_mirror_that_names_xet_and_has_none_names_the_variable(hub, tmp_path, want):
    """It passes on the Hub's header of a file, and knows nothing of where it leads."""
    hub.xet = True
    try:
        answer = fetch(hub, tmp_path, "org/name", HF_HUB_DISABLE_XET="0")["org/name"]
        assert answer.startswith("ModelError: ")
        assert "HF_HUB_DISABLE_XET=1" in answer
        assert fetch(hub, tmp_path, "org/name") == {"org/name": want}
    finally:
        hub.xet = False
