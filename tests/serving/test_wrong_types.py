"""A request is checked by its dataclass: Python and REST refuse the same values of every field."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from nnclr_hub.errors import NNCLRHubError
from nnclr_hub.workbench import NewCollection, SearchQuery
from nnclr_hub.workbench.tasks import all_tasks

VALUES = [None, True, 0, -1, 1, 1.5, 2.0, "1", "x", "", [], [1], ["x"], {}, {"a": 1}, 10**6, 10**30, 1e308]
ABSENT = "absent"  # a valid request for this collection is answered by 404, and starts no job
# what a request must have in addition
OTHERS: dict[str, dict[str, Any]] = {
    "search": {"id": "i0"},
    "create": {"dim": 4},
    "reembed": {"model": ABSENT},
    "probe_fit": {"name": "p", "field": "label"},
    "duplicates": {"threshold": 0.9},
}


def cases() -> Iterator[Any]:
    """Yield the name of a request, how it is made, the fields that a client sets, and its method and path."""
    path = f"/collections/{ABSENT}"
    yield "search", SearchQuery.of, [one.name for one in fields(SearchQuery)[2:]], "POST", f"{path}/search"
    yield "create", NewCollection, [one.name for one in fields(NewCollection)], "PUT", path
    for task in all_tasks().values():
        names = [one.name for one in fields(task.request) if not one.metadata["hidden"] and one.name != "collection"]
        if names and not task.upload and not task.query:  # a query has texts only
            yield task.name, task.request, names, "POST", task.path.format(collection=ABSENT)


def refused(make: Any, given: dict[str, Any]) -> bool:
    try:
        make(**given)
    except NNCLRHubError:
        return True
    return False


@pytest.mark.parametrize(("name", "make", "names", "method", "path"), [pytest.param(*c, id=c[0]) for c in cases()])
def test_python_and_rest_refuse_the_same_values(client, name, make, names, method, path):
    differences = []
    if name == "search":
        client.put(f"/api/v1/collections/{ABSENT}", json={"dim": 4})
    for field in names:
        for value in VALUES:
            given = {**OTHERS.get(name, {}), field: value}
            if (name, field) == ("create", "model"):
                del given["dim"]
            in_body = {} if ABSENT in path else {"collection": ABSENT}
            in_python = {} if name in OTHERS.keys() & {"search", "create"} else {"collection": ABSENT}
            here = refused(make, in_python | given)
            answer = client.request(method, f"/api/v1{path}", json=in_body | given)
            if name == "create":
                client.delete(f"/api/v1/collections/{ABSENT}")
            assert answer.status_code in (200, 201, 404, 422), answer.text
            if here != (answer.status_code == 422):
                differences.append((field, value, here, answer.text))
    client.delete(f"/api/v1/collections/{ABSENT}")
    assert not differences
