"""API keys: their forms, invalid keys, and that no error message contains a secret."""

import hashlib

import pytest
from pydantic import SecretStr

from nnclr_hub.errors import InvalidRequest
from serving.keys import Keys

SECRET = "b3RoZXIga2V5cyBhcmUg"


def secrets(*texts: str) -> tuple[SecretStr, ...]:
    return tuple(map(SecretStr, texts))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (SECRET, "read-1"),
        (f"phone:{SECRET}", "phone"),
        (f"sha256:{hashlib.sha256(SECRET.encode()).hexdigest()}", "read-1"),
        (f"phone:sha256:{hashlib.sha256(SECRET.encode()).hexdigest().upper()}", "phone"),
    ],
)
def test_a_key_is_found_in_each_form(text, name):
    key = Keys(secrets(text)).find(SECRET)
    assert key is not None
    assert (key.name, key.scopes) == (name, ("read",))
    for wrong in ("", SECRET[:-1], SECRET + "x", text if text != SECRET else "x", "ключ", "\udcff"):
        assert Keys(secrets(text)).find(wrong) is None


def test_the_hash_is_not_accepted_as_the_key():
    """Someone who reads the environment cannot use a hash."""
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    keys = Keys(secrets(f"sha256:{digest}"))
    assert keys.find(digest) is None
    assert keys.find(f"sha256:{digest}") is None


def test_a_key_for_both_scopes_may_write():
    for keys in (Keys(secrets(SECRET), secrets(SECRET)), Keys((), secrets(f"ci:{SECRET}"))):
        key = keys.find(SECRET)
        assert key is not None
        assert key.scopes == ("read", "write")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("short", "too easy"),
        ("ci:short", "too easy"),
        ("a" * 40, "too easy"),
        ("", "too easy"),
        ("sha256:1234", "64 hexadecimal digits"),
        (f"my key:{SECRET}", "name"),
        (f":{SECRET}", "name"),
        (f"ci:{SECRET} x", "space"),
        (f"ci:{SECRET}\n", "space"),
        (f"ci:{SECRET}é", "ASCII"),
    ],
)
def test_an_invalid_key_is_refused_without_being_shown(text, part):
    with pytest.raises(InvalidRequest, match=part) as caught:
        Keys(secrets(text))
    assert SECRET not in str(caught.value)


def test_a_keys_file(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# ours\nread phone:{SECRET}  # of the app\n\nwrite ci:{SECRET[::-1]}\n")
    keys = Keys(file=file)
    assert len(keys) == 2
    writer = keys.find(SECRET[::-1])
    assert writer is not None
    assert writer.name == "ci"
    for text, part in (("", "no keys"), (f"admin {SECRET}", "Line 1"), (f"{SECRET}\n", "Line 1")):
        file.write_text(text)
        with pytest.raises(InvalidRequest, match=part) as caught:
            Keys(file=file)
        assert SECRET not in str(caught.value)
    with pytest.raises(InvalidRequest):
        Keys(file=tmp_path / "missing")
