"""What the planner is told of this machine: the driver's memory, the catalogue's figures."""

from __future__ import annotations

from exo_inference.planner import find_gpu
from exo_inference.platforms.gpu_families import describe_gpu

MIB = 2**20


def test_known_gpu_has_the_figures_of_the_catalogue() -> None:
    found = describe_gpu("NVIDIA RTX A5000", 24564)
    assert found == find_gpu("gpua5000")


def test_a_gpu_that_is_sold_in_two_sizes_is_known_by_the_drivers_name() -> None:
    for size in (16, 32):
        found = describe_gpu(f"Tesla V100-SXM2-{size}GB", size * 1024)
        assert found.key == find_gpu(f"V100 {size}GB").key


def test_known_gpu_of_another_size_has_the_memory_of_the_driver() -> None:
    found = describe_gpu("NVIDIA RTX A5000", 32768)
    assert found.key == find_gpu("gpua5000").key
    assert 32000 * MIB < found.reported_bytes < 32768 * MIB
    assert found.tflops


def test_unknown_gpu_has_its_memory_and_no_speed() -> None:
    found = describe_gpu("NVIDIA Frobnicator 9", 20000)
    assert (found.key, found.name) == ("frobnicator-9", "NVIDIA Frobnicator 9")
    assert 19000 * MIB < found.reported_bytes < 20000 * MIB
    assert not found.tflops
