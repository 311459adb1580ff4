"""One set of servers for all tests of this folder that break servers: about ten seconds, paid once.

Tests marked ``long`` wait out real bounds. ``make faults`` runs everything; other runs leave them out, and say so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults.own import Own, own_servers
from tests.live import web

_left_out: list[str] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("COUNTERFOIL_FAULTS") == "long" or "long" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        items[:] = [item for item in items if item not in long]
        _left_out.extend(item.nodeid for item in long)
        config.hook.pytest_deselected(items=long)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _left_out:
        terminalreporter.write_line(
            f"{len(_left_out)} long fault tests were left out, because they wait out real bounds: make faults runs them"
        )


# Shorter than in earnest, so that a test of silence takes seconds.
ANSWER_WITHIN_S = 3


@pytest.fixture(scope="session")
def servers() -> Iterator[Own]:
    with own_servers() as own:
        yield own


@pytest.fixture
def own(servers: Own) -> Iterator[Own]:
    """Our own servers, well at the beginning; at the end the whole record is compared with the receiver's."""
    servers.proxy.disarm()
    yield servers
    servers.check()


@pytest.fixture(scope="session")
def service(servers: Own) -> Iterator[str]:
    """A web server on our own servers, which outlives whatever is done to them."""
    env = servers.env
    env["DATABASE_URL"] += f"?answer_within_s={ANSWER_WITHIN_S}&connect_timeout=3"
    with web(**env) as base_url:
        # After its first intent a process knows the capability, and takes the one-statement path.
        operation_id = servers.operation_id()
        first = servers.agent(base_url).put_intent(operation_id, servers.intent(operation_id))
        assert first.status_code == 201, first.text
        yield base_url
