"""A run records the commit of its code, and whether the code differed from it."""

import subprocess

import pytest

from nnclr_hub.publish.provenance import describe_training
from training import recorder

AUTHOR = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Return a function that runs git in a new checkout with a tag, which the code seems to run from."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *AUTHOR, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    monkeypatch.setattr(recorder, "ROOT", tmp_path)
    (tmp_path / "code.py").write_text("a = 1\n")
    git("init", "--quiet")
    git("add", "code.py")
    git("commit", "--quiet", "--message", "Begin")
    git("tag", "--annotate", "v1.0", "--message", "v1.0")
    return git


def recorded() -> str | None:
    recorder.commit_of_code.cache_clear()  # as in another process
    return recorder.commit_of_code()


def test_the_commit_is_marked_if_tracked_files_were_changed(checkout, tmp_path):
    head = checkout("rev-parse", "HEAD")
    assert recorded() == head
    (tmp_path / "notes.txt").write_text("not tracked\n")
    assert recorded() == head
    (tmp_path / "code.py").write_text("a = 2\n")
    assert recorded() == f"{head}-dirty"
    checkout("add", "code.py")
    assert recorded() == f"{head}-dirty", "staged, but not committed"
    checkout("commit", "--quiet", "--message", "Change")
    assert recorded() == checkout("rev-parse", "HEAD") != head


def test_an_installed_package_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "ROOT", tmp_path)
    assert recorded() is None


def test_a_card_reports_uncommitted_changes(checkout, tmp_path):
    short = checkout("rev-parse", "--short=12", "HEAD")
    assert describe_training({"commit": recorded()}) == f"code at commit {short}."
    (tmp_path / "code.py").write_text("a = 2\n")
    assert describe_training({"commit": recorded()}) == f"code at commit {short} with uncommitted changes."
