"""The screen Explore of the web app, in a real browser."""

import io
import json
import zipfile
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from explore_actions import expected, found, ids, option, search
from phone import PHONE
from PIL import Image, ImageFilter

from nnclr_hub.store.items import Item, percent_text
from nnclr_hub.workbench import Example, SearchQuery
from nnclr_hub.workbench.inspection.findings import inspect_collection
from nnclr_hub.workbench.inspections import get_inspection, keep_inspection, list_inspections

pytestmark = pytest.mark.browser


def test_a_search_shows_the_neighbors_that_the_library_finds(explore, served):
    page = explore()
    first = ids(page)[3]
    assert search(page, 3)[:12] == expected(served, positive=[first])[:12]


def inspect_once(served):
    """Make the map, unless a test before did."""
    records, collection = served.bench.store.records, served.bench.collection("photos")
    if not list_inspections(records, collection):
        keep_inspection(records, inspect_collection(collection))


def test_scores_are_compared_with_random_pairs(explore, served):
    """On the tiles, in the sentence and in the viewer, by the percentiles that a search of the library returns."""
    page = explore()
    first = ids(page)[3]
    query = SearchQuery([Example(id=first)], k=60, with_percentile=True)
    matches = served.bench.search("photos", query)
    search(page, 3)
    steps = [sum(match.percentile >= low for low in (0.95, 0.99, 0.999)) for match in matches]
    shown = [page.locator(f".tile[aria-posinset='{i}'] .score").inner_text() for i in (1, 2, 3)]
    assert shown == ["●" * step + "○" * (3 - step) for step in steps[:3]]
    sentence = f"nearer than {percent_text(matches[0].percentile).replace('>', '')} of random pairs"
    assert sentence in page.locator(".verdict").inner_text()
    # only what is near the screen is in the page
    line = page.locator(".scroller").evaluate(
        """async one => {
            for (let line = null; one.scrollTop + one.clientHeight < one.scrollHeight; one.scrollBy(0, 300)) {
                await new Promise(requestAnimationFrame);
                line = document.querySelector('.heading.chance');
                if (line) return line.offsetTop;
            }
        }"""
    )
    tops = """() => [...document.querySelectorAll('.tile')].map(one =>
        [+one.ariaPosInSet, one.offsetTop, one.ariaLabel.includes('no better than chance')])"""
    for place, top, chance in page.evaluate(tops):
        assert (top > line) == chance == (place > steps.index(0))
    page.locator(".scroller").evaluate("one => one.scrollTo(0, 0)")
    nearest_id = page.locator(".tile[aria-posinset='1']").get_attribute("data-id")
    page.locator(".sheet").focus()
    page.keyboard.press("Home")
    page.keyboard.press("v")
    page.wait_for_selector(".neighbors span")
    assert sentence in page.locator("aside .note").first.inner_text()
    [nearest, *_] = served.bench.search("photos", SearchQuery([Example(id=nearest_id)], k=8, with_percentile=True))
    assert page.locator(".neighbors li").first.locator("span").all_inner_texts() == [
        f"{nearest.score:.3f}",
        percent_text(nearest.percentile),
    ]


def test_more_and_less_like_an_image_refine_a_search(explore, served):
    page = explore()
    one, two, three = ids(page)[:3]
    search(page)
    held: list[Any] = []
    page.route("**/search", lambda route: held.append(route))
    page.goto(f"{served.url}/#/explore/photos?like={one}&like={two}&unlike={three}")
    page.wait_for_selector(".example.negative")
    page.wait_for_function("() => document.querySelectorAll('.example').length === 3")
    page.set_viewport_size({"width": 1300, "height": 800})  # the images are laid out again before there is an answer
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.locator("image-grid.waiting").count() == 1
    for route in held:
        route.continue_()
    page.unroute("**/search")
    assert found(page)[:8] == expected(served, positive=[one, two], negative=[three])[:8]


def test_an_address_reopens_a_search_with_its_filters(explore, served, opened):
    page = explore()
    page.locator(".facet", has_text="cat").first.click()
    page.wait_for_selector(".chip")
    before = search(page)
    assert {item.metadata["label"] for item in served.bench.collection("photos").get(before)} == {"cat"}
    other = opened(path=page.evaluate("location.pathname + location.hash"))
    assert found(other) == before
    other.reload()
    assert found(other) == before
    page.go_back()
    page.wait_for_function("() => !document.querySelector('.tile .score:not(:empty)')")
    assert page.locator(".chip").count() == 1


@pytest.mark.parametrize("damage", ["filter=%7Bbad", "filter=5", "where=%7B"])
def test_a_damaged_link_shows_the_collection(explore, served, damage):
    page = explore()
    page.goto(f"{served.url}/#/explore/photos?{damage}")
    page.wait_for_selector(".message.error:has-text('link')")
    assert page.locator(".tile").count() > 0


def test_facets_count_what_a_query_counts(explore, served):
    page = explore()
    shown = dict(
        page.eval_on_selector_all(
            ".facet", "all => all.map(one => [one.children[1].textContent, +one.children[2].textContent])"
        )
    )
    collection = served.bench.collection("photos")
    for label, number in shown.items():
        assert number == collection.count({"must": [{"key": "label", "match": label}]})
    assert sum(shown.values()) == collection.count()


def test_a_filter_as_json_shows_what_passes(explore, served):
    where = {"must_not": [{"key": "label", "match": "cat"}]}
    page = explore(allowed=("422",))
    page.locator(".json summary").click()
    page.locator(".json textarea").fill(json.dumps(where))
    page.locator(".json .button").click()
    page.wait_for_selector(".chip")
    number = served.bench.collection("photos").count(where)
    assert page.locator(".verdict").inner_text().startswith(f"{number} of")
    page.locator(".json textarea").fill('{"must": 3}')
    page.locator(".json .button").click()
    page.wait_for_selector(".json [role=alert]:not(:empty)")


@pytest.mark.parametrize("way", ["file", "paste", "drop"])
def test_an_own_image_is_searched_for_from_anywhere(explore, served, photos, way):
    path = sorted((photos / "cat").iterdir())[0]
    page = explore("", allowed=("422",))
    if way == "file":
        page.locator("query-bar input[type=file]").set_input_files(path)
    else:
        page.evaluate(
            """([way, bytes]) => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], 'own.jpg', {type: 'image/jpeg'}));
                const init = {bubbles: true, cancelable: true};
                const event = way === 'paste' ? new ClipboardEvent('paste', {...init, clipboardData: data})
                                              : new DragEvent('drop', {...init, dataTransfer: data});
                document.querySelector('.facets').dispatchEvent(event);
            }""",
            [way, list(path.read_bytes())],
        )
    page.wait_for_selector(".example img")
    nearest = found(page)[0]
    assert nearest == expected(served, positive=[path])[0]
    page.reload()
    page.wait_for_selector(".example img")
    assert found(page)[0] == nearest


def test_a_file_that_is_no_image_is_one_sentence(explore, tmp_path):
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"not an image")
    page = explore(allowed=("422",))
    page.locator("query-bar input[type=file]").set_input_files(bad)
    page.wait_for_selector(".message.error")
    assert page.locator(".tile").count() > 0


def test_the_keyboard_alone_searches_selects_and_views(explore):
    page = explore()
    shown = ids(page)
    page.locator(".sheet").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert page.locator(".tile[aria-selected=true]").count() == 3
    tile = Image.open(io.BytesIO(page.locator(".tile[aria-selected=true]").first.screenshot())).convert("RGB")
    frame = {tile.getpixel((1, y)) for y in range(20, tile.height - 20)}
    assert frame == {(184, 59, 6)}, "the image does not cover the frame"
    page.keyboard.press("v")
    page.wait_for_selector("dialog.viewer[open] .neighbors li")
    title = page.locator("dialog.viewer h2").inner_text()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("title => document.querySelector('dialog.viewer h2').textContent !== title", arg=title)
    assert f"open={shown[4]}" in page.url
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('dialog.viewer[open]')")
    page.keyboard.press("Escape")
    assert page.locator(".tile[aria-selected=true]").count() == 0


def test_shift_selects_a_range_whose_files_are_downloaded(explore, photos):
    page = explore()
    page.locator(".tile .box").nth(1).click(force=True)
    page.locator(".tile").nth(4).click(modifiers=["Shift"])
    selected = page.locator(".tile[aria-selected=true]").count()
    assert selected == 4
    with page.expect_download() as download:
        page.get_by_role("button", name="Images (zip)").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        assert archive.testzip() is None
        sources = {path.read_bytes() for path in photos.rglob("*") if path.is_file()}
        assert len(archive.namelist()) == selected
        assert {archive.read(name) for name in archive.namelist()} <= sources
    with page.expect_download() as download:
        page.get_by_role("button", name="Table (CSV)").click()
    lines = io.StringIO(download.value.path().read_text()).readlines()
    assert len(lines) == selected + 1


def test_a_hostile_label_is_only_text(explore, served):
    collection = served.bench.collection("photos")
    item = collection.get([next(iter(collection.read_all(1)))[0].id])[0]
    hostile = "<img src=x onerror=document.body.dataset.hit=1>"
    collection.upsert([type(item)(item.id, item.vector, {**item.metadata, "label": hostile}, item.thumbnail)])
    try:
        page = explore(f"?filter={quote(json.dumps([['label', {'in': [hostile]}]]))}")
        page.wait_for_selector(".chip")
        page.locator(".sheet").focus()
        page.keyboard.press("v")
        page.wait_for_selector("dialog.viewer[open] .neighbors li")
        assert page.evaluate("document.body.dataset.hit") is None
        assert hostile in page.locator("dialog.viewer dl").inner_text()
    finally:
        collection.upsert([item])


def test_results_are_near_the_top_of_a_phone(explore):
    page = explore(**PHONE)
    buttons = page.locator(":is(.start, .arrange) :is(.button, summary):visible")
    assert set(buttons.all_inner_texts()) == {""}
    assert len({button.locator("path").get_attribute("d") for button in buttons.all()}) == buttons.count() > 4
    page.locator(".tile").nth(2).tap()
    page.get_by_role("button", name="Find similar images").first.tap()
    found(page)
    assert page.locator(".tile[aria-posinset='1']").bounding_box()["y"] < 300
    assert "random pairs" in page.locator(".verdict").inner_text()
    assert page.locator(".verdict").evaluate(
        "one => one.scrollWidth <= one.clientWidth && one.scrollHeight <= one.clientHeight"
    ), "the sentence is not cut"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def bytes_until(page: Any, address: str, selector: str) -> tuple[int, int]:
    """Open an address; return the bytes that the network had transferred when the first such image was loaded, and of
    how many requests."""
    done: dict[str, list[tuple[float, int]]] = {}
    clock: list[float] = []
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    network.on("Network.requestWillBeSent", lambda event: clock.append(event["wallTime"] - event["timestamp"]))
    for name in ("responseReceived", "dataReceived"):
        network.on(
            f"Network.{name}",
            lambda event: done.setdefault(event["requestId"], []).append(
                (event["timestamp"], int(event.get("response", event)["encodedDataLength"]))
            ),
        )
    page.add_init_script(
        f"""document.addEventListener('load', event => {{
            if (event.target.matches?.('{selector}')) window.first ??= performance.timeOrigin + performance.now();
        }}, true)"""
    )
    page.goto(address)
    page.wait_for_function("() => window.first")
    end = page.evaluate("window.first") / 1000 - clock[0]
    before = [[size for time, size in parts if time <= end] for parts in done.values()]
    return sum(map(sum, before)), sum(map(bool, before))


def test_modules_are_loaded_at_once_and_kept_for_the_next_visit(explore):
    page = explore()
    of_app = """() => performance.getEntriesByType('resource').filter(one => /app.*[.](js|css)$/.test(one.name))
        .map(one => [one.name, one.transferSize])"""
    named = page.eval_on_selector_all("link[rel=modulepreload], script", "all => all.map(one => one.href || one.src)")
    assert {name for name, _ in page.evaluate(of_app) if name.endswith(".js")} == set(named)
    page.reload()
    page.wait_for_selector(".tile img")
    again = page.evaluate(of_app)
    assert len(again) > 30
    assert {size for _, size in again} == {0}


def test_the_first_image_of_a_large_collection_needs_few_bytes(opened, served):
    """20,000 images with the metadata and the thumbnails of photos."""
    few = served.bench.collection("photos")
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (9, 128, 128, 3), dtype=np.uint8)
    thumbnails = []
    for one in pixels:
        image = Image.fromarray(one).filter(ImageFilter.GaussianBlur(1.2))
        image.save(file := io.BytesIO(), "JPEG", quality=80)
        thumbnails.append(file.getvalue())
    assert min(map(len, thumbnails)) > 4_000
    collection = served.bench.store.create("many", few.spec)
    [model] = few.scroll(limit=1).items
    vectors = rng.standard_normal((20_000, few.spec.dim)).astype(np.float32)
    for start in range(0, 20_000, 5_000):
        collection.upsert(
            [
                Item(
                    f"{k:032x}",
                    vectors[k],
                    {**model.metadata, "path": f"folder{k % 100}/{k}.jpg", "pixel_sha256": rng.bytes(32).hex()},
                    thumbnails[k % 9],
                )
                for k in range(start, start + 5_000)
            ]
        )
    try:
        page = opened("/app/icon.svg", color_scheme="light")  # options give it a context without files of the app
        sent, requests = bytes_until(page, f"{served.url}/#/explore/many", ".tile img")
        assert requests > 20
        assert 100_000 < sent < 450_000
        page.wait_for_function("() => document.querySelector('.verdict').textContent === '20,000 images'")
        page.wait_for_selector(".tile[aria-setsize='20000']")  # the others arrive afterwards
    finally:
        served.bench.drop("many")


def test_a_probe_is_fitted_and_applied_to_the_collection(explore, served):
    page = explore()
    page.get_by_role("button", name="Probe").click()
    page.get_by_role("button", name="Fit").click()
    page.wait_for_selector(".probe table")
    assert "95%" in page.locator(".probe").inner_text()
    shares = page.eval_on_selector_all(".probe meter", "all => all.map(one => one.value)")
    assert shares == sorted(shares)  # the worst class first
    page.get_by_role("button", name="Apply to the whole collection").click()
    page.wait_for_selector(".message:has-text('confidence_label')")
    assert page.locator("[data-facet=predicted_label] .facet").count() >= 2
    collection = served.bench.collection("photos")
    items = [item for items in collection.read_all() for item in items]
    predicted = served.bench.predict("photos-label", collection="photos", ids=[item.id for item in items])
    for item, labeling in zip(items, predicted, strict=True):
        assert item.metadata["predicted_label"] == labeling.label
        assert abs(item.metadata["confidence_label"] - labeling.top[0][1]) < 0.001


def test_sure_predictions_become_the_labels_of_images_without_one(explore, served):
    collection = served.bench.collection("photos")
    before = collection.get([item.id for items in collection.read_all() for item in items])
    hidden = [item.id for item in before[::4]]
    collection.update_metadata({"label": None}, ids=hidden)
    try:
        page = explore()

        def half_sure(route: Any) -> None:
            """A random encoder is never sure; what is of no class has a most probable one, too."""
            answer = route.fetch()
            results = answer.json()["results"]
            for place, one in enumerate(results):
                one["top"][0]["probability"] = 0.9 if place % 4 == 0 else 0.89
                if place % 8 == 4:
                    one["label"] = None
            route.fulfill(response=answer, json={"results": results})

        page.route("**/predict", half_sure)
        page.get_by_role("button", name="Probe").click()
        page.get_by_role("button", name="Fit").click()
        page.get_by_role("button", name="Label those that are sure").click()
        page.wait_for_selector(".message:has-text('labeled by the probe')")
        items = collection.get([item.id for item in before])
        given = {item.id: item.metadata["label"] for item in items if "label" in item.metadata}
        sure = {
            item.id: item.metadata["predicted_label"]
            for item in items
            if item.id in hidden and item.metadata["confidence_label"] >= 0.9
            if item.metadata["predicted_label"] != "none of these"
        }
        assert 0 < len(sure) < len(hidden)
        assert given == {item.id: item.metadata["label"] for item in before if item.id not in hidden} | sure
        page.keyboard.press("Control+z")
        page.wait_for_selector(".message:has-text('Undone')")
        assert not [item for item in collection.get(hidden) if "label" in item.metadata]
    finally:
        collection.upsert(before)


def lasso(page: Any, share: float) -> None:
    """Choose the left part of the map."""
    box = page.locator(".surface").bounding_box()
    page.get_by_role("button", name="Choose an area").click()
    page.mouse.move(box["x"] + 0.02 * box["width"], box["y"] + 0.02 * box["height"])
    page.mouse.down()
    for x, y in ((0.02, 0.02), (0.02, 0.98), (share, 0.98), (share, 0.02)):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=3)
    page.mouse.up()


def test_the_map_is_made_drawn_and_chosen_from(explore, served):
    page = explore()
    page.get_by_role("button", name="Make the map").click()
    page.wait_for_selector("item-map > .tools:not([hidden])")
    drawn = """() => { const gl = document.querySelector('item-map canvas').getContext('webgl2');
        const pixels = new Uint8Array(4 * gl.drawingBufferWidth * gl.drawingBufferHeight);
        gl.readPixels(0, 0, gl.drawingBufferWidth, gl.drawingBufferHeight, gl.RGBA, gl.UNSIGNED_BYTE, pixels);
        return pixels.some(value => value > 0) }"""
    page.wait_for_function(drawn)
    lasso(page, 0.5)
    page.wait_for_selector(".chip")
    kept = get_inspection(served.bench.store.records, served.bench.collection("photos"))
    x = kept.coordinates[:, 0]
    left = int((x < (x.min() + x.max()) / 2).sum())
    assert abs(int(page.locator(".verdict").inner_text().split()[0]) - left) <= 2


def test_a_search_stays_within_what_is_shown(explore, served):
    """A lasso or a finding of n images has n matches: those that a search among their ids returns."""
    page = explore()
    collection = served.bench.collection("photos")
    inspect_once(served)
    page.reload()
    kept = get_inspection(served.bench.store.records, collection)
    page.wait_for_selector("item-map > .tools:not([hidden])")
    lasso(page, 0.5)
    page.wait_for_selector(".chip")
    chosen = int(page.locator(".verdict").inner_text().split()[0])
    search(page)
    page.locator(".scroller").evaluate("one => one.scrollTo(0, 1e6)")
    page.wait_for_function(
        "n => document.querySelector('.verdict')?.textContent.startsWith(n)", arg=f"{chosen - 1} match"
    )
    page.get_by_role("button", name="Remove the area of the map").click()
    page.wait_for_function(
        "n => document.querySelector('.verdict')?.textContent.startsWith(n)", arg=f"{collection.count() - 1} match"
    )

    largest = kept.findings["clusters"][0]["items"]
    page.goto(f"{served.url}/#/explore/photos?finding=cluster/0&like={largest[0]}")
    page.reload()
    number = f"{len(largest) - 1} match" if len(largest) <= 60 else "60+"
    page.wait_for_function("n => document.querySelector('.verdict')?.textContent.startsWith(n)", arg=number)
    query = SearchQuery([largest[0]], k=60, where={"must": [{"ids": largest}]})
    assert found(page)[:12] == [match.id for match in served.bench.search("photos", query)][:12]


def test_the_toolbar_of_an_image_stays_under_the_pointer(explore):
    page = explore()
    page.locator(".tile[aria-posinset='2']").hover()
    more = page.locator(".actions button[aria-label='More like this']")
    more.click()
    found(page)
    more.click(timeout=5000)  # it is of the image that came there
    page.wait_for_function("() => document.querySelectorAll('.example').length === 2")


def test_the_map_and_the_grid_are_near_for_the_keyboard(explore, served):
    inspect_once(served)
    page = explore()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.matches('.sheet')")
    # Chromium reports about one in ten file choosers to nobody, on a bare page, too
    page.evaluate("document.querySelector('query-bar input[type=file]').onclick = () => { window.chosen = true; }")
    page.keyboard.press("/")
    assert page.evaluate("window.chosen")
    page.wait_for_selector("item-map > .tools:not([hidden])")
    page.locator(".surface").focus()
    for key in ("+", "ArrowLeft", "ArrowUp", "-", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    page.wait_for_selector("img.preview:not([hidden])")
    page.keyboard.press("Enter")
    found(page)
    page.locator(".sheet").focus()
    page.keyboard.press("?")
    page.wait_for_selector("dialog:modal .keys")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog:modal .keys", state="detached")


def test_a_busy_server_is_reported_while_the_page_waits(explore):
    page = explore(allowed=("429",))
    answers: list[Any] = []

    def busy(route: Any) -> None:
        answers.append(route)
        route.fulfill(status=429, headers={"Retry-After": "1"}, json={}) if len(answers) < 3 else route.continue_()

    page.route("**/search", busy)
    page.locator(".sheet").focus()
    page.keyboard.press("s")
    page.locator("#connection:has-text('busy')").wait_for()
    found(page)
    assert page.locator("#connection").is_hidden()


def test_a_page_waits_for_a_server_that_starts(opened, served):
    """Its first answers are the refusals of a server that still loads its encoder."""
    page = opened("/app/icon.svg", allowed=("503",))
    refused = {"code": "not_ready", "detail": "The server is starting.", "status": 503}
    answers = iter([refused] * 2)

    def answer(route: Any) -> None:
        body = next(answers, None)
        route.continue_() if body is None else route.fulfill(status=503, json=body)

    page.route("**/api/v1/collections", answer)
    page.goto(f"{served.url}/#/explore/photos")
    page.wait_for_selector(".tile img")
    assert not page.locator(".message.error").count()


def test_what_keys_act_on_is_named(explore):
    page = explore()
    page.locator(".sheet").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    assert "1 selected image" in page.locator(".center label-keys .note").inner_text()
    icons = page.locator("selection-bar .button:has-text('(') path")
    assert len({path.get_attribute("d") for path in icons.all()}) == 2


def test_groups_follow_the_images_and_those_without_a_value_are_last(explore, served):
    page = explore()
    collection = served.bench.collection("photos")
    last = ids(page)[6]
    collection.update_metadata({"series": "one"}, ids=[last])
    try:
        page.goto(f"{served.url}/#/explore/photos?group=series")
        page.reload()
        page.wait_for_selector(".heading")
        assert page.locator(".heading").all_inner_texts() == ["series: one", "series: none"]
        assert ids(page)[0] == last
    finally:
        collection.update_metadata({"series": None}, ids=[last])


def test_images_are_copied_and_moved_with_their_vectors(explore, served):
    page = explore(allowed=("422",))
    collection = served.bench.collection("photos")
    shown = ids(page)
    before = collection.get(shown[1:3])
    for action, left in (("copied", 2), ("moved", 0)):
        page.locator(".sheet").focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Space")
        page.keyboard.press("Shift+ArrowRight")
        page.get_by_role("button", name="Copy or move").click()
        if action == "copied":
            page.get_by_label("Name", exact=True).fill("copies")
        else:
            page.locator("dialog[open] select").select_option("copies")
            page.get_by_label("Move: remove them").check()
        page.get_by_role("button", name="Copy", exact=True).click()
        page.wait_for_selector(f".message:has-text('2 images {action} to copies')")
        copies = served.bench.collection("copies").get(shown[1:3])
        assert [(a.metadata, a.thumbnail) for a in copies] == [(b.metadata, b.thumbnail) for b in before]
        assert all((a.vector == b.vector).all() for a, b in zip(copies, before, strict=True))
        assert len(collection.get(shown[1:3])) == left
        page.locator(".sheet").focus()
        page.keyboard.press("Escape")
    page.wait_for_function(f"() => document.querySelector('.verdict').textContent === '{collection.count()} images'")
    collection.upsert(before)
    served.bench.drop("copies")


def test_no_page_shifts_while_it_loads(opened, served):
    inspect_once(served)
    shift = """() => new Promise(done => new PerformanceObserver(list => done(list.getEntries()
        .reduce((sum, one) => sum + (one.hadRecentInput ? 0 : one.value), 0)))
        .observe({type: 'layout-shift', buffered: true}) ?? setTimeout(() => done(0), 500))"""
    for address in ("explore/photos", "insights/photos", "collections", "training", "api"):
        page = opened(path=f"/#/{address}")
        page.wait_for_selector(".tile img[src], .facts, .sample img[src], .page .empty")
        page.wait_for_timeout(700)
        assert page.evaluate(shift) < 0.02, address


def test_nothing_moves_when_a_search_begins(explore):
    page = explore()
    top = page.locator(".sheet").bounding_box()["y"]
    search(page)
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("-")
    page.wait_for_selector(".example.negative")
    page.keyboard.press("Space")
    page.wait_for_selector("selection-bar:not([hidden])")
    assert page.locator(".sheet").bounding_box()["y"] == top


def test_the_heading_of_the_first_group_is_on_the_screen(explore):
    page = explore()
    top = page.locator(".tile[aria-posinset='1']").bounding_box()["y"]
    option(page, "Group by").select_option("label")
    page.wait_for_selector(".heading")
    assert page.locator(".heading").first.bounding_box()["y"] == pytest.approx(top, abs=4)


def test_facets_have_a_text_box_a_range_and_images_without_a_value(explore, served):
    page = explore()
    collection = served.bench.collection("photos")
    all_ids = [item.id for items in collection.read_all() for item in items]
    before = collection.get(all_ids)
    values = {id: {"kind": f"kind {i % 20:02}", "weight": i / 7} for i, id in enumerate(all_ids[:50])}
    values |= {id: values.get(id, {}) | {"predicted_label": "cat"} for id in all_ids}
    collection.update_each(values)
    try:
        page.reload()
        kind, found_by = page.locator("[data-facet=kind]"), page.locator("[aria-label='Found by this program']")
        kind.locator("input").fill("kind 13")
        assert kind.locator(".value").all_inner_texts() == ["kind 13"]
        kind.locator("input").fill("")
        kind.get_by_role("button", name="none").click()
        page.wait_for_function(
            f"() => document.querySelector('.verdict')?.textContent.startsWith('{len(all_ids) - 50} ')"
        )
        assert page.locator(".chip").inner_text().startswith("kind: none")
        assert len(search(page)) == len(all_ids) - 50 - 1
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Remove the filter on kind").click()
        wrong = sum(item.metadata["label"] != "cat" for item in before)
        found_by.get_by_role("button", name="differs from label").click()
        page.wait_for_function(f"() => document.querySelector('.verdict')?.textContent.startsWith('{wrong} ')")
        address = page.evaluate("location.hash")
        page.get_by_role("button", name="Remove the filter on predicted_label").click()
        page.get_by_label("weight, from").fill("5")
        page.get_by_label("weight, from").press("Tab")
        page.wait_for_function("() => document.querySelector('.verdict').textContent.startsWith('15 ')")
        kind.locator("summary").click()
        kind.locator("ul").wait_for(state="hidden")
        page.goto(page.url.split("#")[0] + address)
        page.reload()
        page.wait_for_function(f"() => document.querySelector('.verdict')?.textContent.startsWith('{wrong} ')")
        kind.locator("ul").wait_for(state="hidden")  # it stays folded
    finally:
        collection.upsert(before)


def test_the_legend_of_the_map_hides_and_isolates(explore, served):
    page = explore()
    collection = served.bench.collection("photos")
    inspect_once(served)
    page.reload()
    legend = page.locator(".legend")
    legend.get_by_role("button").first.wait_for()
    colors = page.eval_on_selector_all(".legend .swatch", "all => all.map(one => one.style.background)")
    assert len(set(colors)) == len(colors)
    drawn = """() => { const map = document.querySelector('item-map'), count = {};
        map._color();
        const seen = map.scatter.gl, data = new Uint8Array(4 * map.rows.length);
        seen.bindBuffer(seen.ARRAY_BUFFER, map.scatter.buffers[1]);
        seen.getBufferSubData(seen.ARRAY_BUFFER, 0, data);
        return [...map.rows].filter((_, i) => data[4 * i + 3] > 100).length }"""
    number = page.evaluate(drawn)
    cats = collection.count({"must": [{"key": "label", "match": "cat"}]})
    legend.get_by_role("button", name="cat").click()
    assert page.evaluate(drawn) == number - cats
    legend.get_by_role("button", name="cat").click()
    legend.get_by_role("button", name="cat").dblclick()
    assert page.evaluate(drawn) == cats
    legend.get_by_role("button", name="cat").dblclick()
    assert page.evaluate(drawn) == number


def test_swagger_sends_a_request_and_shows_its_curl_command(opened, served):
    """/docs without another host, within its policy."""
    page = opened("/docs", viewport={"width": 700, "height": 400})  # it draws slowly
    page.wait_for_selector(".opblock")
    assert page.locator(".opblock").count() > 50
    operation = page.locator("[id*=healthz]").first
    operation.locator("button").first.click()
    operation.get_by_text("Try it out").click()
    operation.get_by_text("Execute", exact=True).click()
    assert f"'{served.url}/healthz'" in operation.locator(".curl").first.inner_text()
    assert '"status": "ok"' in operation.locator(".live-responses-table").inner_text()
