"""Triton's C++ server with two instances of its Python backend: PyPI has it in nvidia-pytriton, without other backends.

As a script, this writes a model repository, in which each model.py is this file, and executes ``tritonserver``.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

INSTANCES = 2
MAX_BATCH_SIZE = 64


def config(session: Any) -> str:
    """Triton's configuration of a graph; its axis of the batch is left out, as Triton wants it."""

    def tensors(nodes: Any) -> str:
        shapes = [(node, [size if isinstance(size, int) else -1 for size in node.shape[1:]]) for node in nodes]
        return ", ".join(f'{{ name: "{node.name}" data_type: TYPE_FP32 dims: {dims} }}' for node, dims in shapes)

    return f"""
        backend: "python"
        max_batch_size: {MAX_BATCH_SIZE}
        input [ {tensors(session.get_inputs())} ]
        output [ {tensors(session.get_outputs())} ]
        instance_group [ {{ kind: KIND_CPU count: {INSTANCES} }} ]
        dynamic_batching {{ }}
    """


def main() -> None:
    """Replace this process by the server."""
    import pytriton
    from sessions import NAMES, open_session

    own, folder = Path(pytriton.__file__).with_name("tritonserver"), Path(mkdtemp())
    shutil.copytree(own / "backends", folder / "backends")
    stub = own / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(stub / "triton_python_backend_stub", folder / "backends" / "python")
    for name in NAMES:
        version = folder / "models" / name / "1"
        version.mkdir(parents=True)
        shutil.copy(__file__, version / "model.py")
        (version.parent / "config.pbtxt").write_text(config(open_session(name)))
    packages = Path(sysconfig.get_path("purelib"))
    libraries = [sysconfig.get_config_var("LIBDIR"), packages / "nvidia_pytriton.libs"]
    os.environ |= {
        "PYTHONHOME": sys.base_prefix,  # of the interpreter in each stub
        "BENCH_PATH": os.pathsep.join(map(str, (Path(__file__).parent, packages))),
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
    }
    server = own / "bin" / "tritonserver"
    flags = {
        "model-repository": folder / "models",
        "backend-directory": folder / "backends",
        "http-address": "127.0.0.1",
        "http-port": os.environ["BENCH_PORT"],
        "allow-grpc": "false",
        "allow-metrics": "false",
        "log-info": "false",
    }
    os.execv(server, [str(server), *(f"--{name}={value}" for name, value in flags.items())])


if __name__ == "__main__":
    main()
else:
    sys.path[:0] = os.environ["BENCH_PATH"].split(os.pathsep)
    import triton_python_backend_utils as triton
    from sessions import open_session

    class TritonPythonModel:
        """What the stub loads."""

        def initialize(self, arguments: dict[str, str]) -> None:
            """Open the graph."""
            self.session = open_session(arguments["model_name"])
            self.inputs = [node.name for node in self.session.get_inputs()]

        def execute(self, requests: list[Any]) -> list[Any]:
            """Run each request by itself."""
            responses = []
            for request in requests:
                names = request.requested_output_names()
                feeds = {name: triton.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs}
                arrays = self.session.run(names, feeds)
                outputs = [triton.Tensor(name, array) for name, array in zip(names, arrays, strict=True)]
                responses.append(triton.InferenceResponse(outputs))
            return responses
