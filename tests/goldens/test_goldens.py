"""The tree computes what `before-simplification` did, but for `differences.json`: see README.md."""

import pytest

from tests.goldens import record

pytest.importorskip("torch")
SLOW = sorted({*record.PARTS} - record.FAST)
NAMES = [*sorted(record.FAST), *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.mark.parametrize("name", NAMES)
def test_goldens_are_unchanged(name):
    if name == "smollm2_prompts" and not record.SMOLLM2.is_dir():
        pytest.skip("needs python scripts/models.py smollm2")
    texts = [f"{key}: {text[:600]}" for key, text in record.check(name)[1].items()]
    assert not texts, f"{len(texts)} goldens differ:\n" + "\n".join(texts[:20])


def test_differences_have_reasons_and_differ():
    goldens, differences = record.read()
    for reason, names in differences.items():
        assert reason
        for name, value in names.items():
            assert record.difference(goldens.get(name), value), name
