"""All exercises, notebook by notebook."""
