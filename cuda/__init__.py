"""The CUDA sources, installed as pdla.cuda: files("pdla.cuda") finds them."""

from pkgutil import extend_path

# From the root of a checkout this folder hides NVIDIA's own `cuda`, which CuPy imports.
__path__ = extend_path(__path__, __name__)
