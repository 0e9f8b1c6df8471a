"""The world of MPI: ranks are processes.

* message: ranks post a round of messages, wait for it and forward pieces (communicator.py, messages.py).
* transport: the way of a device's arrays (transport.py, staging.py, nccl.py).
* shared buffer: memory that the ranks of a node write and read in turns (shared_buffer.py), between barriers (barrier.py).
"""
