"""Messages to clients contain no paths of the server."""

import pytest

from nnclr_hub.workbench.privacy import public_name, without_paths


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("/home/me/models/mine is not a folder.", "mine is not a folder."),
        ("local-dir:/etc/mine is damaged.", "mine is damaged."),
        (
            "[Errno 2] No such file or directory: '/tmp/x/catalog.sqlite'",
            "[Errno 2] No such file or directory: 'catalog.sqlite'",
        ),
        ('see file:///usr/lib/a.so, (/var/lib/b), "/opt/c d"', 'see a.so, (b), "c d"'),
        ("See /tmp/x.", "See x."),
        ("name it: --model python:/home/ann/private/mine.py:tower.", "name it: --model python:mine.py:tower."),
        ("python:/Users/ann/mine.py:tower+color is unavailable", "python:mine.py:tower+color is unavailable"),
        ("PATH=/usr/bin:/usr/lib/x", "PATH=bin:x"),
        ("POST /api/v1/embed: Missing boundary.", "POST /api/v1/embed: Missing boundary."),
        ("https://example.com/usr/lib is not a key; 1/2 and/or hf-hub:org/usr", None),
        ("a" * 100_000 + "/" * 100_000, None),
    ],
)
def test_paths_are_shortened_to_their_last_name(sentence, expected):
    assert without_paths(sentence) == (sentence if expected is None else expected)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("nnclr_resnet18_free_starter", "nnclr_resnet18_free_starter"),
        ("/srv/models/mine", "mine"),
        ("./mine", "mine"),
        ("https://host/mine-01234567.safetensors?signature=1", "https://host/mine-01234567.safetensors"),
        ("local-dir:/srv/models/mine", "mine"),
        ("file:///srv/models/mine/", "mine"),
        ("hf-hub:org/repo@1234", "hf-hub:org/repo@1234"),
        ("timm:resnet50.a1_in1k", "timm:resnet50.a1_in1k"),
        ("random:resnet50@0", "random:resnet50@0"),
        ("random:/srv/models/mine@3", "random:mine@3"),
        ("python:/srv/models/mine.py:tower", "python:mine.py:tower"),
        ("python:mine.py:tower+color", "python:mine.py:tower+color"),
        ("", ""),
    ],
)
def test_clients_see_the_name_of_a_source(source, name):
    assert public_name(source) == name
