"""The methods by name. Nothing is imported here: the API lists names without loading torch.

A method is one file. It defines one frozen dataclass that satisfies ``unlearning.types.Method`` and is
bound to ``METHOD``.
"""

from pathlib import Path

NAMES: tuple[str, ...] = tuple(
    sorted(entry.stem for entry in Path(__file__).parent.glob("[a-z]*") if entry.suffix in ("", ".py"))
)
