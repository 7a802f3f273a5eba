"""A run: what is computed, in which loop, what is kept of it, and how good it is."""

from typing import TYPE_CHECKING

import lazy_loader

if not TYPE_CHECKING:  # a room inside this one, loaded when it is first used
    __getattr__ = lazy_loader.attach(__name__, ["engines"])[0]
