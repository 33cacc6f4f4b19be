"""The manifests of deploy/kubernetes, rendered."""

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deploy/kubernetes"
Manifest = dict[str, Any]
# Lists of these fields are merged by this key, as Kubernetes says of them; any other list is replaced.
MERGE_KEYS = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "port"),
}
FIELDS = {"apiVersion", "kind", "resources", "components", "patches", "labels", "images"}


def render(overlay: str, *components: str) -> list[Manifest]:
    """What ``kubectl kustomize`` makes of a kustomization of this overlay with these components."""
    mine = {"resources": [f"../{overlay}"], "components": [f"../../components/{name}" for name in components]}
    return render_kustomization(mine, FOLDER / "overlays/mine")


def render_kustomization(kustomization: Manifest, folder: Path) -> list[Manifest]:
    """What it makes of one that would be in ``folder``, with the fields and patches that deploy/kubernetes uses."""
    manifests = _resources(kustomization, folder)
    for name in kustomization.get("components", []):
        component = (folder / name).resolve()
        content = yaml.safe_load((component / "kustomization.yaml").read_text())
        assert content["kind"] == "Component", component
        manifests = _transformed(content, manifests + _resources(content, component))
    return _transformed(kustomization, manifests)


def _resources(kustomization: Manifest, folder: Path) -> list[Manifest]:
    manifests: list[Manifest] = []
    for resource in kustomization.get("resources", []):
        path = (folder / resource).resolve()
        if path.suffix == ".yaml":
            manifests += yaml.safe_load_all(path.read_text())
        else:
            manifests += render_kustomization(yaml.safe_load((path / "kustomization.yaml").read_text()), path)
    return manifests


def _transformed(kustomization: Manifest, manifests: list[Manifest]) -> list[Manifest]:
    assert kustomization.keys() <= FIELDS, kustomization.keys() - FIELDS
    manifests = copy.deepcopy(manifests)
    for patch in kustomization.get("patches", []):
        content = yaml.safe_load(patch["patch"])
        targets = [place for place, manifest in enumerate(manifests) if _id(manifest) == _id(content)]
        assert targets or "target" in patch, f"no {_id(content)} to patch"
        for place in targets:
            manifests[place] = _merged(manifests[place], content)
    for manifest in manifests:
        for labels in kustomization.get("labels", []):
            manifest["metadata"].setdefault("labels", {}).update(labels["pairs"])
        for image in kustomization.get("images", []):
            for container in manifest["spec"].get("template", {}).get("spec", {}).get("containers", []):
                if container["image"] == image["name"]:
                    container["image"] = f"{image.get('newName', image['name'])}:{image['newTag']}"
    return manifests


def _id(manifest: Manifest) -> tuple[str, str, str]:
    return manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]


def _merged(old: Any, new: Any, field: str = "") -> Any:
    """A strategic merge: null deletes, mappings are merged, and lists by their key, where they have one."""
    if isinstance(old, dict) and isinstance(new, dict):
        both = {name: _merged(old.get(name), value, name) for name, value in new.items() if value is not None}
        return {name: value for name, value in old.items() if name not in new} | both
    if isinstance(old, list) and isinstance(new, list) and field in MERGE_KEYS:
        key = next(key for key in MERGE_KEYS[field] if key in new[0])
        known = {item[key]: item for item in old}
        merged = {item[key]: _merged(known.get(item[key]), item) for item in new}
        return [*merged.values(), *(item for item in old if item[key] not in merged)]
    return {name: _merged(None, value) for name, value in new.items()} if isinstance(new, dict) else new


def of_kind(manifests: Iterable[Manifest], kind: str) -> Manifest:
    """The one manifest of this kind and the name heed."""
    (found,) = (one for one in manifests if one["kind"] == kind and one["metadata"]["name"] == "heed")
    return found


def pod(manifests: Iterable[Manifest]) -> Manifest:
    """The Deployment's template."""
    return of_kind(manifests, "Deployment")["spec"]["template"]


def container(manifests: Iterable[Manifest]) -> Manifest:
    (found,) = pod(manifests)["spec"]["containers"]
    return found


def environment(manifests: Iterable[Manifest]) -> Mapping[str, str]:
    """The container's variables; of one that is a resource, its amount."""
    of = container(manifests)
    found = {}
    for variable in of["env"]:
        if "valueFrom" in variable:
            assert "value" not in variable
            limits, name = variable["valueFrom"]["resourceFieldRef"]["resource"].split(".")
            found[variable["name"]] = of["resources"][limits][name]
        else:
            found[variable["name"]] = variable["value"]
    return found


CPU, GPU = render("cpu"), render("gpu")
COMPONENTS = sorted(folder.name for folder in (FOLDER / "components").iterdir())
