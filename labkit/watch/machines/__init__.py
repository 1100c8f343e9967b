"""Flight recorders of ranks on several machines: one on each, and relays that copy them to rank 0's.

Machines share no memory. Each has a recorder with slots for all ranks of the world. A thread in the first
rank of each machine, the relay, sends what changes in the slots of its ranks to a thread in rank 0, the hub,
which writes it to rank 0's recorder. So what makes a report reads one recorder, as on one machine. The hub
sends a report to the relays, which publish it on their machines.

They are threads and not processes: they end with their rank, however it ends, and the other end of the
connection sees it at once. A rank whose code keeps its other threads out delays them, and only them.
"""
