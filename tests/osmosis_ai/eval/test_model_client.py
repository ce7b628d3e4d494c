from __future__ import annotations

import importlib.util
import sys

import pytest

from osmosis_ai.eval import run
from osmosis_ai.eval.errors import EvalError


@pytest.mark.parametrize("is_used", [True, False])
def test_a_model_client_that_is_missing_is_told_before_each_row_fails_for_it(
    monkeypatch: pytest.MonkeyPatch, is_used: bool
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    if is_used:
        monkeypatch.setitem(sys.modules, run._ROLLOUT_MODEL, importlib.util)
        with pytest.raises(EvalError, match="litellm") as caught:
            run._require_model_client()
        assert "pip install 'osmosis-store[litellm]'" in caught.value.hint
    else:
        monkeypatch.delitem(sys.modules, run._ROLLOUT_MODEL, raising=False)
        run._require_model_client()
