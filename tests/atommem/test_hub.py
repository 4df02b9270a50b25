"""Models by their names on a hub, which may be out of reach."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from huggingface_hub import constants

from atommem import hub
from tests.loopback import Quiet, listening


class _Hub(Quiet):
    asked = 0

    def do_HEAD(self) -> None:  # noqa: N802
        _Hub.asked += 1
        self.send_response(404)
        self.end_headers()


def test_a_hub_that_answers_is_asked_once_and_one_that_is_gone_not_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_reached", cache(hub._reached.__wrapped__))
    with listening(_Hub) as address:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://{address}")
        assert hub.only_here(tmp_path)
        assert _Hub.asked == 0
        assert not hub.only_here("somebody/model")
        assert not hub.only_here("somebody/another")
        assert _Hub.asked == 1
    hub._reached.cache_clear()
    assert hub.only_here("somebody/model")
