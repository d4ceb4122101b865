"""A network set up for a CPU computes the same as before, and memory is kept.

Convolutions as matrix products are compared with torch's own in float64.
"""

import copy
import ctypes
import importlib
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from torch import nn

from nnclr_hub.encoder.backbones import create_backbone
from training import cpu
from training.cpu import (
    Limits,
    SmallMapConv2d,
    keep_freed_memory,
    use_few_threads,
    use_plain_attention,
    use_products,
)

ALL, WEIGHTS = Limits(99, 99, 99), Limits(0, 0, 99)
# in, out, kernel, stride, padding, side
SHAPES = [
    (5, 7, 3, 1, 1, 2),
    (5, 7, 3, 2, 1, 4),
    (5, 7, 3, 2, 1, 5),
    (5, 7, 3, 1, 1, 1),
    (5, 7, 3, 2, 1, 1),
    (5, 7, 1, 2, 0, 4),
    (5, 7, 1, 2, 0, 3),
    (3, 4, 7, 2, 3, 9),
    (5, 7, 3, 1, 0, 6),
]


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


# ---- small feature maps


def with_limits(conv: nn.Conv2d, limits: Limits, monkeypatch) -> nn.Conv2d:
    changed = copy.deepcopy(conv)
    use_products(changed)
    assert isinstance(changed, SmallMapConv2d)
    monkeypatch.setattr(cpu, "FP32", limits)
    changed.in_bf16 = limits
    return changed


def results(conv: nn.Conv2d, x: torch.Tensor, grad: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Return output, gradient of the input, and gradient of the weights."""
    x = x.clone().requires_grad_()
    y = conv(x)
    y.backward(torch.ones_like(y) if grad is None else grad.to(y.dtype))
    return [y.detach(), x.grad, conv.weight.grad]


@pytest.mark.parametrize("limits", [ALL, WEIGHTS], ids=["all", "weights"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_and_gradients_equal_those_of_float64(shape, limits, monkeypatch):
    inputs, outputs, kernel, stride, padding, side = shape
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False).to(memory_format=torch.channels_last)
    x = torch.randn(3, inputs, side, side + 1).contiguous(memory_format=torch.channels_last)
    exact = copy.deepcopy(conv).double()
    grad = torch.randn_like(exact(x.double()))
    expected = results(exact, x.double(), grad)
    found = results(with_limits(conv, limits, monkeypatch), x, grad)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limits", [ALL, WEIGHTS], ids=["all", "weights"])
def test_under_autocast_it_computes_in_bf16_and_keeps_float32_gradients(limits, monkeypatch):
    conv = nn.Conv2d(16, 24, 3, 1, 1, bias=False).to(memory_format=torch.channels_last)
    x = torch.randn(8, 16, 2, 2)
    expected = results(copy.deepcopy(conv).double(), x.double())
    with torch.autocast("cpu", torch.bfloat16):
        y, of_x, of_weight = results(with_limits(conv, limits, monkeypatch), x)
    assert (y.dtype, of_x.dtype, of_weight.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    for one, other in zip((y, of_x, of_weight), expected, strict=True):
        assert (one - other).norm() < 0.006 * other.norm(), "bf16 has 8 bits"


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False),
        nn.Conv2d(4, 4, 3, padding=1, bias=True),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2, bias=False),
        nn.Conv2d(4, 4, 3, padding="same", bias=False),
        nn.Conv2d(4, 4, (3, 1), bias=False),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", bias=False),
    ],
    ids=["groups", "bias", "dilation", "same", "not square", "reflect"],
)
def test_other_convolutions_stay_as_they_are(conv):
    use_products(conv)
    assert type(conv) is nn.Conv2d


def test_a_compiled_network_calls_the_products_without_breaks(monkeypatch):
    """One graph: a break at each convolution would cost more than the products gain."""
    conv = nn.Conv2d(5, 7, 3, 1, 1, bias=False).to(memory_format=torch.channels_last)
    changed = with_limits(conv, ALL, monkeypatch)
    x = torch.randn(3, 5, 2, 2)
    expected = results(copy.deepcopy(changed), x)
    changed.compile(fullgraph=True, backend="aot_eager")
    for one, other in zip(results(changed, x), expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # inside opcheck
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("product", [True, False])
def test_the_operation_keeps_the_promises_of_a_custom_operation(product, layout):
    """Its fake has the same shapes and strides, and its gradient is registered."""
    x = torch.randn(2, 4, 3, 5).contiguous(memory_format=layout).requires_grad_()
    weight = torch.randn(6, 4, 3, 3).contiguous(memory_format=layout).requires_grad_()
    torch.library.opcheck(torch.ops.training.convolve.default, (x, weight, 2, 1, product))


def test_only_outputs_with_both_sides_small_are_products():
    conv = nn.Conv2d(4, 4, 3, 1, 1, bias=False)
    use_products(conv)

    def operations(height: int, width: int) -> set[str]:
        with torch.profiler.profile() as profile:
            conv(torch.randn(1, 4, height, width))
        return {event.key for event in profile.key_averages()}

    assert "training::convolve" in operations(2, 2)
    assert "training::convolve" not in operations(2, 600) | operations(600, 2)


def test_a_second_copy_of_the_program_leaves_the_operation_of_the_first_alone():
    """In a checkout, `nnclr` loads the program as nnclr_hub.training; a process may have loaded `training` before."""
    second = importlib.import_module("nnclr_hub.training.cpu")
    assert second is not cpu
    assert second.NAMESPACE != cpu.NAMESPACE
    x, weight = torch.randn(2, 3, 2, 2), torch.randn(4, 3, 3, 3)
    expected = nn.functional.conv2d(x, weight, None, 1, 1)
    for program in (cpu, second):
        torch.testing.assert_close(program.convolve(x, weight, 1, 1, True), expected)
