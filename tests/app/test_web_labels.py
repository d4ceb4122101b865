"""Labels in the web app: what the keys 1 to 9 give, what undo restores, what a double click opens, and deletions."""

import json
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from explore_actions import ids, option, search

pytestmark = pytest.mark.browser


@pytest.fixture
def collection(served):
    """The collection, whose items are put back after the test."""
    photos = served.bench.collection("photos")
    before = [item for items in photos.read_all() for item in items]
    before = photos.get([item.id for item in before])
    yield photos
    photos.upsert(before)


@pytest.fixture
def labeling(explore, collection) -> Callable[..., Any]:
    """Return labeling(field, values), which opens the collection, whose images have these values and no others."""

    def open_labeling(field: str, values: dict[str, Any], **context: Any) -> Any:
        page = explore(**context)
        shown = ids(page)
        collection.update_each({shown[int(place)]: nested(field, value) for place, value in values.items()})
        label_field(page, field)
        reload(page)
        return page

    return open_labeling


def label_field(page: Any, field: str) -> None:
    """Set the metadata key that is labeled, without labels of the keys 1 to 9."""
    answer = page.request.put(
        f"{page.url.split('#')[0]}api/v1/collections/photos/label-keys", data={"field": field, "labels": []}
    )
    assert answer.ok, answer.text()


def reload(page: Any) -> None:
    page.reload()
    page.wait_for_selector(".tile img")
    page.wait_for_selector("label-keys button")


def nested(field: str, value: Any) -> dict[str, Any]:
    first, _, rest = field.partition(".")
    return {first: {rest: value} if rest else value}


def read(collection: Any, id: str, field: str) -> Any:
    """Return the value of a field, and fail if the item has it as a flat key, too."""
    [item] = collection.get([id])
    first, _, rest = field.partition(".")
    assert not rest or field not in item.metadata
    value = item.metadata.get(first)
    return value.get(rest) if rest and value else value


def legend(page: Any) -> list[str]:
    return page.locator(".center label-keys button").all_text_contents()


def focus(page: Any, place: int) -> None:
    page.locator(".sheet").focus()
    page.keyboard.press("Home")
    for _ in range(place):
        page.keyboard.press("ArrowRight")


def give(page: Any, place: int, label: str) -> None:
    """Label an image in the dialog."""
    focus(page, place)
    page.keyboard.press("l")
    page.get_by_role("combobox", name="Label", exact=True).fill(label)
    with page.expect_response("**/items"):
        page.locator("dialog[open]").get_by_role("button", name="Label", exact=True).click()


def choose_table(page: Any, table: Any) -> None:
    page.keyboard.press("l")
    page.get_by_text("Another metadata key, or labels from a table").click()
    page.set_input_files("dialog[open] input[type=file]", table)


def write_labels(page: Any) -> None:
    """Write the labels of the table in the dialog."""
    with page.expect_response("**/items"):
        page.get_by_role("button", name="Write the labels").click()


def key(page: Any, label: str) -> str:
    return next(name for name in legend(page) if name.endswith(label))[0]


def press(page: Any, place: int, key: str) -> None:
    focus(page, place)
    with page.expect_response("**/items"):
        page.keyboard.press(key)


def undo(page: Any, text: str = "Undone") -> str:
    page.evaluate("document.querySelectorAll('.message').forEach(one => one.remove())")
    page.keyboard.press("Control+z")
    message = page.locator(f".message:has-text('{text}')")
    message.wait_for()
    return message.inner_text()


@pytest.mark.parametrize(
    ("field", "common", "rare", "new"),
    [
        ("klass", 3, 7, 11),
        ("checked", True, False, None),
        ("cam.model", "X", "Y", "Z"),
    ],
)
def test_a_key_keeps_its_label_and_the_label_its_type(labeling, collection, field, common, rare, new):
    page = labeling(field, {"0": common, "1": common, "2": rare})
    shown = ids(page)
    as_text = [json.dumps(one).strip('"') for one in (common, rare, new)]
    keys = [f"1 {as_text[0]}", f"2 {as_text[1]}"]
    assert legend(page) == keys
    for place in range(3, 6):
        press(page, place, "2")
    assert [read(collection, id, field) for id in shown[3:6]] == [rare] * 3
    assert legend(page) == keys
    if new is not None:
        give(page, 9, as_text[2])
        give(page, 10, as_text[0])
        keys.append(f"3 {as_text[2]}")
        assert [read(collection, id, field) for id in shown[9:11]] == [new, common]
    reload(page)
    assert legend(page) == keys
    press(page, 5, "1")
    assert read(collection, shown[5], field) is common or read(collection, shown[5], field) == common
    assert type(read(collection, shown[5], field)) is type(common)
    values = page.locator(f"[data-facet='{field}'] .facet:not(.special) .value").all_inner_texts()
    assert len(values) == len(set(values)) == len(keys)


def test_each_change_is_undone_by_keys(labeling, collection, tmp_path):
    page = labeling("thing", {"0": "cat", "1": "dog"})
    shown = ids(page)
    before = {item.id: item.metadata for item in collection.get(shown)}
    press(page, 0, "2")
    press(page, 2, "1")
    press(page, 3, "1")
    table = tmp_path / "labels.csv"
    table.write_text("id,label\n" + "".join(f"{id},{k % 7}\n" for k, id in enumerate(shown)))
    choose_table(page, table)
    write_labels(page)
    assert [item.metadata["thing"] for item in collection.get(shown)] == [str(k % 7) for k in range(len(shown))]
    undo(page)
    assert [read(collection, id, "thing") for id in shown[:5]] == ["dog", "dog", "cat", "cat", None]
    page.get_by_role("link", name="API").click()  # the changes of a page are undone on any other
    page.reload()
    undo(page)
    page.get_by_label("Last changes").click()
    changes = page.locator(".menu:popover-open button")
    assert ["thing dog" in text for text in changes.all_inner_texts()] == [False, True]
    changes.last.click()
    page.locator(".message:has-text('Undone'):has-text('thing dog')").wait_for()
    assert [read(collection, shown[place], "thing") for place in (0, 2)] == ["cat", "cat"]
    undo(page)
    assert {item.id: item.metadata for item in collection.get(shown)} == before
    undo(page, "nothing to undo")
    for place, label in ((2, "cat"), (0, "dog")):  # again, what was undone last first
        with page.expect_response("**/items"):
            page.keyboard.press("Control+Shift+Z")
        assert read(collection, shown[place], "thing") == label
    assert read(collection, shown[3], "thing") is None


def test_labels_are_on_the_tiles_and_the_focus_goes_on(labeling, collection):
    page = labeling("thing", {"0": "cat", "1": "dog"})
    shown = ids(page)
    tags = page.locator(".tile .tag:not(:empty)")
    assert tags.all_inner_texts() == ["cat", "dog"]
    focus(page, 2)
    for _ in range(4):
        with page.expect_response("**/items"):
            page.keyboard.press(key(page, "cat"))
    assert [read(collection, id, "thing") for id in shown[2:7]] == ["cat"] * 4 + [None]
    assert "cat" in page.locator(f"[data-id='{shown[3]}']").get_attribute("aria-label")
    option(page, "A label key goes to the next image").uncheck()
    option(page, "Labels on the images").uncheck()
    page.keyboard.press("Escape")
    assert not tags.first.is_visible()
    focus(page, 6)
    for label in ("dog", "cat"):
        with page.expect_response("**/items"):
            page.keyboard.press(key(page, label))
    assert [read(collection, id, "thing") for id in shown[6:8]] == ["cat", None]


def test_a_table_of_a_spreadsheet_is_read(labeling, collection, tmp_path):
    page = labeling("thing", {"0": 3, "1": 7}, allowed=("422",))
    shown = ids(page)
    paths = {id: f"Küche/{place} ä.png" for place, id in enumerate(shown[:4])}
    collection.update_each({id: {"path": unicodedata.normalize("NFD", path)} for id, path in paths.items()})
    before = {item.id: item.metadata for item in collection.get(shown)}
    rows = [(path.replace("/", "\\"), 7) for path in [*paths.values(), "nowhere.png"]]
    table = tmp_path / "Bilder.csv"
    table.write_bytes("\r\n".join(["Datei;Art", *(f"{path};{label}" for path, label in rows)]).encode("cp1252"))
    focus(page, 0)
    choose_table(page, table)
    status = page.locator("dialog[open] [role=status]")
    status.get_by_text("Datei").wait_for()  # the columns are other ones
    page.get_by_label("Column of ids or paths").fill("Datei")
    page.get_by_label("Column of labels").fill("Art")
    page.get_by_label("Column of labels").press("Tab")
    status.get_by_text("4 images").wait_for()
    assert "1 line of unknown images" in status.inner_text()
    assert {item.id: item.metadata for item in collection.get(shown)} == before, "a preview writes nothing"
    write_labels(page)
    assert [read(collection, id, "thing") for id in shown[:5]] == [7, 7, 7, 7, None]
    undo(page)
    assert {item.id: item.metadata for item in collection.get(shown)} == before


@pytest.mark.parametrize("whole", [True, False])
def test_the_chosen_columns_of_a_table_become_metadata_of_their_type(labeling, collection, tmp_path, whole):
    page = labeling("thing", {"0": "cat"})
    shown = ids(page)
    before = {item.id: item.metadata for item in collection.get(shown)}
    table = tmp_path / "labels.csv"
    table.write_text(
        "id,label,split,age,zip,left\n"
        + "".join(f"{id},dog,{('train', 'test')[k % 2]},{k}.5,0{k},x\n" for k, id in enumerate(shown))
    )
    focus(page, 0)
    choose_table(page, table)
    for column in ("split", "age", "zip"):
        page.get_by_label(f"Write {column} as").set_checked(whole)
    page.get_by_label("Write left as").uncheck()
    page.get_by_label("Type of zip").select_option("number")
    write_labels(page)
    values = [[read(collection, id, column) for column in ("split", "age", "zip", "left")] for id in shown[:2]]
    assert values == ([["train", 0.5, 0, None], ["test", 1.5, 1, None]] if whole else [[None] * 4] * 2)
    if whole:
        page.locator("[data-facet=split] .facet").nth(1).wait_for()
    undo(page)
    assert {item.id: item.metadata for item in collection.get(shown)} == before


def test_a_label_goes_where_filters_read_it(labeling, collection):
    page = labeling("cam.model", {"0": "X", "1": "Y"}, allowed=("422",))
    shown = ids(page)
    collection.update_each({shown[2]: {"cam.model": "Z"}})
    before = {item.id: item.metadata for item in collection.get(shown)}
    reload(page)
    press(page, 2, key(page, "X"))
    press(page, 3, key(page, "X"))
    [flat, nested] = collection.get(shown[2:4])
    assert flat.metadata["cam.model"] == "X"
    assert "cam" not in flat.metadata
    assert nested.metadata["cam"] == {"model": "X"}
    undo(page)
    undo(page)
    assert collection.get(shown[2:3])[0].metadata == before[shown[2]]
    label_field(page, "cam")
    page.reload()
    page.wait_for_selector(".tile img")
    sent = []
    page.on("request", lambda request: sent.append(request) if request.method == "PATCH" else None)
    focus(page, 0)
    page.keyboard.press("l")
    page.get_by_role("combobox", name="Label", exact=True).fill("Q")
    page.keyboard.press("Enter")
    page.locator(".message.error:has-text('cam.model')").wait_for()
    assert len(sent) == 1
    assert collection.get(shown[:1])[0].metadata == before[shown[0]]


def test_undo_and_redo_keep_what_another_tab_wrote(labeling, explore, collection):
    one = labeling("thing", {"0": "cat", "1": "dog", "2": "bird"}, allowed=("409",))
    two = explore(allowed=("409",))
    reload(two)
    id = ids(one)[4]
    press(one, 4, key(one, "dog"))
    press(two, 4, key(two, "bird"))
    two.wait_for_selector(".message:has-text('thing dog')")  # it replaces a value that this tab does not show
    assert read(collection, id, "thing") == "bird"
    undo(two)
    assert read(collection, id, "thing") == "dog"
    press(two, 4, key(two, "bird"))
    two.wait_for_selector(".message:has-text('thing bird')")
    press(one, 4, key(one, "cat"))
    one.wait_for_selector(".message:has-text('thing bird')")
    assert "thing cat" in undo(two, "Not undone")
    assert read(collection, id, "thing") == "cat"
    press(two, 5, key(two, "bird"))  # the same for what is done again
    undo(two)
    press(one, 5, key(one, "cat"))
    one.wait_for_selector(".message:has-text('cat')")
    two.keyboard.press("Control+Shift+Z")
    two.wait_for_selector(".message:has-text('Not done again'):has-text('thing cat')")
    assert read(collection, ids(one)[5], "thing") == "cat"


def test_labels_that_were_not_sent_hold_the_page(labeling, collection):
    page = labeling("thing", {"0": "cat"})
    shown = ids(page)
    held: list[Any] = []
    page.route("**/items", lambda route: held.append(route) if route.request.method == "PATCH" else route.continue_())
    focus(page, 1)
    with page.expect_request("**/items"):
        page.keyboard.press("1")
    page.keyboard.press("1")
    with page.expect_event("dialog") as asked:
        page.evaluate("() => void setTimeout(() => location.reload())")
    assert asked.value.type == "beforeunload"
    asked.value.dismiss()
    page.route("**/items", lambda route: route.continue_())
    held[0].continue_()
    page.wait_for_selector(f"[data-id='{shown[2]}'] .tag:not(:empty)")
    assert [read(collection, id, "thing") for id in shown[:4]] == ["cat", "cat", "cat", None]
    page.reload()  # without a dialog, which would fail the test
    page.wait_for_selector(".tile img")


def test_a_message_counts_what_the_server_wrote(labeling, collection):
    page = labeling("thing", {"0": "cat"})
    shown, number = ids(page), collection.count()
    collection.delete([shown[1]])
    press(page, 1, "1")
    message = page.locator(".message.error:has-text('Nothing was written')")
    message.wait_for()
    assert message.get_by_role("button", name="Undo").count() == 0
    page.wait_for_selector(f"[data-id='{shown[1]}']", state="detached")
    collection.delete([shown[2]])
    focus(page, 0)
    page.keyboard.press("Control+a")
    page.keyboard.press("1")
    page.locator(f".message:has-text('{number - 2} images: thing cat. 1 image was deleted')").wait_for()
    collection.delete([shown[3]])
    undo(page)
    page.wait_for_selector(f"[data-id='{shown[3]}']", state="detached")
    assert [read(collection, id, "thing") for id in (shown[0], shown[4])] == ["cat", None]
    collection.delete([shown[4]])
    page.keyboard.press("Delete")
    page.locator("dialog[open] .danger").click()
    page.locator(f".message:has-text('{number - 4} images deleted. 1 image was')").wait_for()
    assert collection.count() == 0
    page.locator(".empty:has-text('This collection is empty')").wait_for()


def test_a_tab_shows_what_others_wrote_when_it_gets_the_focus(labeling, collection):
    page = labeling("thing", {"0": "cat"})
    shown, number = ids(page), collection.count()
    [item] = collection.get([shown[3]])
    for new in ({shown[1]: {"thing": "zebra"}}, {shown[1]: {"thing": "lynx"}}):
        collection.update_each(new)
        collection.delete([shown[2]])
        collection.upsert([type(item)(f"another-{len(new)}", item.vector, {"thing": "owl"}, item.thumbnail)])
        page.evaluate("dispatchEvent(new Event('focus'))")
        page.locator(f"[data-id='{shown[1]}'] .tag:text-is('{new[shown[1]]['thing']}')").wait_for()
        page.wait_for_selector(f"[data-id='{shown[2]}']", state="detached")
        page.wait_for_function(f"() => document.querySelector('.verdict').textContent === '{number} images'")
    collection.upsert([type(item)(shown[2], item.vector, item.metadata, item.thumbnail)])
    page.evaluate("dispatchEvent(new Event('focus'))")
    page.wait_for_selector(f"[data-id='{shown[2]}']")
    collection.delete(["another-1"])


def test_a_double_click_opens_the_image_under_its_first_click(explore):
    """Also on a slow machine, and without the map, where the first click puts a panel over images at the right."""
    page = explore()
    slow = page.context.new_cdp_session(page)
    for start in ("browsing", "results", "no map"):
        if start == "results":
            search(page, 1)
        if start == "no map":
            page.get_by_role("button", name="Map", exact=True).click()
            slow.send("Emulation.setCPUThrottlingRate", {"rate": 4})
        for place, wait in ((2, 60), (7, 220), (4, 350)):
            tile = page.locator(f".tile[aria-posinset='{place}']")
            id, box = tile.get_attribute("data-id"), tile.bounding_box()
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)  # not on the toolbar
            for clicks in (1, 2):
                page.mouse.down(click_count=clicks)
                page.mouse.up(click_count=clicks)
                page.wait_for_timeout(wait)
            page.wait_for_selector("dialog.viewer:modal")
            assert f"open={id}" in page.url
            page.keyboard.press("Escape")
            page.wait_for_function("() => !document.querySelector('dialog.viewer[open]')")
    slow.detach()


@pytest.mark.parametrize("number", [1, 12])
def test_a_deletion_asks_and_is_true_at_once(explore, collection, number):
    page = explore()
    before, shown = collection.count(), ids(page)
    page.locator(".sheet").focus()
    page.keyboard.press("Home")
    if number == 1:
        page.keyboard.press("ArrowRight")
    else:
        page.locator(".tile .box").nth(1).click(force=True)
        page.locator(".tile").nth(number).click(modifiers=["Shift"])
    chosen = shown[1 : number + 1]
    for answer in ("Keep", "Delete"):
        assert len(collection.get(chosen)) == number
        page.locator(".sheet").focus()
        page.keyboard.press("Delete")
        dialog = page.locator("dialog[open]")
        assert f"Delete {number} image" in dialog.locator("h2").inner_text()
        dialog.get_by_role("button", name=answer).last.click()
        page.wait_for_selector("dialog[open]", state="detached")
    page.wait_for_selector(".message:has-text('deleted')")
    assert collection.get(chosen) == []
    for _ in range(2):
        page.wait_for_function(f"() => document.querySelector('.verdict').textContent === '{before - number} images'")
        chosen_option = f"[aria-label=Collection] option:checked:has-text('({before - number})')"
        page.wait_for_selector(chosen_option, state="attached")
        page.reload()
        page.wait_for_selector(".tile img")


def test_a_label_keeps_its_key_before_an_image_has_it(labeling, collection):
    page = labeling("planned", {"0": "cat"})
    focus(page, 0)
    page.keyboard.press("l")
    page.get_by_text("Labels of the keys 1 to 9").click()
    page.locator(".key-inputs input").nth(4).fill("owl")
    page.keyboard.press("Tab")
    page.wait_for_function("document.querySelector('label-keys').textContent.includes('owl')")
    page.keyboard.press("Escape")
    reload(page)
    assert legend(page) == ["1 cat", "5 owl"]
    press(page, 3, "5")
    assert read(collection, ids(page)[3], "planned") == "owl"
