"""The profile `slurm`: submit a notebook's engines as one SLURM job, and show, watch and cancel the job."""
