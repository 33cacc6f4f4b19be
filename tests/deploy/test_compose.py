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
OVERLAYS = {
    file.name: yaml.safe_load(file.read_text())
    for file in (ROOT / "deploy/compose").glob("*.yml")
    if file.name != "collector.yml"
}
ADDED = {
    f"{file} {name}": service
    for file, overlay in OVERLAYS.items()
    for name, service in overlay["services"].items()
    if name not in SERVICES
}


def read(path: str):
    return yaml.safe_load((ROOT / "deploy" / path).read_text())


def checked(file: Path) -> subprocess.CompletedProcess:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", file]
    return subprocess.run(check, capture_output=True, text=True)


def test_the_specification_takes_it(tmp_path):
    assert checked(FILE).returncode == 0, checked(FILE).stdout
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(FILE.read_text().replace("mem_limit", "memory_limit"))
    assert checked(wrong).returncode == 1


@pytest.mark.parametrize("file", OVERLAYS)
def test_the_specification_takes_what_is_added(file):
    assert checked(ROOT / "deploy/compose" / file).returncode == 0


@pytest.mark.parametrize("service", [*SERVICES.values(), *ADDED.values()], ids=[*SERVICES, *ADDED])
def test_each_may_do_little_and_take_little(service):
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert "build" in service or int(service["user"].partition(":")[0]) > 0  # what is built says so itself


@pytest.mark.parametrize("service", [*SERVICES.values(), *ADDED.values()], ids=[*SERVICES, *ADDED])
def test_ports_and_their_addresses_may_be_chosen(service):
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


def test_the_environment_is_of_settings():
    for service in [
        *SERVICES.values(),
        *(one for overlay in OVERLAYS.values() for one in overlay["services"].values()),
    ]:
        names = {name for name in service.get("environment", {}) if name.startswith("HEED_")} - {"HEED_API_KEY"}
        assert {name.removeprefix("HEED_").lower() for name in names} <= Settings.model_fields.keys()


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
