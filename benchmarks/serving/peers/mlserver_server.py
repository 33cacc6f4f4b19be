"""MLServer with a custom runtime. As a script, this writes the settings into a folder and executes ``mlserver start``.

BENCH_WORKERS is the number of inference processes behind the HTTP process; with 0, the latter runs the inference.
"""

import json
import os
import sys
from pathlib import Path
from tempfile import mkdtemp

from sessions import NAMES, open_session

if __name__ == "__main__":
    here, folder, port = Path(__file__).parent, Path(mkdtemp()), int(os.environ["BENCH_PORT"])
    settings = {
        "debug": False,
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": port + 1,
        "metrics_port": port + 2,
        "metrics_endpoint": None,
        "environments_dir": str(folder / ".environments"),
        "parallel_workers": int(os.environ["BENCH_WORKERS"]),
        "gzip_enabled": False,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    for name in NAMES:
        (folder / name).mkdir()
        model = {"name": name, "implementation": "mlserver_server.Attention"}
        (folder / name / "model-settings.json").write_text(json.dumps(model))
    os.environ["PYTHONPATH"] = str(here)
    os.chdir(folder)
    command = Path(sys.executable).with_name("mlserver")
    os.execv(command, [str(command), "start", str(folder)])

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Attention(MLModel):
    async def load(self) -> bool:
        self.session = open_session(self.name)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feeds = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
        names = [output.name for output in payload.outputs or self.session.get_outputs()]
        arrays = self.session.run(names, feeds)
        outputs = [NumpyCodec.encode_output(name, array) for name, array in zip(names, arrays, strict=True)]
        return InferenceResponse(model_name=self.name, outputs=outputs)
