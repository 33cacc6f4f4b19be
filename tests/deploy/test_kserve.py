"""The manifests for KServe hold what KServe's own types have, and agree with each other and with Kubernetes'."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support import kubernetes

FOLDER = Path(__file__).parents[2] / "deploy/kserve"
RUNTIME, INFERENCE = (yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) for name in ("runtime", "inference"))
(CONTAINER,) = RUNTIME["spec"]["containers"]
MODEL = INFERENCE["spec"]["predictor"]["model"]


@pytest.fixture
def faults(kserve_python):
    """What KServe's types find wrong with manifests: a list for each."""

    def check(*manifests) -> list[list[str]]:
        script = Path(__file__).with_name("kserve_types.py")
        asked = json.dumps(manifests)
        done = subprocess.run([kserve_python, script], input=asked, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return check


@pytest.mark.extended
def test_kserve_accepts_them_and_refuses_wrong_ones(faults):
    assert faults(RUNTIME, INFERENCE) == [[], []]
    runtime = {**RUNTIME, "spec": {**RUNTIME["spec"], "containers": [{**CONTAINER, "imgae": "heed"}]}}
    inference = {**INFERENCE, "spec": {"predictor": {"minReplicas": "one", "model": {"runtime": "heed"}}}}
    assert faults(runtime, inference) == [
        ["spec.containers[0]: no imgae in V1Container"],
        ["spec.predictor.minReplicas: 'one' is no int", "spec.predictor.model: modelFormat is missing"],
    ]


def test_they_are_of_one_another():
    assert MODEL["runtime"] == RUNTIME["metadata"]["name"]
    assert MODEL["modelFormat"]["name"] in {known["name"] for known in RUNTIME["spec"]["supportedModelFormats"]}
    assert MODEL["protocolVersion"] in RUNTIME["spec"]["protocolVersions"]
    assert CONTAINER["name"] == "kserve-container"
    assert CONTAINER["image"] == kubernetes.container(kubernetes.CPU)["image"]
    assert RUNTIME["spec"]["annotations"]["prometheus.kserve.io/port"] == str(CONTAINER["ports"][0]["containerPort"])


def test_probes_limits_and_grace_are_those_of_the_deployment():
    deployed = kubernetes.container(kubernetes.CPU)
    for probe in ("livenessProbe", "readinessProbe"):
        get = {**deployed[probe]["httpGet"], "port": CONTAINER["ports"][0]["containerPort"]}
        assert CONTAINER[probe] == {**deployed[probe], "httpGet": get}
    assert CONTAINER["resources"] == deployed["resources"]
    assert CONTAINER["securityContext"].items() >= deployed["securityContext"].items()
    grace = INFERENCE["spec"]["predictor"]["terminationGracePeriodSeconds"]
    assert grace == kubernetes.pod(kubernetes.CPU)["spec"]["terminationGracePeriodSeconds"]
    variables = {variable["name"]: variable["value"] for variable in CONTAINER["env"]}
    of_the_port = {"HEED_MONITORING_PORT"}  # Knative probes and scrapes only the port that serves
    assert variables.keys() >= kubernetes.environment(kubernetes.CPU).keys() - of_the_port
    for name in variables.keys() & kubernetes.environment(kubernetes.CPU).keys():
        assert variables[name] == kubernetes.environment(kubernetes.CPU)[name]
