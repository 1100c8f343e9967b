"""What the ranks of a cell did, as a picture and in words: functions of a recording (`mpiwatch.trace`)."""
