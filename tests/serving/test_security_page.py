"""docs/security.md lists every security setting with its default."""

import json
from pathlib import Path

from serving.settings import Settings

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
FIELDS = (
    *(
        "host",
        "api_keys",
        "write_keys",
        "keys_file",
        "allowed_hosts",
        "cors_origins",
        "trusted_proxies",
    ),
    *("session_hours", "max_bytes", "max_images", "body_idle_s", "body_s"),
    *("bodies_bytes", "connections"),
    *("allow_urls", "url_domains", "url_ports", "url_s"),
)


def test_every_setting_is_in_the_table_with_its_default():
    rows = [line for line in PAGE.splitlines() if line.startswith("| `NNCLR_")]
    for field in FIELDS:
        row = next(row for row in rows if f"`NNCLR_{field.upper()}`" in row.split("|")[1])
        default = Settings.model_fields[field].default
        if isinstance(default, float | int) and not isinstance(default, bool):
            assert f"{default:g}" in row.replace("512000000", "5.12e+08").replace("20000000", "2e+07"), row
        elif isinstance(default, tuple) and default:
            assert json.dumps(list(default)) in row, row
        elif isinstance(default, str):
            assert f"`{default}`" in row, row
        else:
            assert "none" in row or "off" in row or "any" in row, row


def test_every_variable_on_the_page_is_a_setting():
    named = {word.strip("`'=,.;:[]1\"").lower() for word in PAGE.replace("=", " ").split() if "NNCLR_" in word}
    named = {word.removeprefix("nnclr_") for word in named if word.startswith("nnclr_") and word != "nnclr_"}
    assert named <= Settings.model_fields.keys(), named - Settings.model_fields.keys()
    assert len(named) > 15
