"""The manifests are what Kubernetes takes, and agree with each other and with the service's life."""

import copy
import itertools
import json
import re
import shutil
import subprocess
from functools import cache
from importlib.metadata import version

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import ValidationError

from service.settings import Settings
from service.telemetry.families import FAMILIES
from service.v2.health import router
from service.workers.server import GRACE_S, LINGER_S
from tests.support.custom_resources import SCHEMAS
from tests.support.kubernetes import (
    COMPONENTS,
    CPU,
    FOLDER,
    GPU,
    container,
    environment,
    of_kind,
    pod,
    render,
    render_kustomization,
)

PAGE = (FOLDER.parents[1] / "docs" / "deployment.md").read_text()
EXAMPLE = re.search(r"```yaml\n(# deploy/kubernetes/overlays/(\w+)/kustomization.yaml\n.*?)```", PAGE, re.DOTALL)
MODELS = [name for name in COMPONENTS if name.startswith("models-")]
OTHERS = [name for name in COMPONENTS if name not in MODELS and name != "tls"] + ["tls"]  # it is the last
EVERY = [(models, *OTHERS) for models in MODELS]
CASES = list(itertools.product(("cpu", "gpu"), [(), *((name,) for name in COMPONENTS), *EVERY]))
OVERLAYS = pytest.mark.parametrize("manifests", [CPU, GPU], ids=["cpu", "gpu"])
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def take(manifest, release: str) -> None:
    """Raise where the type of the manifest has a field that is not there, or another."""
    _take(json.dumps(manifest), release)


@cache
def _take(content: str, release: str) -> None:
    """The same, once for each manifest: overlays share most of theirs."""
    manifest = json.loads(content)
    if schema := SCHEMAS.get((manifest["apiVersion"], manifest["kind"])):
        jsonschema.validate(manifest, schema)
    else:
        kubernetes_validate.validate(manifest, release, strict=True)


@pytest.mark.parametrize(("overlay", "components"), CASES)
def test_kubernetes_takes_them(overlay, components):
    oldest = "1.31" if any("image" in name for name in components) else "1.30"  # from there there are image volumes
    for manifest in render(overlay, *components):
        take(manifest, oldest)
        take(manifest, "1.37")


@pytest.mark.parametrize("manifest", render("cpu", *EVERY[0]), ids=lambda one: one["kind"])
def test_a_wrong_one_is_found(manifest):
    wrong = copy.deepcopy(manifest)
    wrong["spec"]["selektor"] = {}
    with pytest.raises((ValidationError, jsonschema.ValidationError), match="selektor"):
        take(wrong, "1.37")


@pytest.mark.extended
@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl here: apt-get install kubernetes-client")
@pytest.mark.parametrize(("overlay", "components"), CASES)
def test_kubectl_renders_the_same(overlay, components, tmp_path):
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    mine = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../{overlay}"],
        "components": [f"../../components/{name}" for name in components],
    }
    folder = tmp_path / "overlays/mine"
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(mine))
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    def sorted_by_name(manifests):
        return sorted(manifests, key=lambda one: (one["kind"], one["metadata"]["name"]))

    theirs = sorted_by_name(yaml.safe_load_all(done.stdout))
    assert theirs == sorted_by_name(render(overlay, *components))


def test_every_file_belongs_to_a_kustomization():
    for folder in (file.parent for file in FOLDER.rglob("kustomization.yaml")):
        resources = yaml.safe_load((folder / "kustomization.yaml").read_text()).get("resources", [])
        own = {name for name in resources if name.endswith(".yaml")}
        assert {file.name for file in folder.glob("*.yaml")} == own | {"kustomization.yaml"}


def test_the_images_have_the_version():
    assert container(CPU)["image"] == f"heed:{version('heed-attention')}"
    assert container(GPU)["image"] == f"heed:{version('heed-attention')}-cuda"


def test_the_readme_s_example_renders():
    manifests = render_kustomization(yaml.safe_load(EXAMPLE[1]), FOLDER / "overlays" / EXAMPLE[2])
    for manifest in manifests:
        take(manifest, "1.37")
    assert "PodMonitor" in {manifest["kind"] for manifest in manifests}


def test_the_readme_names_every_component():
    assert set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)) >= set(COMPONENTS)


def test_they_are_of_one_another():
    manifests = render("cpu", "gateway", "monitoring")
    deployment, labels = of_kind(manifests, "Deployment"), pod(manifests)["metadata"]["labels"].items()
    ports = {port["name"]: port["containerPort"] for port in container(manifests)["ports"]}
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels
    assert of_kind(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels
    assert of_kind(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels
    service, monitor = of_kind(manifests, "Service")["spec"], of_kind(manifests, "PodMonitor")["spec"]
    assert service["selector"].items() <= labels
    assert monitor["selector"]["matchLabels"].items() <= labels
    assert dict(labels)[monitor["jobLabel"]] == "heed"
    assert of_kind(manifests, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"] == {
        "apiVersion": deployment["apiVersion"],
        "kind": deployment["kind"],
        "name": deployment["metadata"]["name"],
    }
    assert service["ports"][0]["targetPort"] == "http"
    assert [endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]] == ["monitoring"]
    assert pod(manifests)["metadata"]["annotations"]["prometheus.io/port"] == str(ports["monitoring"])
    (rule,) = of_kind(manifests, "HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "heed", "port": service["ports"][0]["port"]}]


def test_the_network_policy_opens_the_ports_that_there_are():
    policy = of_kind(CPU, "NetworkPolicy")["spec"]
    names = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
    assert names == [port["name"] for port in container(CPU)["ports"]]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53}


@OVERLAYS
def test_the_environment_is_of_settings(manifests):
    fields = {name.removeprefix("HEED_").lower(): value for name, value in environment(manifests).items()}
    settings = Settings(**fields)
    assert fields.keys() <= settings.model_fields_set
    assert [port["containerPort"] for port in container(manifests)["ports"]] == [
        settings.port,
        settings.monitoring_port,
    ]
    assert pod(manifests)["spec"]["enableServiceLinks"] is False, "a Service named heed would set HEED_PORT"


def test_each_cpu_has_a_worker_and_a_gpu_has_one():
    assert environment(CPU)["HEED_WORKERS"] == container(CPU)["resources"]["limits"]["cpu"]
    assert environment(GPU)["HEED_WORKERS"] == "1"


@pytest.mark.parametrize("name", COMPONENTS)
def test_components_set_settings_and_mount_what_they_name(name):
    manifests = render("cpu", name)
    added = environment(manifests).items() - environment(CPU).items()
    assert {variable.removeprefix("HEED_").lower() for variable, _ in added} <= Settings.model_fields.keys()
    mounts = container(manifests)["volumeMounts"]
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in pod(manifests)["spec"]["volumes"]}
    for _, value in added:
        if value.startswith("/"):
            assert any(value.startswith(mount["mountPath"] + "/") and mount["readOnly"] for mount in mounts)
    if name in MODELS:
        dockerfile = (FOLDER.parents[1] / "Dockerfile").read_text()
        (place,) = re.findall(r"HEED_MODEL_REPOSITORY=(\S+)", dockerfile)
        assert place in {mount["mountPath"] for mount in mounts if mount.get("readOnly")}


@OVERLAYS
def test_probes_and_grace_fit_the_service_s_life(manifests):
    variables = environment(manifests)
    drain, shutdown = float(variables["HEED_DRAIN_SECONDS"]), float(variables["HEED_SHUTDOWN_SECONDS"])
    assert pod(manifests)["spec"]["terminationGracePeriodSeconds"] > drain + LINGER_S + shutdown + 2 * GRACE_S
    _, live, ready = probes = [container(manifests)[probe] for probe in PROBES]
    assert ready["periodSeconds"] * ready["failureThreshold"] < drain
    assert [live["httpGet"]["path"], ready["httpGet"]["path"]] == [route.path for route in router.routes]
    assert {probe["httpGet"]["port"] for probe in probes} == {"monitoring"}


def test_with_tls_all_that_ask_use_https():
    manifests = render("cpu", "monitoring", "tls")
    assert {container(manifests)[probe]["httpGet"]["scheme"] for probe in PROBES} == {"HTTPS"}
    (endpoint,) = of_kind(manifests, "PodMonitor")["spec"]["podMetricsEndpoints"]
    (plain,) = of_kind(render("cpu", "monitoring"), "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint == {**plain, "scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
    assert of_kind(manifests, "Service")["spec"]["ports"][0]["appProtocol"] == "https"
    assert pod(manifests)["metadata"]["annotations"]["prometheus.io/scheme"] == "https"


@OVERLAYS
def test_it_scales_by_gauges_that_are_exported(manifests):
    metrics = of_kind(manifests, "HorizontalPodAutoscaler")["spec"]["metrics"]
    targets = {one["pods"]["metric"]["name"]: one["pods"]["target"] for one in metrics if one["type"] == "Pods"}
    assert {FAMILIES[name].kind for name in targets} == {"gauge"}
    assert targets["heed_event_loop_busy_ratio"] == {"type": "AverageValue", "averageValue": "700m"}


def test_an_update_needs_no_second_gpu():
    limits = container(GPU)["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"
    assert of_kind(GPU, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert of_kind(CPU, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


@pytest.mark.parametrize(("overlay", "components"), CASES)
def test_it_may_do_nothing(overlay, components):
    spec = pod(render(overlay, *components))["spec"]
    assert spec["securityContext"]["runAsNonRoot"]
    for one in [*spec["containers"], *spec.get("initContainers", [])]:
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert one["resources"]["limits"].keys() >= {"cpu", "memory"}
