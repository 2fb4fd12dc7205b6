"""What of the controller's environment an engine gets."""

from __future__ import annotations

from pathlib import Path

from exo_inference.platforms.local.environment import engine_environment


def test_the_choice_of_kernels_reaches_engines_and_secrets_do_not() -> None:
    own = {"EXO_ENGINE_CPU_KERNELS": "off", "HF_TOKEN": "hf_x", "EXO_ENGINE_API_KEY": "k"}
    given = engine_environment(own, directory=Path("/r"), home=Path("/h"), gpus=(), num_threads=2)
    assert given["EXO_ENGINE_CPU_KERNELS"] == "off"
    assert not {"HF_TOKEN", "EXO_ENGINE_API_KEY"} & set(given)


def test_where_traces_go_reaches_engines() -> None:
    own = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "api-key=x",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_METRICS_EXPORTER": "otlp",
    }
    given = engine_environment(own, directory=Path("/r"), home=Path("/h"), gpus=(), num_threads=2)
    assert {name: given[name] for name in own if name in given} == {
        name: value for name, value in own.items() if name != "OTEL_METRICS_EXPORTER"
    }
