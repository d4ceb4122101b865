"""The page Insights of the web app: its findings, the images that they open, and what is written."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from explore_actions import option
from phone import PHONE

from nnclr_hub.store import open_store
from nnclr_hub.workbench.inspection.findings import inspect_collection, write_fields
from nnclr_hub.workbench.inspections import get_inspection, keep_inspection

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def served(model, photos, filled, serve) -> Iterator:
    """Serve photos with an inspection whose findings are known: suspects 0 to 2, copies 3 to 5, outliers 6 to 8."""
    with open_store(str(filled)) as opened:
        collection = opened.get("photos")
        made = inspect_collection(collection)
        label = {item.id: item.metadata["label"] for item in collection.get(made.ids)}
        other = {"cat": "coffee", "coffee": "astronaut", "astronaut": "cat"}
        suspects = [
            {"item": i, "score": 0.9, "label": label[i], "proposed": other[label[i]], "flagged": k < 3}
            for k, i in enumerate(made.ids)
        ]
        outliers = [{"item": i, "score": 0.7, "flagged": True} for i in made.ids[6:9]]
        copies = {"exact_duplicates": [{"items": list(made.ids[3:6]), "score": 1.0}], "near_duplicates": []}
        findings = {**made.findings, **copies, "suspect_labels": suspects, "outliers": outliers}
        kept = write_fields(collection, replace(made, findings=findings), collection.update_each)
        keep_inspection(opened.records, kept)
    yield from serve(model, filled, page=True, source_folders=[str(photos)])


@pytest.fixture
def kept(served):
    return get_inspection(served.bench.store.records, served.bench.collection("photos"))


@pytest.fixture
def insights(opened):
    def open_insights(**context):
        page = opened(path="/#/insights/photos", **context)
        page.wait_for_selector(".facts")
        return page

    return open_insights


def card(page, name):
    return page.locator(f"section[aria-label='{name}']")


def shown(page) -> list[str]:
    """Ids of the images of a finding in Explore, in order."""
    page.wait_for_function("() => document.querySelector('.chip') && document.querySelector('.tile img')")
    return ids(page)


def ids(page) -> list[str]:
    return page.eval_on_selector_all(
        ".tile",
        """tiles => tiles.sort((a, b) => a.ariaPosInSet - b.ariaPosInSet)
                         .map(tile => tile.dataset.id)""",
    )


def test_a_slow_page_does_not_replace_the_page_that_was_opened_after_it(opened):
    page = opened(path="/#/explore/photos", allowed=("404",))
    page.wait_for_selector(".tile img")
    held = []
    page.route("**/photos/inspections", lambda route: held.append(route))
    with page.expect_request("**/photos/inspections"):
        page.get_by_role("link", name="Insights").click()
    page.get_by_role("link", name="Explore").click()
    page.wait_for_selector(".tile img")
    with page.expect_response("**/photos/inspections"):
        for request in held:
            request.continue_()
    page.wait_for_timeout(1000)  # Insights draws what it found
    assert page.locator(".insights").count() == 0
    page.goto(page.url.split("#")[0] + "#/explore/missing")
    page.wait_for_selector("main :text('missing')")
    assert page.locator(":text('missing'):visible").count() == 1, "the reason is on the screen once"
    page.locator("main").get_by_role("link").click()
    page.wait_for_selector("h1:has-text('Collections')")
    assert "photos" not in page.evaluate("document.body.dataset.drop"), "a drop is no longer of Explore"
    assert page.evaluate("!document.dispatchEvent(new DragEvent('dragover', {cancelable: true}))")


def test_each_finding_opens_its_images(insights, served, kept):
    page = insights()
    facts = [one.split("\n") for one in page.locator(".facts > div").all_inner_texts()]
    assert ["outliers", "3"] in facts
    names = [(name.removesuffix(" of copies"), number) for name, number in facts if number.isdigit()]
    assert all(name.endswith("s") == (number != "1") for name, number in names)
    assert card(page, "Outliers").locator("img").count() == 3
    card(page, "Outliers").get_by_role("link", name="Open 3 images").click()
    assert shown(page) == sorted(kept.ids[6:9])
    assert page.locator(".verdict").inner_text().startswith("3 of 60")
    page.reload()
    assert shown(page) == sorted(kept.ids[6:9])
    page.get_by_role("button", name="Remove the finding").click()
    page.wait_for_function("() => document.querySelector('.verdict').textContent.startsWith('60 ')")
    page.go_back()
    assert shown(page) == sorted(kept.ids[6:9])


def test_findings_that_the_server_cut_are_said_to_be_so(opened):
    page = opened()

    def cut(route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"truncated": "9 of the 10 entries are left out."})

    page.route(re.compile(r"/inspections/\d+$"), cut)
    page.goto(f"{page.url.split('#')[0]}#/insights/photos")
    page.get_by_text("9 of the 10 entries are left out.").wait_for()


def test_a_cell_of_the_matrix_opens_the_images_that_were_confused(insights, kept):
    page = insights()
    wrong = (kept.labels != kept.predicted) & (kept.labels >= 0)
    pairs, counts = np.unique(np.stack([kept.labels, kept.predicted])[:, wrong], axis=1, return_counts=True)
    (given, taken), number = pairs[:, counts.argmax()], counts.max()
    classes = kept.findings["classes"]
    cell = page.get_by_role("link", name=f"of {classes[given]}, predicted as {classes[taken]}")
    assert cell.inner_text() == str(number)
    cell.click()
    rows = np.flatnonzero((kept.labels == given) & (kept.predicted == taken))
    assert shown(page) == sorted(kept.ids[row] for row in rows)


def test_suspect_labels_are_accepted_and_rejected_by_keys(insights, served, kept):
    page = insights()
    collection = served.bench.collection("photos")
    first, second, third = kept.ids[:3]
    before = {item.id: item.metadata["label"] for item in collection.get([first, second, third])}
    proposed = {one["item"]: one["proposed"] for one in kept.findings["suspect_labels"]}
    rows = card(page, "Suspect labels").locator("li")
    assert [row.get_attribute("data-id") for row in rows.all()] == [first, second, third]

    def metadata(id):
        return collection.get([id])[0].metadata

    rows.first.locator("a").focus()
    page.keyboard.press("a")
    page.wait_for_function("() => document.querySelectorAll('.review li').length === 2")
    assert (metadata(first)["label"], metadata(first)["inspection"]["reviewed"]) == (proposed[first],) * 2
    page.keyboard.press("ArrowRight")  # the focus is on the next one
    page.keyboard.press("r")
    page.wait_for_function("() => document.querySelectorAll('.review li').length === 1")
    assert (metadata(third)["label"], metadata(third)["inspection"]["reviewed"]) == (before[third],) * 2
    assert metadata(second)["label"] == before[second]
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    page.wait_for_function("() => document.querySelectorAll('.review li').length === 3")
    assert metadata(first)["label"] == before[first]
    assert "reviewed" not in metadata(third)["inspection"]
    assert "reviewed" not in metadata(first)["inspection"]
    page.reload()
    page.wait_for_selector(".review li")
    assert [row.get_attribute("data-id") for row in rows.all()] == [first, second, third]


def test_a_double_click_decides_on_one_image(insights, served, kept):
    page = insights()
    collection = served.bench.collection("photos")
    box = card(page, "Suspect labels").get_by_role("button", name="Reject").first.bounding_box()
    for clicks in (1, 2):
        page.mouse.move(box["x"] + 8, box["y"] + 8)
        page.mouse.down(click_count=clicks)
        page.mouse.up(click_count=clicks)
        page.wait_for_function("() => document.querySelectorAll('.review li').length === 2")
    assert [len(item.metadata["inspection"].get("reviewed", "")) > 0 for item in collection.get(kept.ids[:3])] == [
        True,
        False,
        False,
    ]
    page.keyboard.press("Control+z")
    page.wait_for_function("() => document.querySelectorAll('.review li').length === 3")


def test_the_best_copy_is_kept_and_the_others_are_deleted(insights, served, kept):
    page = insights()
    collection = served.bench.collection("photos")
    copies = kept.ids[3:6]
    sizes = [item.metadata["size"] for item in collection.get(copies)]
    best = copies[int(np.argmax(sizes))]
    for name, answer in (("Keep the best, delete 2", "Keep"), ("delete 2 images", "Delete 2 images")):
        assert len(collection.get(copies)) == 3
        card(page, "Duplicates").get_by_role("button", name=name).click()
        page.locator("dialog[open]").get_by_role("button", name=answer, exact=True).click()
        page.wait_for_selector("dialog", state="detached")
    page.wait_for_function("() => document.querySelector('[aria-label=Duplicates]').hidden")
    assert [item.id for item in collection.get(copies)] == [best]
    left = collection.count()
    page.wait_for_function(f"() => document.querySelector('option:checked').textContent.includes('({left})')")
    assert card(page, "Duplicates").is_hidden()
    assert page.locator(".facts > div").first.inner_text().split("\n") == ["groups of copies", "0"]
    page.get_by_role("link", name="Explore").click()
    page.wait_for_function(f"() => document.querySelector('.verdict')?.textContent === '{left} images'")
    assert page.locator("[aria-label=Collection] option:checked").inner_text() == f"photos ({left})"


def test_findings_are_fields_of_the_grid(insights, served, kept):
    page = insights()
    page.goto(f"{served.url}/#/explore/photos?order=-inspection.outlier&group=inspection.cluster")
    page.wait_for_selector(".heading")
    page.wait_for_function("() => document.querySelector('.verdict').textContent.length > 0")
    assert option(page, "Group by").input_value() == "inspection.cluster"
    option(page, "Group by").select_option("")
    page.keyboard.press("Escape")
    score = {id: round(float(value), 4) for id, value in zip(kept.ids, kept.outlier_scores, strict=True)}
    page.wait_for_function("() => !document.querySelector('.heading')")
    values = [score[id] for id in ids(page)]
    assert values == sorted(values, reverse=True)
    page.locator("[data-facet='inspection.cluster'] .facet").first.click()
    page.wait_for_selector(".chip")
    number = int(page.locator("[data-facet='inspection.cluster'] .facet .value").first.inner_text())
    passing = served.bench.collection("photos").count({"must": [{"key": "inspection.cluster", "match": number}]})
    assert page.locator(".verdict").inner_text().startswith(f"{passing} of")


def test_a_new_inspection_is_made_on_a_phone(insights, served, kept):
    page = insights(**PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["viewport"]["width"]
    served.bench.collection("photos").update_metadata({"note": 1}, ids=[kept.ids[0]])
    with page.expect_response(lambda answer: answer.url.endswith("/inspections") and answer.request.method == "POST"):
        page.get_by_role("button", name="Inspect again").click()
    page.wait_for_function("() => !document.querySelector('.job-bar:not([hidden])')")
    made = get_inspection(served.bench.store.records, served.bench.collection("photos"))
    assert made.number == kept.number + 1
    assert made.fields_seq == served.bench.collection("photos").info().durable_seq


def test_encoders_are_compared(insights, served):
    def list_two(route) -> None:  # each of the others takes seconds
        listed = route.fetch().json()
        route.fulfill(json={**listed, "data": listed["data"][:2]})

    page = insights()
    page.route("**/v1/models", list_two)
    encoders = card(page, "Encoders")
    encoders.get_by_role("button", name="Compare encoders").click()
    encoders.locator("tbody tr").nth(1).wait_for(timeout=240_000)
    [job], _ = served.app.state.jobs.list(10, None, kind="comparison")
    scores = served.app.state.jobs.get(job.id).result["scores"]
    assert encoders.locator("tbody th").all_inner_texts() == [one["source"] for one in scores]
    shown = encoders.locator("tbody td:nth-child(2)").all_inner_texts()
    assert [float(text.split("%")[0]) for text in shown] == [round(100 * one["linear"][0], 1) for one in scores]
    assert encoders.locator("tbody tr").first.inner_text().endswith("in use")


def test_what_was_added_and_deleted_since_the_inspection_is_counted(insights, served, kept):
    photos = served.bench.collection("photos")
    gone = photos.get(kept.ids[-2:])
    photos.delete([item.id for item in gone])
    photos.upsert([replace(gone[0], id="new", metadata={})])
    photos.update_each({id: {"kind": "ab"[k % 2]} for k, id in enumerate(kept.ids[:9])})
    try:
        page = insights()
        page.request.put(f"{served.url}/api/v1/collections/photos/label-keys", data={"field": "kind", "labels": []})
        text = "Since then, 1 image was added and 2 images were deleted."
        page.locator(f".note:has-text('{text}')").wait_for()
        page.goto(f"{served.url}/#/explore/photos")
        page.locator(f"item-map .note:has-text('{text}')").wait_for()
        assert page.get_by_label("Color by").input_value() == "kind", "the key that is labeled"
    finally:
        photos.delete(["new"])
        photos.upsert(gone)
