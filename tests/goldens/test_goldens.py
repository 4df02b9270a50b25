"""The tree computes what `before-simplification` did, but for `differences.json`: see README.md."""

import pytest

from tests.goldens import compare, record

pytest.importorskip("torch")
SLOW = sorted({*record.PARTS} - record.FAST)
NAMES = [*sorted(record.FAST), *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@pytest.mark.parametrize("name", NAMES)
def test_goldens_are_unchanged(name: str) -> None:
    if name == "smollm2_prompts" and not record.SMOLLM2.is_dir():
        pytest.skip("needs python scripts/models.py smollm2")
    compute, rooms = record.PARTS[name]
    texts = [f"{key}: {text[:600]}" for key, text in compare.compare(compute(), rooms).items()]
    assert not texts, f"{len(texts)} goldens differ:\n" + "\n".join(texts[:20])


def test_differences_have_reasons_and_differ() -> None:
    goldens, differences = compare.read()
    for reason, names in differences.items():
        assert reason
        for name, changed in names.items():
            golden = goldens.get(name)
            wanted = compare.expected_leaves(golden, changed)
            assert compare.different(dict(compare.leaves(golden)), wanted), name
