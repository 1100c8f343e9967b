"""Data sets for every rank: fetched once per node, then scattered or read in shards."""
