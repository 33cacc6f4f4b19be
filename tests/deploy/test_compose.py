"""docker-compose.yml and what is added to it, read: the Compose specification takes them, their parts agree.

`make container` brings up the former.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from service.settings import Settings
from service.workers.server import GRACE_S, LINGER_S

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
COMPOSE = yaml.safe_load(FILE.read_text())
SERVICES = COMPOSE["services"]
FILES = [file for file in (ROOT / "deploy/compose").glob("*.yml") if file.name != "collector.yml"]
OVERLAYS = {file.name: yaml.safe_load(file.read_text()) for file in FILES}
EVERY = {name: service for overlay in OVERLAYS.values() for name, service in overlay["services"].items()} | SERVICES
DEPLOYED = [FILE, ROOT / "Dockerfile", *(ROOT / "deploy").rglob("*.y*ml")]


def read(path: str):
    return yaml.safe_load((ROOT / "deploy" / path).read_text())


@pytest.mark.parametrize("file", DEPLOYED, ids=lambda file: str(file.relative_to(ROOT)))
def test_variables_are_settings(file):
    """All that a file gives to a container; ``${HEED_PORT:-8000}`` is a variable of Compose itself."""
    given = re.findall(r"(?<!\{)\bHEED_([A-Z_]+)", re.sub("#.*", "", file.read_text()))
    assert {variable.lower() for variable in given} - {"api_key"} <= Settings.model_fields.keys()


def checked(file: Path) -> subprocess.CompletedProcess:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file]
    return subprocess.run(check, capture_output=True, text=True)


@pytest.mark.parametrize("file", [FILE, *FILES], ids=lambda file: file.name)
def test_the_specification_takes_it(file, tmp_path):
    assert checked(file).returncode == 0
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(file.read_text().replace("services:", "service:"))
    assert checked(wrong).returncode == 1


@pytest.mark.parametrize("service", EVERY.values(), ids=EVERY)
def test_each_may_do_little_and_its_ports_may_be_chosen(service):
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert "build" in service or int(service["user"].partition(":")[0]) > 0  # what is built says so itself
    for published in service.get("ports", []):
        assert re.fullmatch(r"\$\{HEED_HOST:-127\.0\.0\.1}:\$\{\w+_PORT:-\d+}:\d+", published)


def test_each_waits_for_what_it_needs():
    for service in SERVICES.values():
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "build" in SERVICES[needed] or "healthcheck" in SERVICES[needed]


def test_it_is_given_the_time_to_end():
    shutdown = Settings.model_fields["shutdown_seconds"].default
    assert int(SERVICES["heed"]["stop_grace_period"].removesuffix("s")) > LINGER_S + shutdown + 2 * GRACE_S


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_is_there(name):
    for volume in SERVICES[name].get("volumes", []):
        source, _, how = volume.partition(":")
        if source.startswith("."):
            assert (ROOT / source).exists()
            assert how.endswith(":ro")
        else:
            assert source in COMPOSE["volumes"]


def test_prometheus_asks_the_services_that_there_are():
    configuration = read("prometheus/compose.yml")
    (job,) = configuration["scrape_configs"]
    (names,) = job["dns_sd_configs"]
    for name in names["names"]:
        assert SERVICES[name]["environment"]["HEED_MONITORING_PORT"] == str(names["port"])
    (rules,) = configuration["rule_files"]
    assert f"./deploy/prometheus/{rules}:/etc/prometheus/{rules}:ro" in SERVICES["prometheus"]["volumes"]
    assert set(names["names"]) == {name for name in SERVICES if name.startswith("heed")}
    (source,) = read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    port = SERVICES["prometheus"]["ports"][0].rpartition(":")[2]
    assert source["url"] == f"http://prometheus:{port}"
    assert source["jsonData"]["timeInterval"] == job["scrape_interval"]


def test_grafana_is_given_the_dashboard():
    (provider,) = read("grafana/provisioning/dashboards/heed.yml")["providers"]
    mounts = {volume.split(":")[1]: volume.split(":")[0] for volume in SERVICES["grafana"]["volumes"]}
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert json.loads((ROOT / mounts[home]).read_text())["title"] == "Heed"
    assert home.startswith(provider["options"]["path"] + "/")


@pytest.mark.parametrize("file", OVERLAYS)
def test_what_is_added_fits(file):
    overlay = OVERLAYS[file]
    for service in overlay["services"].values():
        for volume in service.get("volumes", []):
            assert volume.endswith(":ro")
            assert not volume.startswith(".") or (ROOT / volume.partition(":")[0]).exists()
        for secret in service.get("secrets", []):
            assert secret in overlay["secrets"]
            assert f"/run/secrets/{secret}" in service["environment"].values()
    assert f"-f deploy/compose/{file}" in (ROOT / "docs/deployment.md").read_text()


def test_your_models_are_where_the_image_has_its_own():
    (volume,) = OVERLAYS["models.yml"]["services"]["heed"]["volumes"]
    (place,) = re.findall(r"HEED_MODEL_REPOSITORY=(\S+)", (ROOT / "Dockerfile").read_text())
    assert volume.endswith(f":{place}:ro")


def test_traces_reach_the_collector_and_jaeger():
    services, collector = OVERLAYS["traces.yml"]["services"], read("compose/collector.yml")
    port = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]
    assert services["heed"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == f"http://collector:{port}"
    assert collector["exporters"]["otlp"]["endpoint"].partition(":")[0] in services
    for pipeline in collector["service"]["pipelines"].values():
        for part, names in pipeline.items():
            assert set(names) <= collector[part].keys()
