"""What pyproject.toml cannot say: the top-level folder cuda/ is installed as the package pdla.cuda."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["pdla", "pdla.*"]), "pdla.cuda"],
    package_dir={"pdla": "pdla", "pdla.cuda": "cuda"},
    package_data={
        "pdla": ["py.typed", "**/*.json", "**/*.toml", "**/*.c", "**/*.h", "**/*.f90"],
        "pdla.cuda": ["*.cu"],
    },
)
