"""Changes to the product's code for the time of a test, which shall notice them."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias


class Plant:
    """Changes code, and remembers what was there."""

    def __init__(self) -> None:
        self._old: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """The old value is returned."""
        old = vars(owner)[name]
        self._old.append((owner, name, old))
        setattr(owner, name, value)
        return old.__func__ if isinstance(old, classmethod | staticmethod) else old

    def undo(self) -> None:
        for owner, name, old in reversed(self._old):
            setattr(owner, name, old)


Planter: TypeAlias = Callable[[Plant], None]


@contextlib.contextmanager
def planted(plant_it: Planter) -> Iterator[None]:
    """It is in the code for the time of the block."""
    plant = Plant()
    try:
        plant_it(plant)
        yield
    finally:
        plant.undo()


@dataclass(frozen=True)
class Bug:
    worlds: tuple[str, ...]
    """Those that may notice it; the first one is asked."""
    plant: Planter
    defect: str


class Bugs(dict[str, Bug]):
    """Of one part of the product, by name. ``run``: a seed of a world, whose errors tell."""

    def __init__(self, run: Callable[[str, int], object]) -> None:
        self._run = run

    def of(self, *worlds: str, defect: str = "") -> Callable[[Planter], Planter]:
        def register(plant: Planter) -> Planter:
            self[plant.__name__] = Bug(worlds, plant, defect)
            return plant

        return register

    def violation(self, world: str, seed: int) -> str | None:
        """What the run of a seed violates, if anything."""
        try:
            self._run(world, seed)
        except AssertionError as error:
            text = str(error).partition(": ")[2] or str(error)
            said = text.partition(" ms: ")[2].partition(";")[0] or text
            return said.partition("\n")[0] or "an assertion"
        except Exception as error:  # a planted bug may break anything
            return repr(error)
        return None
