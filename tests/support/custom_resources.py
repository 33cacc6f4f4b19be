"""What the types of others (Gateway API, prometheus-operator) have of the fields that deploy/ uses.

No package holds their schemas, and their files are many thousands of lines: these name the fields that are known and
which of them must be there, so that a misspelt or a misplaced one is found.
"""

from typing import Any

TEXT = {"type": "string", "minLength": 1}
Schema = dict[str, Any]


def fields(known: dict[str, Schema], *, required: str = "") -> Schema:
    return {"type": "object", "properties": known, "required": required.split(), "additionalProperties": False}


def items(of: Schema) -> Schema:
    return {"type": "array", "items": of, "minItems": 1}


PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m|h|d)$"}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
SPECS = {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): fields(
        {
            "parentRefs": items(fields({"name": TEXT, "namespace": TEXT, "sectionName": TEXT}, required="name")),
            "hostnames": items(TEXT),
            "rules": items(fields({"backendRefs": items(fields({"name": TEXT, "port": PORT}, required="name port"))})),
        },
        required="parentRefs rules",
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): fields(
        {
            "jobLabel": TEXT,
            "selector": fields({"matchLabels": TEXTS}, required="matchLabels"),
            "podMetricsEndpoints": items(
                fields(
                    {
                        "port": TEXT,
                        "interval": DURATION,
                        "path": TEXT,
                        "scheme": {"enum": ["http", "https"]},
                        "tlsConfig": fields({"insecureSkipVerify": {"type": "boolean"}}),
                    },
                    required="port",
                )
            ),
        },
        required="selector podMetricsEndpoints",
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): fields(
        {
            "groups": items(
                fields(
                    {
                        "name": TEXT,
                        "rules": items(
                            fields(
                                {"alert": TEXT, "expr": TEXT, "for": DURATION, "labels": TEXTS, "annotations": TEXTS},
                                required="alert expr",
                            )
                        ),
                    },
                    required="name rules",
                )
            )
        },
        required="groups",
    ),
}
METADATA = fields({"name": TEXT, "labels": TEXTS}, required="name")
SCHEMAS = {
    (version, kind): fields(
        {"apiVersion": {"const": version}, "kind": {"const": kind}, "metadata": METADATA, "spec": spec},
        required="apiVersion kind metadata spec",
    )
    for (version, kind), spec in SPECS.items()
}
