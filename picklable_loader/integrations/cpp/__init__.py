"""``picklable_loader.cpp``: datasets, samplers and transforms of ``torch::data`` as Python ones.

``#include <picklable_loader/torch_data.h>`` binds them, `load` builds and imports the extension.
"""

from .build import BuildError, include, load
from .whole import Whole

__all__ = ["BuildError", "Whole", "include", "load"]
