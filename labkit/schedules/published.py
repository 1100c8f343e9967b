"""Networks of clusters as cost models, from published measurements: for predictions beyond one machine."""

from __future__ import annotations

from labkit.schedules.cost_model import CostModel

MEASURED_BYTES = 2**22

# The first is typical. The others were measured with osu_latency between two nodes: the latency of the
# smallest message, and seconds for 4 MiB. Sources: Piz Daint (Cray Aries, CSCS, 2021), Sarus documentation;
# Olivia (Slingshot 11 between GPUs, EESSI, 2026), MPI at Warp Speed, part 2.
CLUSTERS = {
    "10 Gbit/s Ethernet, typical": CostModel(30e-6, 8 / 10e9),
    "Piz Daint": CostModel(1.11e-6, 431.85e-6 / MEASURED_BYTES),
    "Olivia": CostModel(2.38e-6, 179.65e-6 / MEASURED_BYTES),
}
