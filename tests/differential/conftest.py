"""How many random histories: 40, 100 in CI, 2000 in the nightly profile (RALLYPOINT_PROFILE=nightly).

Only the nightly profile draws other histories each time; it prints what reproduces a failure.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

for name, histories in {"default": 40, "ci": 100, "nightly": 2000}.items():
    settings.register_profile(
        name,
        max_examples=histories,
        deadline=None,
        database=None,
        derandomize=name != "nightly",
        print_blob=True,
        suppress_health_check=SLOW,
    )
settings.load_profile(os.environ.get("RALLYPOINT_PROFILE") or ("ci" if os.environ.get("CI") else "default"))
