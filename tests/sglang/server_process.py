"""The real server in a process of its own, and a client of it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

SERVER = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server"]
START_SECONDS = 240


def generate(port, prompt, tokens, timeout=300.0, **options):
    """The whole answer."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling, **options}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.load(response)


def ask(port, prompt, tokens, timeout=300.0):
    """The tokens of an answer."""
    return generate(port, prompt, tokens, timeout)["output_ids"]


def page(port, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=30) as response:
        return response.read().decode()


@contextmanager
def serving(path, log, settings, environment):
    """A server of a model folder, ready; its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*SERVER, "--model-path", str(path), "--host", "127.0.0.1", "--port", str(port), *settings]
    with log.open("w") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            wait(port, server, log)
            yield port
        finally:
            server.terminate()
            server.wait(timeout=60)


def wait(port, server, log):
    for _ in range(START_SECONDS):
        try:
            page(port, "get_model_info")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            assert server.poll() is None, log.read_text()[-4000:]
            time.sleep(1.0)
        else:
            return
    raise AssertionError(log.read_text()[-4000:])
