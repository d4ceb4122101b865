"""What tests do with images that are added on the tab Collections."""

from typing import Any


def choose(page: Any, files: Any, *, folder: bool = False) -> None:
    kind = "folder" if folder else "files"
    given = str(files) if folder else [str(one) for one in files]
    page.set_input_files(f"#uploader .choose-{kind}", given)


def wait_for_jobs(page: Any, count: int = 1, state: str = "done") -> None:
    page.wait_for_function(
        "([count, state]) => document.querySelectorAll(`#jobs .job.${state}`).length === count", arg=[count, state]
    )
