"""Settings from flags and environment, and what is said of wrong ones."""

import pytest
from pydantic_settings import CliApp

from service.cli.serve import main
from service.settings import Settings


def test_a_flag_wins_over_its_variable(monkeypatch):
    monkeypatch.setenv("HEED_PORT", "9001")
    monkeypatch.setenv("HEED_PROVIDER", "cpu")
    assert Settings().port == 9001
    chosen = CliApp.run(Settings, cli_args=["--port", "9002"])
    assert (chosen.port, chosen.provider) == (9002, "cpu")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "70000"], "port (HEED_PORT): Input should be less than or equal to 65535, got '70000'"),
        (["--provider", "tpu"], "provider (HEED_PROVIDER): Input should be 'auto', 'cuda' or 'cpu', got 'tpu'"),
        (["--workers", "0"], "workers (HEED_WORKERS)"),
        (["--versions", "newest"], "versions (HEED_VERSIONS)"),
        (
            ["--workers", "2", "--model-control-mode", "explicit"],
            "model_control_mode (HEED_MODEL_CONTROL_MODE): Value error, explicit needs workers 1",
        ),
    ],
)
def test_a_wrong_setting_is_named(arguments, said, capsys):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_help_lists_every_setting(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = capsys.readouterr().out
    for name in Settings.model_fields:
        assert f"--{name.replace('_', '-')}" in said


def test_sizes_of_zero_are_this_machine_s():
    sized = Settings(workers=1).sized()
    assert sized.intra_op_threads >= 1
    assert sized.max_memory_bytes > 1 << 20
    fixed = Settings(
        intra_op_threads=7, max_concurrent_runs=3, memory_budget_bytes=10, max_memory_bytes=5, memories_bytes=9
    )
    assert fixed.sized() == fixed


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Settings().port = 1
