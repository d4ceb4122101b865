"""No permitted request costs more than its budget: CPU, memory, bytes of the answer, and turns of the event loop.

None of these depends on other work on the machine, as the wait of another request by the clock would.
"""

import pytest
from costly_requests import TELLING, cases, fit_probe, overdrawn, served


@pytest.fixture(scope="module")
def meter(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NNCLR_BACKEND", "onnx")  # the starter has its graph, so the server starts without torch
        with served(tmp_path_factory.mktemp("cost")) as meter:
            meter.cost(cases()["batch_of_64"][1])  # the first request of a process loads what the others find
            yield meter


def check(meter, name):
    budget, request = cases()[name]
    cost = meter.cost(request)
    assert overdrawn(cost, budget) == [], (name, cost)


@pytest.mark.parametrize("name", TELLING)
def test_a_request_stays_within_its_budget(meter, name):
    check(meter, name)


@pytest.mark.slow
def test_every_request_stays_within_its_budget(meter):
    """In the order of `cases`, because some requests load what others then find in memory."""
    fit_probe(meter.url)
    for name in cases():
        check(meter, name)
