"""What pyproject.toml cannot say in a line: each package below pdla, and the files in it that are no Python."""

from setuptools import find_packages, setup

setup(
    packages=find_packages(include=["pdla", "pdla.*"]),
    # An editable install of one folder is a line in a .pth file, which type checkers follow, too.
    package_dir={"": "."},
    package_data={"pdla": ["py.typed", "**/*.json", "**/*.toml", "**/*.c", "**/*.h", "**/*.f90", "cuda/*.cu", "cuda/*.h"]},
    include_package_data=False,  # package_data says it all
)
