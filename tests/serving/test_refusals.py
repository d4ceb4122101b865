"""One table of refused requests: the status, the stable code, and that nothing has changed."""

import json
from typing import Any

import httpx
import pytest
from image_bytes import encoded
from PIL import Image
from rest_requests import is_problem
from rest_rows import INVALID, TOO_LARGE, WRONG_TYPE, rows, sent

from serving.problems import problem

VIT = "random:test_vit"
V32, ROOT = [1.0] * 32, {"must": [{"key": "root", "exists": True}]}
JPEG, TEXT = {"files": ("a.jpg", b"x")}, {"Content-Type": "text/plain"}
HUGE = 10**400
HALF_PNG = encoded(Image.new("RGB", (64, 64)))[:50]
TWICE = [{"id": "x", "vector": V32}] * 2
LINES = {"Content-Type": "application/x-ndjson"}
UNSUPPORTED, UNDECODABLE = (415, "unsupported_image"), (422, "undecodable_image")


def ask(image: Any = "IMAGE", **query: Any) -> dict[str, Any]:
    return {"image": image, **query}


def form(*targets: str | bytes, image: str | bytes = "IMAGE", headers: Any = None, **query: Any) -> Any:
    """Return a request for an attention map as a form."""
    files = [("image", ("a", image)), *(("target", ("b", one)) for one in targets)]
    return sent(files=files, data={"query": json.dumps(query)}, headers=headers)


def openai(**change: Any) -> dict[str, Any]:
    return {"model": "default", "input": "IMAGE", **change}


def table(text: str, **query: str) -> Any:
    """Return a request for labels from a table."""
    return sent(content=text.encode(), params=query, headers={"Content-Type": "text/csv"})


def guesses(clause: str) -> Any:
    """Yield filters that could reveal the folder of an indexed item letter by letter."""
    for kind in ({"match": "/a"}, {"prefix": "/"}, {"range": {"gte": "/"}}, {"exists": True}):
        yield json.dumps({clause: [{"key": "path", "match": "cat/1.jpg"}, {"key": "root", **kind}]})


# request -> its refused bodies, each alone (then 422 invalid_request) or with status and code
ENCODINGS = ("gzip", "deflate", "br", "zstd", "gzip, identity", "x" * 1000)
TABLE: dict[str, list[Any]] = {
    "POST c/photos/search": [
        {},
        {"id": "a", "vector": [1.0]},
        {"vector": [1.0, 2.0]},
        {"vector": [0.0] * 32},
        {"vector": [1e39] * 32},
        {"vector": V32, "k": 0},
        {"vector": V32, "k": 1001},
        {"vector": V32, "box": [0, 0, 1, 1]},
        {"vector": V32, "unknown": 1},
        {"vector": V32, "effort": 0},
        {"vector": V32, "effort": 10**9},
        {"vector": V32, "effort": "much"},
        {"vector": V32, "with_percentile": "much"},
        {"vector": V32, "where": ROOT},
        {"vector": V32, "group_by": "root"},
        {"positive": []},
        {"positive": [{}]},
        {"positive": [{"id": "a", "vector": [1.0]}]},
        {"positive": [{"id": "a", "k": 3}]},
        {"id": "a", "positive": [{"id": "a"}]},
        {"negative": [{"id": "a"}]},
        {"positive": [{"id": "a"}], "box": [0, 0, 1, 1]},
        {"positive": [{"id": "a"}, {"id": "b"}], "group_by": "label"},
        ({"id": "a", "group_by": 'a"b'}, 422, "invalid_filter"),
        ask(box=[70, 0, 90, 20]),
        ask(box=[5, 5, 5, 9]),
        ask(box=[9, 9, 3, 3]),
        ({"vector": V32, "where": {"most": []}}, 422, "invalid_filter"),
        ({"id": "nobody"}, 404, "item_not_found"),
        (ask("YQ=="), 415, "unsupported_image"),
        *(
            (sent(content=content, headers={"Content-Type": "application/json"}), 400, "malformed")
            for content in (b'{"k":', '{"id": "a"}'.encode("utf-16"))
        ),
        sent(files={"other": ("a.jpg", b"x")}),
        sent(files={"image": ("a.jpg", "IMAGE")}, data={"query": '{"image": "x"}'}),  # given twice
    ],
    "POST c/none/search": [({"id": "a"}, 404, "collection_not_found")],
    "POST c/photos/search/batch": [
        ({"queries": [{"id": "a"}] * 65}, *TOO_LARGE),
        ({"queries": [{"positive": [{"image": "YQ=="}] * 65}] * 2}, *TOO_LARGE),
        ({"queries": [{"positive": [{"id": "a"}] * 1000}] * 64}, *TOO_LARGE),
        {"queries": []},
        {"queries": [{"vector": V32, "where": ROOT}]},
    ],
    "POST /api/v1/embed": [
        (sent(), *WRONG_TYPE),
        (sent(content=b"x", headers=TEXT), *WRONG_TYPE),
        sent(files={"other": ("a.jpg", b"x")}),
        sent(files=JPEG, data={"itmes": "[]"}),
        (sent(files=[("files", ("a.jpg", b"garbage"))] * 64), *UNDECODABLE),
        sent(files={"files": ("a.jpg", "IMAGE")}, data={"model": b"\xff"}),
        sent(files={"files": ("a.jpg", "IMAGE")}, data={"files": "b.jpg"}),  # `curl -F` without its @
        *((sent(content=b"x", headers={"Content-Encoding": kind}), 415, "unsupported_encoding") for kind in ENCODINGS),
        (sent(files=[("files", ("a.jpg", b"x"))] * 129), *TOO_LARGE),
        (sent(files={"files": ("big.jpg", bytes(21_000_000))}), *TOO_LARGE),
        (
            sent(files={"files": ("a.jpg", b"garbage")}, headers={"Accept": "application/x-npy"}),
            422,
            "undecodable_image",
        ),
        ({"images": ["***"]}, 422, "undecodable_image"),
        {"images": []},
        ({"images": ["YQ=="], "model": "other"}, 404, "unknown_model"),
        ({"images": ["YQ=="] * 129}, *TOO_LARGE),
    ],
    "POST /embed": [
        ({"inputs": ["IMAGE", "Z2FyYmFnZQ=="]}, 415, "unsupported_image"),
        {"inputs": "IMAGE", "normalize": False},
    ],
    "POST /api/v1/attention": [
        *(ask(**query) for query in ({"box": [0, 0, 65, 64]}, {"box": [8, 8, 8, 20]}, {"point": [64, 3]})),
        *(ask(**query) for query in ({"point": [1, 2], "box": [0, 0, 9, 9]}, {"head": 0}, {"threshold": 0.5})),
        *(ask(model=VIT, **query) for query in ({"head": 3}, {"head": -1}, {"threshold": 0})),
        ask(model=VIT, threshold=0.5, point=[1, 2]),
        *(ask(**query) for query in ({"max_side": 1025}, {"max_side": 10}, {"opacity": 1.5}, {"similarity": "l2"})),
        *(ask(**query) for query in ({"point": [1]}, {"pint": [1, 2]}, {"target": ["IMAGE"] * 7})),
        {"target": []},
        ask("***"),
        (ask("YQ=="), 415, "unsupported_image"),
        (form(image=HALF_PNG), *UNDECODABLE),
        (form("IMAGE", HALF_PNG), *UNDECODABLE),
        *((form(image=image), *UNSUPPORTED) for image in (b"garbage", b"")),
        *((form("IMAGE", image), *UNSUPPORTED) for image in (b"garbage", b"")),
        # a center prior is for whole images
        *(form(center_prior=True, **query) for query in ({"point": [20, 30]}, {"box": [8, 8, 40, 64]})),
        form("IMAGE", center_prior=True),
        # two maps do not fit into a PNG, nor a PNG into an array
        form("IMAGE", "IMAGE", headers={"Accept": "image/png"}),
        form(with_png=True, headers={"Accept": "application/x-npy"}),
        sent(files={"image": ("a.jpg", "IMAGE")}, data={"target": "b.jpg"}),
        (ask(model="other"), 404, "unknown_model"),
        (ask(collection="none"), 404, "collection_not_found"),
        sent(files=[("target", ("x", b"y"))]),
        (sent(files=[("image", ("x", b"y"))] * 2), *TOO_LARGE),
        (sent(content=b"x", headers={"Content-Type": "image/png"}), *WRONG_TYPE),
    ],
    "POST c/photos/items": [
        sent(files=JPEG, data={"itmes": "[]"}),
        (sent(files=JPEG, data={"items": "["}), 400, "malformed"),
        sent(files=JPEG, data={"items": "[{}, {}]"}),
        sent(files=[("files", ("a.jpg", "IMAGE"))] * 2, data={"items": '[{"id": "same"}, {"id": "same"}]'}),
        sent(files={"files": ("a.jpg", "IMAGE")}, data={"files": "b.jpg"}),
        ({"items": [{"image": "***"}]}, 422, "undecodable_image"),
    ],
    "PUT c/photos/items": [
        (sent(content=b"[{", headers={"Content-Type": "application/json"}), 400, "malformed"),
        (sent(content=b"x", headers=TEXT), *WRONG_TYPE),
        *([{"id": id, "vector": V32}] for id in ("a/b", "../x", "", ".", "..", "a\0", "a\r\nX-Evil: 1")),
        [{"id": 5, "vector": V32}],
        [{"id": "x", "vector": V32, "metadata": {"n": HUGE}}],
        [{"id": "x", "vector": V32, "metadata": {"n": 2**70}}],
        TWICE,
    ],
    f"PUT c/photos/items?fingerprint={'f' * 32}": [([{"id": "x", "vector": V32}], 409, "fingerprint_mismatch")],
    "GET c/photos/items?where={": [(None, 422, "invalid_filter")],
    "GET c/photos/items?limit=0": [None],
    "GET c/photos/items?cursor=x": [None],
    "GET c/photos/items?cursor=%C3%A4": [None],
    "GET c/photos/items?limt=5": [None],
    "GET c/photos/items?limit=1&limit=2": [None],
    "GET c/photos/items/none": [(None, 404, "item_not_found")],
    "DELETE c/photos/items/none": [(None, 404, "item_not_found")],
    "GET c/photos/items/a/thumbnail": [(None, 404, "item_not_found")],  # it has a vector only
    "GET c/photos/items/none/original": [(None, 404, "item_not_found")],
    **{
        f"GET c/photos/count?where={one}": [(None, 422, "invalid_filter")]
        for clause in ("must", "should", "must_not")
        for one in guesses(clause)
    },
    "GET c/photos/count?where=[]": [(None, 422, "invalid_filter")],
    "GET c/nothing/count": [(None, 404, "collection_not_found")],
    "PATCH c/photos/items": [
        {"metadata": {"x": 1}},
        {"metadata": {"x": 1}, "ids": ["a"], "where": {}},
        {"metadata": {"x": "y" * 65_536}, "ids": ["a"]},
        {"metadata": {"x": 1}, "where": {"must": [{"should": [{"key": "root", "exists": True}]}]}},
        {"metadata": {"n": HUGE}, "where": {"must": [{"ids": ["a"]}]}},
        ({"metadata": {"n": 1}, "where": {}}, 422, "invalid_filter"),
        {"metadata": {"n": {"m": [HUGE]}}, "ids": ["a"]},
        *({"each": {"a": {"n": 1}}, **more} for more in ({"ids": ["a"]}, {"metadata": {}}, {"replace": True})),
        {"each": {"a": {"n": 1}}, "expected": {"b": {}}},
        {"ids": ["a"], "metadata": {"n": 1}, "expected": {"a": {}}},
    ],
    "POST c/photos/delete": [
        {},
        *(({"where": where}, 422, "invalid_filter") for where in ({}, {"must": []}, {"must": [1]})),
        ({"where": {"must": [{"key": "n", "match": HUGE}]}}, 422, "invalid_filter"),
    ],
    "POST c/photos/lookup": [{"ids": ["a"] * 1001}],
    "POST c/photos/facets": [{"keys": ["root"]}, {"keys": []}],
    "PUT c/photos/label-keys": [
        *({}, {"labels": ["x"] * 10}, {"labels": [["x"]]}, {"labels": ["x" * 1001]}),
        *(({"labels": [], "field": field}, 422, "invalid_filter") for field in ("", 'a"b')),
    ],
    "PUT c/nowhere/label-keys": [({"labels": []}, 404, "collection_not_found")],
    "POST c/photos/labels": [
        (sent(content=b"id,label\na,cat\n"), *WRONG_TYPE),
        table("id,label\na,cat\na,dog\n"),
        table("id,label\nnobody,cat\n"),
        (table("id,label\n"), 422, "no_images"),
        (table("id,label\n" + "".join(f"{i},cat\n" for i in range(100_001))), *TOO_LARGE),
        table("file,label\na,cat\n"),
        table('id,label\na,"cat\n'),
        table("id,label\na,cat\n", label_column="Art"),
        table("id,label\na,cat\n", key="root"),
        *(table("id,label\na,cat\n", columns=columns) for columns in ('["nowhere"]', "split", "[1]")),
    ],
    "PUT c/plain": [({"dim": 2, **more}, 409, "collection_exists") for more in ({"dim": 5}, {"vectors": "whiten"})],
    "PUT c/l2": [{"dim": 4, "metric": "l2", "vectors": "center"}],
    "PUT c/odd": [{"model": "default?channels=0,1"}],
    **{f"PUT c/{name}": [{"dim": 4}] for name in ("a%CC%88", "a%00", "a%20%20b", "%20a")},
    "GET c/none": [(None, 404, "collection_not_found")],
    "PUT /api/v1/aliases/photos": [({"collection": "photos"}, 409, "collection_exists")],
    "PUT /api/v1/aliases/x": [({"collection": "nothing"}, 404, "collection_not_found")],
    "PUT /api/v1/aliases/a  b": [{"collection": "photos"}],
    "DELETE /api/v1/aliases/nothing": [(None, 404, "collection_not_found")],
    "POST c/plain/duplicates": [
        *({"threshold": threshold} for threshold in ("low", 5, -1.01)),
        *({"exact": True}, {"limit": 0}, {"more": 1}, {"threshold": 0.9, "where": ROOT}),
        ({"threshold": 0.9, "where": {"x": 1}}, 422, "invalid_filter"),
    ],
    "POST c/photos/comparisons": [{"models": ["pixels"] * 9}, ({"field": 'a"b'}, 422, "invalid_filter")],
    "POST c/photos/inspections": [{"label_next": 1001}],
    "POST c/none/duplicates": [({}, 404, "collection_not_found")],
    "POST c/none/reembed": [({"model": "default"}, 404, "collection_not_found")],
    "POST c/photos/reembed": [({"model": "none"}, 404, "unknown_model")],
    "DELETE c/none/reembed": [(None, 404, "collection_not_found")],
    "POST c/photos/index": [
        *({"folder": folder} for folder in ("../secret", "/etc", "2023", "a\0b", "a" * 300, "summer/cat/00.jpg")),
        {"source": "secret"},
        *({"folder": link} for link in ("outside", "loop")),
    ],
    "POST c/nowhere/index": [({}, 404, "collection_not_found")],
    "POST c/plain/index": [{}],
    "POST c/plain/imports": [
        (sent(content=b"", headers=TEXT), *WRONG_TYPE),
        sent(content=b"", headers={**LINES, "Idempotency-Key": "ä".encode()}),
        sent(content=b"", headers={**LINES, "Upload-Offset": "-1"}),
        # before the file is sent: these vectors are not from the server's encoder
        sent(content=b"", headers={"Content-Type": "application/zip"}),
    ],
    "POST c/none/imports": [(sent(content=b"", headers=LINES), 404, "collection_not_found")],
    **{f"POST c/none/{kind}": [(None, 404, "collection_not_found")] for kind in ("verify", "compact")},
    **{f"{method} /api/v1/jobs/0": [(None, 404, "job_not_found")] for method in ("GET", "DELETE")},
    "GET /api/v1/jobs/0/events": [(None, 404, "job_not_found")],
    **{f"GET /api/v1/jobs?{query}": [None] for query in ("limit=0", "cursor=x", "state=maybe", "kind=other")},
    "POST /api/v1/store/backups?keep=0": [None],
    "POST /api/v1/probes": [
        {"name": "x"},
        *({"name": "x", "collection": "photos", **more} for more in ({}, {"field": "lable"}, {"field": "root"})),
        *({"name": "x", "collection": "photos", "field": "label", **more} for more in ({"l2": -1}, {"threshold": 2})),
        {"name": "x", "collection": "photos", "field": "label", "model": "y"},
        {"name": "x", "collection": "photos", "field": "label", "where": ROOT},
        ({"name": "x", "collection": "photos", "field": "label", "where": {"most": []}}, 422, "invalid_filter"),
        {"name": "x y", "collection": "photos", "field": "label"},
        {"name": "x", "items": [{"vector": [1.0], "label": "a"}]},
        {"name": "x", "items": [{"label": "a"}, {"label": "b"}]},
        {"name": "x", "items": [{"vector": [1.0], "label": 1.5}, {"vector": [1.0], "label": "b"}]},
        ({"name": "x", "items": [{"image": "eA==", "label": "cat"}] * 129}, *TOO_LARGE),
        (
            {"name": "x", "items": [{"vector": [1.0, 0.0], "label": one} for one in "ab"], "model": "no"},
            404,
            "unknown_model",
        ),
        ({"name": "x", "collection": "none", "field": "label"}, 404, "collection_not_found"),
    ],
    "POST /api/v1/probes/none/predict": [
        *({}, {"ids": ["a"]}, {"collection": "photos"}, {"vectors": []}, {"vectors": [[1.0]], "images": ["AAAA"]}),
        {"vectors": [[1.0], [1.0, 2.0]]},
        *({"vectors": [[1.0]], "top": 0}, {"vectors": [[1.0]], "more": 1}),
        ({"vectors": [[1.0]]}, 404, "probe_not_found"),
        ({"images": ["AAAA"] * 129}, *TOO_LARGE),
    ],
    **{
        f"{method} /api/v1/probes/none{path}": [(None, 404, "probe_not_found")]
        for method, path in (("GET", ""), ("GET", "/export"), ("DELETE", ""))
    },
    **{
        f"GET /api/v1/runs/{name}/report": [(None, 404, "run_not_found")]
        for name in ("nothing", "..%2fstore", "first%2f..")
    },
    "GET /api/v1/nothing": [(None, 404, "not_found")],
    "POST /api/v1/collections": [
        (sent(headers={"Host": "evil.example"}), 403, "host_not_allowed"),
        (sent(content=bytes(20_000_001)), *TOO_LARGE),
    ],
    "PATCH /api/v1/collections": [(None, 405, "method_not_allowed")],
    # inside /v1: the parameter at fault is named
    "POST /v1/embeddings": [
        (openai(input=["Z2FyYmFnZQ=="]), 400, "unsupported_image", "input[0]"),
        *((openai(input=one), 400, "invalid_request", "input[0]") for one in (["***"], [{"image": "***"}])),
        *((openai(input=one), 400, "invalid_request", "input[0]") for one in ([[1, 2]], [1, 2], [{"text": "cat"}])),
        (openai(input="https://example.com/x.jpg"), 400, "invalid_request", "input[0]"),
        (openai(input=["IMAGE"] * 150 + ["Z2FyYmFnZQ=="]), 400, "unsupported_image", "input[150]"),
        (openai(input=[]), 400, "invalid_request", "input"),
        ({"model": "default"}, 400, "invalid_request", "input"),
        (openai(model="other"), 404, "unknown_model", "model"),
        (openai(dimensions=7), 400, "invalid_request", "dimensions"),
        (openai(modality="audio"), 400, "invalid_request", "modality"),
        (openai(input=["YQ=="] * 1025), *TOO_LARGE),
        (sent(content=b"{", headers={"Content-Type": "application/json"}), 400, "malformed"),
        (sent(content=b"x", headers=TEXT), 400, "unsupported_media_type"),
    ],
    "GET /v1/nothing": [(None, 404, "not_found")],
    "GET /v1/models?x=1": [(None, 400, "invalid_request")],
}


@pytest.fixture(scope="module")
def world(server, photos):
    """Serve a collection of two items for the model, one of vectors, and a vision transformer; yield the `state`."""
    server.engines.get(VIT)
    [source] = server.app.state.settings.source_folders
    (source / "outside").symlink_to(photos)
    (source / "loop").symlink_to("loop")
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.put("/api/v1/collections/photos", json={})
        items = [{"id": id, "vector": [*V32[:-1], n], "metadata": {"n": n, "label": id}} for n, id in enumerate("ab")]
        client.put("/api/v1/collections/photos/items", json=items)
        client.put("/api/v1/collections/plain", json={"dim": 2})
        yield state(client)
        for name in ("photos", "plain"):
            client.delete(f"/api/v1/collections/{name}")


def state(client) -> list[Any]:
    """Return what a request could have changed."""
    items = client.get("/api/v1/collections/photos/items", params={"with_vector": True}).json()
    others = ("collections", "aliases", "jobs", "probes", "collections/photos/label-keys")
    return [items, *(client.get(f"/api/v1/{path}").json() for path in others)]


@pytest.mark.parametrize("row", rows(TABLE))
def test_a_refused_request_has_a_code_and_changes_nothing(client, world, image_files, row):
    row.check(client, image_files[0].read_bytes())
    assert state(client) == world


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, "invalid_request_error"), *((status, "server_error") for status in (429, 500, 503))],
)
def test_an_error_for_a_client_of_openai_tells_whether_to_try_again(status, kind):
    answer = json.loads(problem("/v1/embeddings", status, "code", "Why.").body)
    assert answer == {"error": {"message": "Why.", "type": kind, "param": None, "code": "code"}}


def test_unknown_query_parameters_are_refused(client, world):
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            response = client.request(method, path.replace("{name}", "photos"), params={"no_such": 1}, json={})
            assert response.status_code in (400, 422), (method, path)
            assert "'no_such'" in response.text, (method, path)
    assert client.get("/docs", params={"theme": "dark"}).status_code == 200


def test_validation_errors_name_the_place_and_the_expected_value(client, world):
    for body, place, expected in (
        ({"id": 5}, "body.id", "string"),
        ({"id": "a", "more": 1}, "body.more", "not permitted"),
        ({"id": "a", "k": "5"}, "body.k", "integer"),
        ({"vector": {}}, "body.vector", "array"),
        ({"vector": [1.0, "x"]}, "body.vector", "number"),
        ({"image": "x", "box": [1, 2]}, "body.box.2", "required"),
        ({"id": "a", "where": ROOT}, "body.where", "'root'"),
        ([], "body", "object"),
    ):
        response = client.post("/api/v1/collections/photos/search", json=body)
        is_problem(response, *INVALID)
        errors = response.json()["errors"]
        assert any(error["loc"].startswith(place) and expected in error["msg"] for error in errors), errors
    response = client.get("/api/v1/jobs", params={"limit": "x", "kind": "y"})
    assert [error["loc"] for error in response.json()["errors"]] == ["query.limit", "query.kind"]


def test_a_body_with_a_million_errors_gets_a_short_answer(client, world):
    faults = {
        "/api/v1/collections/photos/items": b"[" + b",".join([b"0"] * 1_000_000) + b"]",
        "/api/v1/collections/x": b"{" + b",".join(b'"%d":0' % i for i in range(500_000)) + b"}",
    }
    for path, body in faults.items():
        response = client.put(path, content=body, headers={"Content-Type": "application/json"})
        is_problem(response, *INVALID)
        assert len(response.content) < 2000
