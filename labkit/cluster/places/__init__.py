"""Where ranks run: a module for each place, which has the name of its profile.

A place consists of the profile `cluster_profiles/NAME/ipcluster_config.py`, which says how its engines start,
and of a module NAME here with a `PLACE`, an object derived from `place.Place`. If there is nothing to ask
before engines start, and nothing to say afterwards, the profile alone is enough.
"""
