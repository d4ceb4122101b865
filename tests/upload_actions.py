"""Actions of tests that add images on the Collections tab."""

from typing import Any


def choose(page: Any, files: Any, *, folder: bool = False) -> None:
    """Choose files, or a folder, in the uploader."""
    kind = "folder" if folder else "files"
    paths = str(files) if folder else [str(one) for one in files]
    page.set_input_files(f"#uploader .choose-{kind}", paths)


def wait_for_jobs(page: Any, count: int = 1, state: str = "done") -> None:
    """Wait until the page shows that many jobs in a state."""
    page.wait_for_function(
        "([count, state]) => document.querySelectorAll(`#jobs .job.${state}`).length === count", arg=[count, state]
    )
