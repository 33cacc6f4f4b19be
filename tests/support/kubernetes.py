"""The manifests of deploy/kubernetes."""

from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[2] / "deploy/kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
MANIFESTS = {name: yaml.safe_load((FOLDER / name).read_text()) for name in KUSTOMIZATION["resources"]}
DEPLOYMENT, SERVICE, AUTOSCALER, BUDGET = MANIFESTS.values()
POD = DEPLOYMENT["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
ENVIRONMENT = {variable["name"]: variable["value"] for variable in CONTAINER["env"]}
