"""Emulated links: communicators whose messages take as long as on a slower network."""
