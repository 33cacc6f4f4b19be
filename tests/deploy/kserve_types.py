"""Run by the Python that has KServe: manifests as a JSON list on standard input; prints the faults of each as JSON."""

import json
import re
import sys

import kserve.models
from kubernetes import client

KINDS = {"ServingRuntime": "V1alpha1ServingRuntime", "InferenceService": "V1beta1InferenceService"}
PLAIN = {"str": str, "int": int, "bool": bool, "float": float}


def faults(value, kind: str, place: str = "") -> list[str]:
    """Fields that ``kind`` has not or needs, and values of another type, anywhere in ``value``."""
    if plain := PLAIN.get(kind):
        return [] if type(value) is plain else [f"{place}: {value!r} is no {kind}"]
    if of := re.fullmatch(r"list\[(.*)\]", kind):
        return [fault for at, item in enumerate(value) for fault in faults(item, of[1], f"{place}[{at}]")]
    if of := re.fullmatch(r"dict\(str, (.*)\)", kind):
        return [fault for name, item in value.items() for fault in faults(item, of[1], f"{place}.{name}")]
    known = getattr(kserve.models, kind, None) or getattr(client, kind, None)
    if known is None:  # a quantity, a port that may have a name
        return []
    fields = {known.attribute_map[field]: field for field in known.openapi_types}
    found = [f"{place}: no {name} in {kind}" for name in value if name not in fields]
    for name in value.keys() & fields.keys():
        found += faults(value[name], known.openapi_types[fields[name]], f"{place}.{name}".lstrip("."))
    try:
        known(**{fields[name]: value[name] for name in value.keys() & fields.keys()})
    except ValueError as error:
        found.append(f"{place}: {fields_of(error, known)} is missing")
    return sorted(found)


def fields_of(error: ValueError, known) -> str:
    """The field that a constructor says must not be None."""
    return known.attribute_map[re.search(r"`(\w+)`", str(error))[1]]


print(json.dumps([faults(manifest, KINDS[manifest["kind"]]) for manifest in json.load(sys.stdin)]))
