"""No permitted request costs more than its budget: CPU, memory, bytes of the answer, and the wait of other requests."""

import os
from dataclasses import replace

import pytest

from benchmarks.request_cost import BUDGETS, EXPENSIVE, overdrawn, requests, served

ATTEMPTS = 3  # other work on the machine delays a server, but not each time
BUSY_DELAY_S = 1.0  # on a machine with more work than cores; without its limits, a server stalls for longer


@pytest.fixture(scope="module")
def meter(tmp_path_factory):
    with served(tmp_path_factory.mktemp("cost")) as meter:
        yield meter


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one in EXPENSIVE)) for one in BUDGETS])
def test_a_request_stays_within_its_budget(meter, name):
    request, budget = requests()[name], BUDGETS[name]
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        budget = replace(budget, delay_s=BUSY_DELAY_S)
    for _ in range(ATTEMPTS):
        cost = meter.cost(request)
        if not overdrawn(cost, budget):
            break
    assert 200 <= cost.status < 500
    assert overdrawn(cost, budget) == [], cost
