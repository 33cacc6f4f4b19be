"""The manifests are what Kubernetes takes, and agree with each other and with the service's life."""

import copy
from importlib.metadata import version

import kubernetes_validate
import pytest
from kubernetes_validate import ValidationError

from service.settings import Settings
from service.telemetry.families import FAMILIES
from service.v2.health import router
from service.workers.server import GRACE_S, LINGER_S
from tests.support.kubernetes import (
    AUTOSCALER,
    BUDGET,
    CONTAINER,
    DEPLOYMENT,
    ENVIRONMENT,
    FOLDER,
    KUSTOMIZATION,
    MANIFESTS,
    POD,
    SERVICE,
)


@pytest.mark.parametrize("release", ["1.30", "1.37"])
@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_takes_them(name, release):
    kubernetes_validate.validate(MANIFESTS[name], release, strict=True)


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_wrong_one_is_found(name):
    wrong = copy.deepcopy(MANIFESTS[name])
    wrong["spec"]["selektor"] = {}
    with pytest.raises(ValidationError, match="selektor"):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_every_manifest_is_a_resource():
    assert {file.name for file in FOLDER.glob("*.yaml")} == MANIFESTS.keys() | {"kustomization.yaml"}
    assert KUSTOMIZATION["images"] == [{"name": CONTAINER["image"], "newTag": version("heed-attention")}]


def test_they_are_of_one_another():
    labels = POD["metadata"]["labels"].items()
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"].items() <= labels
    assert BUDGET["spec"]["selector"]["matchLabels"].items() <= labels
    assert SERVICE["spec"]["selector"].items() <= labels
    assert AUTOSCALER["spec"]["scaleTargetRef"] == {
        "apiVersion": DEPLOYMENT["apiVersion"],
        "kind": DEPLOYMENT["kind"],
        "name": DEPLOYMENT["metadata"]["name"],
    }
    assert SERVICE["spec"]["ports"][0]["targetPort"] == CONTAINER["ports"][0]["name"]
    assert POD["metadata"]["annotations"]["prometheus.io/port"] == str(CONTAINER["ports"][0]["containerPort"])


def test_the_environment_is_of_settings():
    fields = {name.removeprefix("HEED_").lower(): value for name, value in ENVIRONMENT.items()}
    settings = Settings(**fields)
    assert fields.keys() <= settings.model_fields_set
    assert CONTAINER["ports"][0]["containerPort"] == settings.port
    assert POD["spec"]["enableServiceLinks"] is False, "a Service named heed would set HEED_PORT"


def test_probes_and_grace_fit_the_service_s_life():
    drain, shutdown = float(ENVIRONMENT["HEED_DRAIN_SECONDS"]), float(ENVIRONMENT["HEED_SHUTDOWN_SECONDS"])
    assert POD["spec"]["terminationGracePeriodSeconds"] > drain + LINGER_S + shutdown + 2 * GRACE_S
    live, ready = CONTAINER["livenessProbe"], CONTAINER["readinessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] < drain
    assert [live["httpGet"]["path"], ready["httpGet"]["path"]] == [route.path for route in router.routes]
    assert {probe["httpGet"]["port"] for probe in (live, ready)} == {CONTAINER["ports"][0]["name"]}


def test_it_scales_by_a_gauge_that_is_exported():
    names = [metric["pods"]["metric"]["name"] for metric in AUTOSCALER["spec"]["metrics"] if metric["type"] == "Pods"]
    assert [FAMILIES[name].kind for name in names] == ["gauge"]


def test_it_may_do_nothing():
    assert POD["spec"]["securityContext"]["runAsNonRoot"]
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
