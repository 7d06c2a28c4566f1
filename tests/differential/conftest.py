"""How many random histories: 40, 100 in CI, 2000 in the nightly profile (RALLYPOINT_PROFILE=nightly).

Only the nightly profile draws other histories each time, and looks for a shorter one when one fails: that takes
minutes on a real etcd. The others print the failing history as it is. All of them, about half an hour:
``RALLYPOINT_PROFILE=nightly make test SLOW=1 ARGS=tests/differential``
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

for name, histories in {"default": 40, "ci": 100, "nightly": 2000}.items():
    settings.register_profile(
        name,
        max_examples=histories,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if name == "nightly" else [])],
        derandomize=name != "nightly",
        print_blob=True,
        suppress_health_check=SLOW,
    )
settings.load_profile(os.environ.get("RALLYPOINT_PROFILE") or ("ci" if os.environ.get("CI") else "default"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not checked is said, whatever the verbosity."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = {str(report.longrepr[2]) for report in reports if isinstance(report.longrepr, tuple)}
    for reason in sorted(reason for reason in reasons if "not checked" in reason):
        terminalreporter.write_line(reason.removeprefix("Skipped: "))
