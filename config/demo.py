"""What `make demo` does once the service answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def demo(env: Mapping[str, str], base_url: str, say: Callable[[str], None]) -> None:
    """Prepares a demo workspace on the running service. ``env`` leads every command to its servers."""
    say(f"console on {base_url}/")
