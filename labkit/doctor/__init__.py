"""What commonly breaks an MPI lab on a machine, looked for one by one; each finding says how to mend it.

Nothing here loads MPI into its own process: a broken one is what is looked for. Trials run in children with
deadlines. `labkit.doctor.examine` puts the checks together.
"""
