"""Flight recorders of ranks on several machines: one on each, and relays that copy them to rank 0's.

Machines share no memory. Each has a recorder with slots for all ranks of the world. A thread in the first
rank of each machine, the relay, sends what changes in the slots of its ranks to a thread in rank 0, the hub,
which writes it to rank 0's recorder. A report can then be made from one recorder, as on one machine. The hub
sends it to the relays, which publish it on their machines.

They are threads rather than processes so that they end with their rank, however it ends, and the other end of
the connection sees it at once. If a rank's code blocks its other threads, it delays only these.
"""
