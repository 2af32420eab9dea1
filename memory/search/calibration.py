"""What the cosines of a model mean. Models differ: unrelated texts are at 0.05 in one and at 0.77 in another."""

from __future__ import annotations

from memory.search.fusion import Calibration

#: Most models: unrelated texts below 0.1, related ones above 0.6.
_DEFAULT = Calibration(unrelated=0.05, related=0.65)

#: By a part of the model's name, first match wins.
_BY_MODEL = (
    ("e5", Calibration(unrelated=0.75, related=0.92)),
    # Answers to questions in the other language are found down to 0.17, most others between 0.3 and 0.5.
    ("multilingual-use", Calibration(unrelated=-0.15, related=0.6)),
    ("ada-002", Calibration(unrelated=0.7, related=0.88)),
    ("embedding-3", Calibration(unrelated=0.05, related=0.6)),
)


def calibration_of(model: str) -> Calibration:
    """Return the calibration of a model by its name."""
    name = model.lower()
    return next((calibration for part, calibration in _BY_MODEL if part in name), _DEFAULT)
