"""The config file names what is there. What Ray makes of it: ``make test-ray``."""

import ast
from pathlib import Path

import yaml

from service.settings import Settings

ROOT = Path(__file__).parents[3]
CONFIG = yaml.safe_load((ROOT / "deploy/ray/heed.yaml").read_text())


def test_it_is_of_the_default_address():
    default = Settings.model_fields
    assert CONFIG["http_options"] == {name: default[name].default for name in ("host", "port")}


def test_its_names_are_those_of_the_code():
    (application,) = CONFIG["applications"]
    (deployment,) = application["deployments"]
    module, _, function = application["import_path"].partition(":")
    body = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text()).body
    (splitting,) = (node.value for node in body if isinstance(node, ast.Assign) and node.targets[0].id == "SPLITTING")
    own = {f"memory_{key.value}" for key in splitting.keys}
    settings = {name: value for name, value in application["args"].items() if name not in own}
    assert {(ast.FunctionDef, function), (ast.ClassDef, deployment["name"])} <= {
        (type(node), node.name) for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    assert Settings.model_validate(settings).model_fields_set == settings.keys()
