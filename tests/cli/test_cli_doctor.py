"""`replayssm doctor`, here and where nothing can be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from replayssm.cli import doctor, main, probes

# A sitecustomize that makes every import of these raise, each in another way.
BROKEN = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top in ("torch", "triton"):
            raise ImportError(f"{top} is blocked")
        if top in ("numpy", "safetensors", "transformers"):
            raise OSError(f"{top}: a shared object is missing")
        if top == "replayssm_transformers":
            raise RuntimeError("an adapter that does not load")
        return None
sys.meta_path.insert(0, Blocker())
"""


def _doctor(*options, cwd=None, **variables):
    environment = {**os.environ, **variables}
    command = [sys.executable, "-m", "replayssm", "doctor", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=cwd)


@pytest.fixture
def adapter(monkeypatch):
    """Install an adapter's report for "sglang"."""

    def install(report):
        module = ModuleType("fake_adapter")
        module.report = report
        monkeypatch.setitem(sys.modules, "fake_adapter", module)
        points = {probes.DOCTORS: [EntryPoint("sglang", "fake_adapter", probes.DOCTORS)]}
        monkeypatch.setattr(probes, "entry_points", lambda group: points[group])

    return install


def test_runs_where_nothing_can_be_imported(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BROKEN, encoding="utf-8")
    result = _doctor(PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr == ""
    assert "torch is blocked" in result.stdout
    assert "Traceback" not in result.stdout


def test_json_where_nothing_can_be_imported(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BROKEN, encoding="utf-8")
    result = _doctor("--json", PYTHONPATH=str(tmp_path), REPLAYSSM_CONFIG="{}")
    facts = json.loads(result.stdout)
    assert result.returncode == 1
    assert facts["works"] is False
    assert [check["ok"] for check in facts["required"]] == [False, False]


def test_other_commands_point_to_the_doctor(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BROKEN, encoding="utf-8")
    command = [sys.executable, "-m", "replayssm", "plan", "--config", "x"]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert result.returncode == 2
    assert "replayssm doctor" in result.stderr


def test_works_here(adapter, monkeypatch, capsys):
    adapter(list)
    monkeypatch.delenv("REPLAYSSM_CONFIG", raising=False)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in ("python", "torch", "triton", "safetensors", "sglang", "trtllm", "flashinfer", "vllm", "backend torch"):
        assert word in text


def test_a_configuration_that_is_set_must_be_good(adapter, monkeypatch, capsys):
    adapter(list)
    monkeypatch.setenv("REPLAYSSM_CONFIG", '{"window": 24}')
    assert main(["doctor"]) == 0
    assert "window=24" in capsys.readouterr().out
    monkeypatch.setenv("REPLAYSSM_CONFIG", '{"window": 0}')
    assert main(["doctor"]) == 1
    assert "window=0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("report", "status", "word"),
    [
        (lambda: [("surface", True, "as expected")], 0, "its adapter works"),
        (lambda: [("surface", True, "as expected"), ("kernel", False, "not built")], 1, "fails: sglang: kernel"),
        (lambda: 1 / 0, 1, "ZeroDivisionError"),
        (lambda: [("too", "short")], 1, "ValueError"),
    ],
)
def test_an_engine_that_is_asked_for_must_work(adapter, capsys, report, status, word):
    adapter(report)
    assert main(["doctor", "--engine", "sglang"]) == status
    assert word in capsys.readouterr().out


def test_an_engine_without_an_adapter_does_not_work(adapter, capsys):
    adapter(list)
    assert main(["doctor", "--engine", "vllm"]) == 1
    assert "no adapter for it is installed" in capsys.readouterr().out


def test_a_failing_adapter_that_nobody_asked_for_is_only_reported(adapter, capsys):
    adapter(lambda: [("surface", False, "changed")])
    assert main(["doctor"]) == 0
    assert "FAILS  changed" in capsys.readouterr().out


def test_bad_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["doctor", "--engine", "no-such-engine"])
    assert caught.value.code == 2
    assert "no-such-engine" in capsys.readouterr().err


def test_probes_are_standard_library_only():
    script = f"import sys, {doctor.__name__}; print(sorted(set(sys.modules) & {{'torch', 'numpy'}}))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
