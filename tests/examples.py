"""Number of examples of a property: all in `make test-full`, a quarter of them in `make test`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

#: Profiles. `--hypothesis-profile=default` looks for new examples.
QUICK, THOROUGH = "quick", "thorough"


def examples(count: int) -> int:
    """Return the number of examples for a property that deserves `count`."""
    return count if settings.get_current_profile_name() != QUICK else max(count // 4, 5)


def register_profiles() -> None:
    """Load the quick one, unless the command line names another.

    The same examples each time, so that a red run is about what was changed. How long one of them takes, to make or to
    try, says nothing on a busy machine.
    """
    for name, count in ((THOROUGH, 100), (QUICK, 25)):
        settings.register_profile(
            name,
            derandomize=True,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            max_examples=count,
        )
    settings.load_profile(QUICK)
