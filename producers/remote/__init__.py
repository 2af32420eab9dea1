"""Producers of a machine whose documents a fleet indexes: they send redacted content to the fleet's door."""
