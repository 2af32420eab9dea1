"""Embedding providers: services, servers and models on this machine, behind one interface."""
