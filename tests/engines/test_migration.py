"""Flags of one release, taken to another one."""

import pytest

from exo_inference.engines.flags.catalogue import UnknownRelease, flags_of, listed_releases
from exo_inference.engines.flags.successors import SUCCESSORS, rewrite_removed
from exo_inference.engines.migration import Migration, migrate
from exo_inference.engines.vllm import ENGINE, PLATFORM_OWNED


def kinds(migration: Migration) -> list[tuple[str, str]]:
    return [(change.kind, change.flag) for change in migration.changes if change.kind != "default"]


def test_removed_and_renamed_flags_are_rewritten_and_the_rest_stays() -> None:
    flags = ["--task", "embed", "--swap-space=4", "--disable-log-requests", "--max_model_len=8k"]
    result = migrate([*flags, "--cuda-graph-sizes", "1", "2", "-tp", "2"], "0.12.0", "0.28.0")
    assert result.flags == (
        *("--runner", "pooling", "--convert", "embed", "--no-enable-log-requests"),
        *("--max_model_len=8k", "--cudagraph-capture-sizes", "1", "2", "-tp", "2"),
    )
    assert kinds(result) == [
        ("renamed", "--task"),
        ("removed", "--swap-space"),
        ("renamed", "--disable-log-requests"),
        ("renamed", "--cuda-graph-sizes"),
    ]
    assert result.is_clean


def test_defaults_that_change_are_told_unless_they_are_set() -> None:
    def told(*flags: str) -> list[str]:
        changes = migrate(flags, "0.19.0", "0.20.0").changes
        return [change.flag for change in changes if change.kind == "default"]

    assert "--gpu-memory-utilization" in told()
    assert "--gpu-memory-utilization" not in told("--gpu-memory-utilization=0.9")
    (change,) = [c for c in migrate([], "0.19.0", "0.20.0").changes if "gpu-memory" in c.flag]
    assert change.detail.endswith("its default was 0.9 and is 0.92")


def test_value_that_the_other_release_does_not_take_is_refused_and_kept() -> None:
    result = migrate(["--kv-cache-dtype=nvfp4"], "0.20.0", "0.19.0")
    assert result.flags == ("--kv-cache-dtype=nvfp4",)
    assert kinds(result) == [("refused", "--kv-cache-dtype")]
    assert not result.is_clean


def test_going_back_leaves_out_what_did_not_exist_yet() -> None:
    flags = ["--spec-method", "ngram", "--device-memory-utilization=0.5", "--seed", "1"]
    result = migrate(flags, "0.33.0", "0.19.0")
    assert result.flags == ("--gpu-memory-utilization=0.5", "--seed", "1")
    assert kinds(result) == [
        ("removed", "--spec-method"),
        ("renamed", "--device-memory-utilization"),
    ]


def test_mistakes_of_before_stay_and_are_told_as_such() -> None:
    result = migrate(["--max-tokens", "9", "stray"], "0.19.0", "0.20.0")
    assert result.flags == ("--max-tokens", "9", "stray")
    refused = [change.detail for change in result.changes if change.kind == "refused"]
    assert len(refused) == 2
    assert all(text.startswith("in vLLM 0.19.0 already: ") for text in refused)


def test_old_keys_of_compilation_get_their_new_spelling() -> None:
    result = migrate(["-O.mode=3"], "0.12.0", "0.28.0")
    assert result.flags == ("-cc.mode=3",)
    assert result.is_clean


def test_unknown_release_is_refused() -> None:
    with pytest.raises(UnknownRelease):
        migrate([], "0.12.0", "9.0.0")


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(
            each,
            marks=[] if each in (listed_releases()[0], listed_releases()[-1]) else pytest.mark.slow,
        )
        for each in listed_releases()
    ],
)
def test_every_flag_of_every_release_migrates_to_flags_that_are_taken(target: str) -> None:
    """Values aside: what is only refused for its value or keys says so."""
    for source in ("0.12.0", "0.16.0", "0.28.0", "0.33.0"):
        for parameter in ENGINE.parameters(source):
            value = parameter.allowed_values[:1] or {"integer": ["8"], "float": ["0.5"]}.get(
                parameter.type, ["{}"] if parameter.type == "json" else ["x"]
            )
            boolean = parameter.type == "boolean"
            flags = [f"--{parameter.name}", *([] if boolean else value)]
            if ENGINE.read(flags, source).problems:
                continue  # the value is beyond a bound
            result = migrate(flags, source, target)
            wrong = {problem.reason for problem in ENGINE.read(result.flags, target).problems}
            assert wrong <= {"choice", "type", "key", "json", "range"}, (source, flags)
            if source == target:
                assert result.flags == tuple(flags)
                assert not kinds(result)


def test_every_successor_belongs_to_a_removed_flag_and_exists_in_the_next_release() -> None:
    names = {
        p.name: v for v in listed_releases() for p in ENGINE.parameters(v)
    }  # the last one it is in
    gone = {name for name, last in names.items() if last != listed_releases()[-1]}
    assert gone - PLATFORM_OWNED.keys() == SUCCESSORS.keys()
    for name, successor in SUCCESSORS.items():
        after = listed_releases()[listed_releases().index(names[name]) + 1]
        values = successor.by_value or {"1": ()}
        for value in values:
            written = rewrite_removed(name, (value,), flags_of(after)) or ()
            assert ENGINE.read(written, after).problems == (), (name, written)
            assert successor.note
        newest = successor.rewrite((next(iter(values)),)) or ()
        assert ENGINE.read(newest, listed_releases()[-1]).problems == (), name


@pytest.mark.parametrize(
    ("flags", "migrated"),
    [
        (["-O.level=3"], ("-cc.mode=3",)),
        (["-cc.level", "3"], ("-cc.mode", "3")),
        (["-cc", '{"level":3}'], ("-cc", '{"mode": 3}')),
        (['--compilation-config={"level":3}'], ('--compilation-config={"mode": 3}',)),
    ],
    ids=["short key", "key", "object", "object in one item"],
)
def test_a_key_with_a_new_name_is_rewritten(flags: list[str], migrated: tuple[str, ...]) -> None:
    result = migrate(flags, "0.12.0", "0.28.0")
    assert result.flags == migrated
    assert result.is_clean
    assert kinds(result)[0][0] == "renamed"
    assert "mode" in result.changes[0].detail


def test_a_choice_that_came_later_says_since_when_it_exists() -> None:
    result = migrate(["--kv-cache-dtype=nvfp4"], "0.28.0", "0.12.0")
    assert "nvfp4 came with vLLM 0.20.0" in result.changes[0].detail
