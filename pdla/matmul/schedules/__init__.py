"""The order in which parts of A, B and C are sent and multiplied.

schedule  an object (base.py); the default is the first that suits a product
walk      the dimension along which panels move, and the matrices that do (walk.py)
stream    a matrix that moves in parts, and the sink in which products are added up (streams.py)
"""

from pdla.matmul.schedules.base import Schedule, Traffic
from pdla.matmul.schedules.cannon import Cannon
from pdla.matmul.schedules.fetch import Fetch
from pdla.matmul.schedules.gather import Gather
from pdla.matmul.schedules.shared import Shared
from pdla.matmul.schedules.summa import Summa

BY_PREFERENCE: tuple[Schedule, ...] = (Shared(), Gather(), Summa(), Cannon(), Fetch())
SCHEDULES = {schedule.name: schedule for schedule in sorted(BY_PREFERENCE, key=lambda schedule: not schedule.is_algorithm)}
ON_GRID = tuple(name for name, schedule in SCHEDULES.items() if schedule.is_algorithm)


def choose_schedule(traffic: Traffic) -> str:
    """Choose the schedule that suits a product of this traffic."""
    return next(schedule.name for schedule in BY_PREFERENCE if schedule.suits(traffic))
