"""Forms, compared with those that httpx writes."""

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.multipart import MAX_PARTS, MalformedForm, parse_form

KIND = "multipart/form-data; boundary=bound"
names = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters='"\\'), min_size=1, max_size=20
)
data = st.binary(max_size=200) | st.sampled_from([b"", b"\r\n", b"--bound", b"\r\n--", b"\r\n--boun", b"\r\n\r\n--x"])


@settings(max_examples=40)
@given(st.lists(st.tuples(names, st.none() | names, data), min_size=1, max_size=5), st.integers(0, 10_000))
def test_forms_are_read_as_they_were_written(fields, cut):
    files = [(name, (filename, content)) for name, filename, content in fields]
    request = httpx.Request("POST", "http://x", files=files, headers={"Content-Type": KIND})
    body = request.read()
    assert [tuple(part) for part in parse_form(KIND, [body[:cut], body[cut:]])] == fields
    with pytest.raises(MalformedForm):
        parse_form(KIND, [body[: min(cut, len(body) - 4)]])  # without the last "--"
    assert len(parse_form('multipart/form-data; boundary="bound"', [body])) == len(fields)  # as .NET writes it
    assert len(parse_form(KIND, [b"\r\n" + body + b"what follows is ignored"])) == len(fields)
    assert len(parse_form(KIND, [b"This is a multi-part message --bound.\r\n\r\n" + body])) == len(fields)


@given(st.binary(max_size=300))
def test_other_bytes_are_refused(noise):
    head = b'Content-Disposition: form-data; name="a"\r\n\r\n'
    for body in (noise, b"--bound" + noise, b"--bound\r\n" + noise, b"--bound\r\n" + head + noise):
        if b"--bound--" not in body:
            with pytest.raises(MalformedForm):
                parse_form(KIND, [body])


def test_parts_and_headers_are_limited():
    part = b'--bound\r\nContent-Disposition: form-data; name="a"%s\r\n\r\nx\r\n'
    assert len(parse_form(KIND, [part % b"" * MAX_PARTS + b"--bound--"])) == MAX_PARTS
    for body in (part % b"" * (MAX_PARTS + 1) + b"--bound--", part % (b"\r\nX: y" * 3000) + b"--bound--"):
        with pytest.raises(MalformedForm):
            parse_form(KIND, [body])
    with pytest.raises(MalformedForm):
        parse_form("multipart/form-data", [part % b"" + b"--bound--"])


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        (b"filename*=utf-8''%D1%84%D0%B0.jpg", "фа.jpg"),
        (b"filename*=UTF-8'ru'%D1%84%D0%B0.jpg; filename=x.jpg", "фа.jpg"),
        (b"filename=\"x.jpg\"; FileName* = utf-8''a%20b%3B%22.jpg", 'a b;".jpg'),
        (b"filename*=iso-8859-1''%e9t%E9.jpg", "été.jpg"),
        (b"filename=\"=?utf-8?B?0YTQsC5qcGc=?=\"; filename*=utf-8''%D1%84%D0%B0.jpg", "фа.jpg"),
        (b'filename="=?utf-8?B?0YTQsC5qcGc=?="', "фа.jpg"),
        (b'filename="=?utf-8?Q?=C3=A9_1.jpg?="', "é 1.jpg"),
        (b'filename="=?x.jpg"', "=?x.jpg"),
        (b'filename="=?none?B?eA==?="', "=?none?B?eA==?="),
        (b"filename=\"a; filename*=utf-8''b.jpg\"", "a; filename*=utf-8''b.jpg"),
        (b"filename=\"x.jpg\"; filename*=none''y.jpg", "x.jpg"),
        (b"filename=\"x.jpg\"; filename*=utf-8''%ff.jpg", "x.jpg"),
        (b"filename=\"\"; filename*=utf-8''", ""),
    ],
)
def test_names_of_files_as_clients_write_them(disposition, filename):
    body = b'--bound\r\nContent-Disposition: form-data; name="f"; ' + disposition + b"\r\n\r\nx\r\n--bound--\r\n"
    assert [tuple(part) for part in parse_form(KIND, [body])] == [("f", filename, b"x")]


@pytest.mark.parametrize(
    "disposition", [b"filename*=none''x", b"filename*=x.jpg", b"filename*0*=utf-8''x; filename*1*=y", b'filename*0="x"']
)
def test_a_name_of_a_file_that_cannot_be_decoded_is_refused(disposition):
    """It is not the name of a text field."""
    body = b"--bound\r\nContent-Disposition: form-data; name=f; " + disposition + b"\r\n\r\nx\r\n--bound--\r\n"
    with pytest.raises(MalformedForm):
        parse_form(KIND, [body])
    part = body.replace(b"name=f;", b'name=f; filename="plain.jpg";')
    assert parse_form(KIND, [part])[0].filename == "plain.jpg"
