"""A network set up for a CPU computes the same as before, and memory is kept."""

import copy
import ctypes
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch

from nnclr_hub.encoder.backbones import create_backbone
from training.cpu import keep_freed_memory, use_few_threads, use_plain_attention, use_products


def gradients(network: torch.nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    network(x).square().mean().backward()
    return {name: parameter.grad for name, parameter in network.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize(
    ("architecture", "arguments", "side"),
    [("resnet18", {"channels": [8, 8, 8, 8]}, 32), ("resnet50", {"channels": [8, 8, 8, 8]}, 32), ("test_vit", {}, 32)],
)
def test_outputs_and_gradients_are_those_of_the_stock_network(architecture, arguments, side):
    torch.manual_seed(0)
    network = create_backbone(architecture, model_args=arguments, image_size=side).double()
    network.to(memory_format=torch.channels_last)
    changed = copy.deepcopy(network)
    use_products(changed)
    use_plain_attention(changed)
    x = torch.randn(4, 3, side, side, dtype=torch.float64)
    expected, found = gradients(network, x), gradients(changed, x)
    torch.testing.assert_close(changed(x), network(x))
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, expected)


def test_a_vision_transformer_has_no_call_of_fused_attention():
    network = create_backbone("test_vit", image_size=32)
    use_plain_attention(network)
    with torch.profiler.profile() as profile:
        network(torch.randn(2, 3, 32, 32)).sum().backward()
    assert not [event.key for event in profile.key_averages() if "scaled_dot_product" in event.key]


def heap_growth() -> int:
    """Return the bytes that a freed block of 3 GiB, which is never written, adds to the heap of this process."""
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
    libc.sbrk.argtypes, libc.malloc.argtypes = [ctypes.c_ssize_t], [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    keep_freed_memory()
    before = libc.sbrk(0)
    libc.free(libc.malloc(3 << 30))
    return libc.sbrk(0) - before


@pytest.mark.skipif(sys.platform != "linux", reason="an option of glibc")
def test_large_blocks_stay_with_the_process():
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as child:  # the option lasts with the process
        # the heap had some free space before; a block in a separate mapping would add nothing
        assert child.submit(heap_growth).result() > 2 << 30


@pytest.mark.parametrize(("threads", "used"), [(16, 4), (2, 2)])
def test_a_run_on_a_gpu_uses_few_threads_of_the_cpu(threads, used):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        use_few_threads()
        assert torch.get_num_threads() == used
    finally:
        torch.set_num_threads(before)
