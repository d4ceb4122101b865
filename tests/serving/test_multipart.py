"""Forms that mean ill, sent to a real server; afterwards it must be well."""

import httpx
import pytest

pytestmark = pytest.mark.usefixtures("well_afterwards")

PART = b'--b\r\nContent-Disposition: form-data; name="%s"; filename="x.jpg"\r\n\r\nx\r\n'
FIELD = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\nx\r\n'


@pytest.mark.parametrize("part", [PART, FIELD])
@pytest.mark.parametrize("count", [65, 999, 20_000])
@pytest.mark.parametrize("path", ["/api/v1/embed", "/api/v1/collections/c/items", "/api/v1/collections/c/search"])
def test_thousands_of_parts_are_refused(strict, part, count, path):
    body = b"".join(part % b"files" for _ in range(count)) + b"--b--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    answer = httpx.post(strict.url + path, content=body, headers=headers, timeout=120)
    assert answer.status_code in (400, 413, 422)
    assert answer.json()["code"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b\r\nContent-Disp",
        b"--b--",
        b"--b\r\n\r\n\r\n--b--\r\n",
        b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="files"; filename="'
        + b"a" * 500_000
        + b'"\r\n\r\nx\r\n--b--\r\n',
        b'--b\r\nContent-Disposition: form-data; name="m"\r\n\r\n' + b"x" * 1_900_000 + b"\r\n--b--\r\n",
        b"--b\r\n" + b"X: y\r\n" * 100_000 + b"\r\n\r\n--b--\r\n",
        b"garbage" * 1000,
    ],
)
def test_a_broken_form_is_refused(strict, body):
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    assert httpx.post(f"{strict.url}/api/v1/embed", content=body, headers=headers).status_code in (400, 413, 422)


def test_a_form_that_breaks_off_is_refused_whole(strict):
    """Wherever it does; with its last boundary the same form is taken."""
    item = b'--b\r\nContent-Disposition: form-data; name="files"; filename="%s"\r\n\r\nx\r\n'
    whole = item % b"one.jpg" + item % b"two.jpg" + b"--b--"
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    for end in range(1, len(whole), 7):
        answer = httpx.post(f"{strict.url}/api/v1/embed", content=whole[:end], headers=headers)
        assert answer.status_code == 400, whole[:end]
    assert "breaks off before its last boundary" in answer.json()["detail"]
    answer = httpx.post(f"{strict.url}/api/v1/embed", content=whole, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "undecodable_image")  # they are no images
