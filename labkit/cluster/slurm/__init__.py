"""The profile `slurm`: a notebook's engines as one SLURM job, submitted, shown, watched and cancelled."""
