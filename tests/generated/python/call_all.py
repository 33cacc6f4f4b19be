"""Runs in another environment, beside a generated package ``client``: makes every call, and prints what it answers.

usage: call_all.py ADDRESS CALLS
"""

import importlib
import json
import sys
import typing
from pathlib import Path

from client import Client

address, calls = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
memory = ""
with Client(base_url=address) as client:
    for call in calls:
        tag = call["tag"].lower().replace(" ", "_")
        function = importlib.import_module(f"client.api.{tag}.{call['operation']}").sync_detailed
        arguments = {name: memory if value == "{memory}" else value for name, value in call["arguments"].items()}
        if call["body"] is not None:
            hint = typing.get_type_hints(function)["body"]
            kind = next(of for of in (*typing.get_args(hint), hint) if hasattr(of, "from_dict"))
            arguments["body"] = kind.from_dict(call["body"])
        response = function(client=client, **arguments)
        memory = getattr(response.parsed, "id", memory) if response.status_code == 201 else memory
        print(json.dumps([call["operation"], response.status_code, type(response.parsed).__name__]))
