"""/docs in a real browser: Swagger UI without another host, within its policy, with the curl command of a call."""

import pytest

pytestmark = pytest.mark.browser


def test_the_page_sends_a_request_and_shows_its_curl_command(opened, served):
    page = opened("/docs")
    page.wait_for_selector(".opblock")
    assert page.locator(".opblock").count() > 50
    operation = page.locator("[id*=healthz]").first
    operation.locator("button").first.click()
    operation.get_by_text("Try it out").click()
    operation.get_by_text("Execute", exact=True).click()
    assert f"'{served.url}/healthz'" in operation.locator(".curl").first.inner_text()
    assert '"status": "ok"' in operation.locator(".live-responses-table").inner_text()
