"""Exceptions. Every one raised by a collective call is raised on every rank, with the same text, unless the call says otherwise, or
what is wrong on one rank is what knows the others: its grid, or its only matrix."""


class PdlaError(Exception):
    """Base of everything pdla raises on purpose."""


class GridError(PdlaError, ValueError):
    """A process grid that does not fit its communicator, or two grids that do not go together."""


class LayoutError(PdlaError, ValueError):
    """A layout that does not fit its grid or its matrix, or operands whose layouts do not go together."""


class ShapeError(PdlaError, ValueError):
    """Shapes or dtypes that do not go together."""


class PlanError(PdlaError, ValueError):
    """An algorithm that cannot run on this grid, or an unknown one."""


class AgreementError(PdlaError, ValueError):
    """The ranks of a communicator called the same thing with different arguments."""


class RemoteError(PdlaError, RuntimeError):
    """Another rank failed; the text quotes its error."""


class DeadlockError(PdlaError, RuntimeError):
    """Every rank waits for another one; the text names each rank's call."""


class FileError(PdlaError, OSError):
    """A file that is missing, damaged, truncated or of the wrong shape."""


class NoMPIError(PdlaError, RuntimeError):
    """mpi4py or an MPI library is missing, or MPI is not running (not initialised yet, or finalised), or is a parent's."""


class DeviceError(PdlaError, RuntimeError):
    """CuPy or a GPU is missing where arrays are to lie on one, or the library that PDLA_BLAS names; or an array lies elsewhere than
    matrices do."""


class HandleError(PdlaError, LookupError):
    """A number, given to pdla.h's functions, that stands for no such thing."""
