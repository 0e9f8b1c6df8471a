"""The world of MPI: ranks are processes.

message        a round of them is posted, waited for and sent on (communicator.py, messages.py)
transport      how arrays of a device travel (transport.py, staging.py, nccl.py)
shared buffer  memory that the ranks of a node write and read in turns, behind shared barriers (shared_buffer.py, barrier.py)
"""
