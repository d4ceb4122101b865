"""Dockerfile and compose.yaml: everything that they name exists. The tests do not build the image."""

import configparser
import json
import os
import re
import shlex
import stat
import tomllib
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from nnclr_hub.cli.app import app
from serving.keys import create_keys_file
from serving.run import GRACE_S
from serving.settings import Settings

ROOT = Path(__file__).parents[1]
# settings of the programs in the image, and of the shell
OTHERS = {"PATH", "PYTHONUNBUFFERED", "HF_HOME", "NNCLR_CACHE", "NNCLR_MODEL", "NNCLR_STORE"}


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, without comments and with continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]  # type: ignore[misc]


def all_of(name: str) -> list[str]:
    return [rest for word, rest in instructions() if word == name]


def compose() -> dict:
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def extras() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def arguments() -> dict[str, str]:
    """Return the build arguments with their defaults."""
    return {name: value.strip('"') for name, _, value in (one.partition("=") for one in all_of("ARG"))}


def command() -> list[str]:
    return [*json.loads(all_of("ENTRYPOINT")[0]), *json.loads(all_of("CMD")[0])]


def parse(words: list[str]) -> dict:
    """Parse a command with our command line; fail on an unknown verb or flag."""
    assert words[0] == "nnclr"
    root = typer.main.get_command(app)
    verb = root.commands[words[1]]
    return verb.make_context(words[1], words[2:], resilient_parsing=False).params


def test_every_copied_file_exists_and_is_not_ignored():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [one.split() for one in all_of("COPY") if not one.startswith("--")]
    assert copied
    for *sources, _ in copied:
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source.split("/")[0] in allowed, source
    assert allowed == {source.split("/")[0] for *sources, _ in copied for source in sources}


def test_the_files_of_the_wheel_are_copied():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = {source for one in all_of("COPY") if not one.startswith("--") for source in one.split()[:-1]}
    assert {*wheel["only-include"], *(path.split("/")[0] for path in wheel["force-include"])} <= copied
    assert {"README.md", "LICENSE"} <= copied  # the project's description names them


def test_copies_between_stages_exist():
    stages = [match[1] for one in all_of("FROM") if (match := re.search(r"AS ([\w-]+)", one))]
    for one in all_of("COPY"):
        if match := re.match(r"--from=([\w-]+)", one):
            assert match[1] in stages
            source = one.split()[-2]
            made = " ".join(rest for word, rest in instructions() if word == "RUN")
            assert source in made, f"{source} is copied but never created"


def test_installed_extras_exist_and_the_pinned_layer_has_every_package_of_the_server():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = [shlex.split(one)[-1] for one in all_of("RUN") if "pip install" in one and ".[" in one]
    assert installed
    for one in installed:
        assert {*one.strip(".[]").split(",")} <= extras(), one
    pinned = {line.partition("==")[0] for line in (ROOT / "deploy/requirements.txt").read_text().splitlines()}
    wanted = {
        re.match(r"[\w-]+", one)[0] for one in project["dependencies"] + project["optional-dependencies"]["serve"]
    }
    assert wanted <= pinned, wanted - pinned


def test_every_target_of_compose_is_a_stage():
    stages = {match[1] for one in all_of("FROM") if (match := re.search(r"AS ([\w-]+)", one))}
    text = (ROOT / "compose.yaml").read_text() + (ROOT / "Dockerfile").read_text()
    assert {*re.findall(r"NNCLR_TARGET(?:=|:-)(\w+)", text), *re.findall(r"--target (\w+)", text)} <= stages


def test_the_unit_starts_the_server_and_leaves_it_time_to_stop():
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read(ROOT / "deploy/nnclr.service")
    service = unit["Service"]
    params = parse(["nnclr", *shlex.split(service["ExecStart"])[1:]])
    assert params["host"] == "127.0.0.1"
    assert params["store"] == f"/var/lib/{service['StateDirectory']}/store"
    assert int(service["TimeoutStopSec"]) > Settings().deadline_s + GRACE_S


def test_the_python_version_is_supported():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert tuple(map(int, arguments()["PYTHON"].split("."))) >= tuple(map(int, wanted.strip(">=").split(".")))


def test_the_command_is_valid_and_starts_with_default_settings(tmp_path, monkeypatch):
    """It listens on all addresses, which requires a key."""
    params = parse(command())
    assert params["host"] == "0.0.0.0"
    assert str(params["port"]) == all_of("EXPOSE")[0]
    assert str(params["keys"]).startswith(all_of("VOLUME")[0] + "/")
    file = tmp_path / "keys"
    key = create_keys_file(file)
    assert key is not None
    settings = Settings.read(host=params["host"], port=params["port"], keys_file=file)
    holder = settings.keys().find(key)
    assert holder is not None
    assert "write" in holder.scopes
    for one in all_of("RUN"):
        for verb, rest in re.findall(r"\bnnclr (\w+) ([^;&]*)", one):
            parse(["nnclr", verb, *shlex.split(rest.replace("$MODEL", "random:test_resnet"))])


def test_the_variables_are_settings(monkeypatch):
    known = {f"NNCLR_{name.upper()}" for name in Settings.model_fields} | OTHERS
    named = {match for one in all_of("ENV") for match in re.findall(r"(\w+)=", one)}
    assert named <= known, named - known
    service = compose()["services"]["nnclr"]["environment"]
    assert set(service) <= known
    text = (ROOT / "Dockerfile").read_text() + (ROOT / "compose.yaml").read_text()
    others = {*re.findall(r"\bNNCLR_[A-Z_]+", text)} - known
    assert (
        others == {"NNCLR_PUBLISH", "NNCLR_MEMORY", "NNCLR_TARGET", "NNCLR_WRITE_KEYS"} - known
    )  # only compose uses them
    # two are read by the command line only
    monkeypatch.setenv("NNCLR_STORE", "/data/store")
    monkeypatch.setenv("NNCLR_MODEL", "")
    params = parse(command())
    assert (params["store"], params["model"]) == ("/data/store", None)


def test_the_image_has_no_root_user_and_a_valid_health_check():
    words = [word for word, _ in instructions()]
    assert all_of("USER") == ["10001"]
    assert any("useradd" in one and " nnclr" in one for one in all_of("RUN"))
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert all_of("STOPSIGNAL") == ["SIGTERM"]
    check = json.loads(all_of("HEALTHCHECK")[0].partition("CMD ")[2])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "healthcheck", "exec")
    from serving.routes import server

    port, path = re.search(r"127\.0\.0\.1:(\d+)(/\w+)", check[2]).groups()  # type: ignore[union-attr]
    assert port == all_of("EXPOSE")[0]
    assert path in {route.path for route in server.router.routes}  # type: ignore[attr-defined]


def test_compose_builds_and_runs_this_image():
    services = compose()["services"]
    ours = services["nnclr"]
    address, outside, inside = re.fullmatch(r"(\S+):(\d+):(\d+)", ours["ports"][0]).groups()  # type: ignore[union-attr]
    assert address == "${NNCLR_PUBLISH:-127.0.0.1}"
    assert outside == inside == all_of("EXPOSE")[0]
    mounted = {one.split(":")[1] for one in ours["volumes"]}
    assert mounted == {*all_of("VOLUME"), "/data/cache"}
    volumes = {one.split(":")[0] for service in services.values() for one in service["volumes"]}
    assert volumes == set(compose()["volumes"])
    assert [name for name, service in services.items() if "profiles" not in service] == ["nnclr"]
    assert int(ours["stop_grace_period"].removesuffix("s")) > Settings().deadline_s + GRACE_S


def test_a_keys_file_is_created_once_and_readable_by_its_owner_only(tmp_path):
    from nnclr_hub.errors import InvalidRequest

    file = tmp_path / "keys"
    key = create_keys_file(file)
    assert key is not None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text().split() == ["write", f"first:{key}"]
    assert create_keys_file(file) is None
    assert key in file.read_text()
    with pytest.raises(InvalidRequest):
        create_keys_file(tmp_path / "nowhere" / "keys")


def test_serve_shows_a_new_key_once_and_never_one_from_the_environment(tmp_path, monkeypatch):
    """The port is in use, so that the command ends at once."""
    import socket

    for name in ("NNCLR_API_KEYS", "NNCLR_WRITE_KEYS", "NNCLR_KEYS_FILE"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        call = ["serve", "--host", "127.0.0.1", "--port", str(taken.getsockname()[1]), "--keys", str(tmp_path / "keys")]
        first, second = (CliRunner().invoke(app, call) for _ in range(2))
        monkeypatch.setenv("NNCLR_WRITE_KEYS", '["me:0123456789abcdefghij"]')
        (tmp_path / "keys").unlink()
        third = CliRunner().invoke(app, call)
    key = re.search(r"may read and write: (\S+)", first.stderr)
    assert key is not None
    assert "cannot be used" in first.stderr
    assert key[1] not in second.stderr
    assert "may read and write" not in third.stderr
    assert not os.path.exists(tmp_path / "keys")
